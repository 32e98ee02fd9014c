//! A page: name, header, content.

use zerocopy::IntoBytes;

use crate::lsi::spec::{ConfigRequest, PageHeader};

/// Page types: low four bits of [`PageHeader::page_type`].
pub(super) mod page_type {
    pub(in super::super) const IO_UNIT: u8 = 0x0;
    pub(in super::super) const IOC: u8 = 0x1;
    pub(in super::super) const SCSI_PORT: u8 = 0x3;
    pub(in super::super) const SCSI_DEVICE: u8 = 0x4;
    pub(in super::super) const MANUFACTURING: u8 = 0x9;
    pub(in super::super) const EXTENDED: u8 = 0xf;
    /// Attribute: may be changed.
    pub(in super::super) const CHANGEABLE: u8 = 0x10;
    /// Attribute: survives a power cycle.
    pub(in super::super) const PERSISTENT: u8 = 0x20;
    pub(in super::super) const MASK: u8 = 0x0f;
}

/// Maximum length of a page in bytes.
pub(in super::super) const MAX_PAGE: usize = 256;

/// Targets with at least one unit, as a bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Attached(pub(in super::super) u32);

impl Attached {
    pub(in super::super) fn has(self, target: u8) -> bool {
        self.0.checked_shr(target.into()).is_some_and(|bits| bits & 1 != 0)
    }
}

/// The page that a request refers to.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Name {
    pub(super) kind: u8,
    /// The extended type, if `kind` is [`page_type::EXTENDED`].
    pub(super) extended: u8,
    pub(super) number: u8,
    pub(super) address: u32,
}

impl Name {
    pub(in super::super) fn of(request: &ConfigRequest) -> Self {
        Self {
            kind: request.header.page_type & page_type::MASK,
            extended: request.ext_page_type,
            number: request.header.number,
            address: request.page_address.get(),
        }
    }
}

/// The content of a page, including its header.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Page {
    bytes: [u8; MAX_PAGE],
    len: usize,
}

impl Page {
    pub(super) fn new(number: u8, kind: u8, version: u8, len: usize) -> Self {
        debug_assert!(len <= MAX_PAGE && len.is_multiple_of(4));
        let mut page = Self { bytes: [0; MAX_PAGE], len };
        let header = PageHeader { version, length: (len / 4) as u8, number, page_type: kind };
        page.bytes[..4].copy_from_slice(header.as_bytes());
        page
    }

    /// An extended page: its length and type follow the header.
    pub(super) fn extended(name: Name, attributes: u8, version: u8, len: usize) -> Self {
        let mut page = Self::new(name.number, page_type::EXTENDED | attributes, version, len);
        page.bytes[1] = 0;
        page.u16(4, (len / 4) as u16).u8(6, name.extended)
    }

    pub(super) fn u64(mut self, offset: usize, value: u64) -> Self {
        self.bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u32(mut self, offset: usize, value: u32) -> Self {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u16(mut self, offset: usize, value: u16) -> Self {
        self.bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u8(mut self, offset: usize, value: u8) -> Self {
        self.bytes[offset] = value;
        self
    }

    pub(super) fn text(mut self, offset: usize, width: usize, text: &str) -> Self {
        let len = text.len().min(width - 1);
        self.bytes[offset..offset + len].copy_from_slice(&text.as_bytes()[..len]);
        self
    }

    /// The whole page.
    pub(in super::super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The header of the page, for a reply.
    pub(in super::super) fn header(&self) -> PageHeader {
        let [version, length, number, page_type, ..] = self.bytes;
        PageHeader { version, length, number, page_type }
    }

    /// Length in dwords and type of an extended page; `None` for other pages.
    pub(in super::super) fn extension(&self) -> Option<(u16, u8)> {
        let extended = self.header().page_type & page_type::MASK == page_type::EXTENDED;
        extended.then(|| ((self.len / 4) as u16, self.bytes[6]))
    }

    pub(super) fn may_change(&self) -> bool {
        self.header().page_type & (page_type::CHANGEABLE | page_type::PERSISTENT) != 0
    }
}
