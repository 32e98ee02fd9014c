//! Configuration pages: what the controller tells about itself, its ports and its targets (MPI 1.5, configuration
//! messages). A page read has the same length as its header says.
//! - here: what all controllers have,
//! - `spi`: ports, targets and negotiation of parallel SCSI,
//! - `sas`: phys and devices of Serial Attached SCSI, as extended pages.

mod sas;
mod spi;

use zerocopy::IntoBytes;

use super::spec::{ConfigRequest, PageHeader, ioc_status};

pub(super) use sas::{PHYS, device_of};
pub(super) use spi::{HOST_ID, TARGETS as SPI_TARGETS};

/// Longest page in bytes.
pub(super) const MAX_PAGE: usize = 256;

/// Page types: low four bits of [`PageHeader::page_type`].
mod page_type {
    pub(super) const IO_UNIT: u8 = 0x0;
    pub(super) const IOC: u8 = 0x1;
    pub(super) const SCSI_PORT: u8 = 0x3;
    pub(super) const SCSI_DEVICE: u8 = 0x4;
    pub(super) const MANUFACTURING: u8 = 0x9;
    pub(super) const EXTENDED: u8 = 0xf;
    /// Attribute: may be changed.
    pub(super) const CHANGEABLE: u8 = 0x10;
    /// Attribute: survives a power cycle.
    pub(super) const PERSISTENT: u8 = 0x20;
    pub(super) const MASK: u8 = 0x0f;
}

/// What manufacturing page 0 says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Board {
    pub(super) chip: &'static str,
    pub(super) board: &'static str,
    pub(super) pci_id: u32,
}

/// Targets with a unit attached, bit by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attached(pub(super) u32);

impl Attached {
    pub(super) fn has(self, target: u8) -> bool {
        self.0.checked_shr(target.into()).is_some_and(|bits| bits & 1 != 0)
    }
}

/// The page that a request names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    kind: u8,
    /// With [`page_type::EXTENDED`].
    extended: u8,
    number: u8,
    address: u32,
}

impl Name {
    pub(super) fn of(request: &ConfigRequest) -> Self {
        Self {
            kind: request.header.page_type & page_type::MASK,
            extended: request.ext_page_type,
            number: request.header.number,
            address: request.page_address.get(),
        }
    }
}

/// A page's content, header included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    bytes: [u8; MAX_PAGE],
    len: usize,
}

impl Page {
    fn new(number: u8, kind: u8, version: u8, len: usize) -> Self {
        debug_assert!(len <= MAX_PAGE && len.is_multiple_of(4));
        let mut page = Self { bytes: [0; MAX_PAGE], len };
        let header = PageHeader { version, length: (len / 4) as u8, number, page_type: kind };
        page.bytes[..4].copy_from_slice(header.as_bytes());
        page
    }

    /// An extended page: its length and type follow the header.
    fn extended(name: Name, attributes: u8, version: u8, len: usize) -> Self {
        let mut page = Self::new(name.number, page_type::EXTENDED | attributes, version, len);
        page.bytes[1] = 0;
        page.u16(4, (len / 4) as u16).u8(6, name.extended)
    }

    fn u64(mut self, offset: usize, value: u64) -> Self {
        self.bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u32(mut self, offset: usize, value: u32) -> Self {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u16(mut self, offset: usize, value: u16) -> Self {
        self.bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u8(mut self, offset: usize, value: u8) -> Self {
        self.bytes[offset] = value;
        self
    }

    fn text(mut self, offset: usize, width: usize, text: &str) -> Self {
        let len = text.len().min(width - 1);
        self.bytes[offset..offset + len].copy_from_slice(&text.as_bytes()[..len]);
        self
    }

    /// The whole page.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Its header as a reply carries it.
    pub(super) fn header(&self) -> PageHeader {
        let [version, length, number, page_type, ..] = self.bytes;
        PageHeader { version, length, number, page_type }
    }

    /// Its length in dwords and its type, where it is an extended page.
    pub(super) fn extension(&self) -> Option<(u16, u8)> {
        let extended = self.header().page_type & page_type::MASK == page_type::EXTENDED;
        extended.then(|| ((self.len / 4) as u16, self.bytes[6]))
    }

    fn may_change(&self) -> bool {
        self.header().page_type & (page_type::CHANGEABLE | page_type::PERSISTENT) != 0
    }
}

/// What the pages are made from.
#[derive(Debug)]
pub(super) struct Pages {
    board: Board,
    transport: Transport,
}

#[derive(Debug)]
enum Transport {
    Spi(spi::Negotiation),
    Sas,
}

impl Pages {
    /// Pages of a parallel SCSI controller.
    pub(super) fn spi(board: Board) -> Self {
        Self { board, transport: Transport::Spi(spi::Negotiation::default()) }
    }

    /// Pages of a SAS controller.
    pub(super) const fn sas(board: Board) -> Self {
        Self { board, transport: Transport::Sas }
    }

    /// Back to what they are after power-on.
    pub(super) fn reset(&mut self) {
        if let Transport::Spi(negotiation) = &mut self.transport {
            *negotiation = spi::Negotiation::default();
        }
    }

    /// The page of this name, as it stands.
    ///
    /// # Errors
    /// IOCStatus: no such type or page.
    pub(super) fn find(&self, name: Name, attached: Attached) -> Result<Page, u16> {
        match (&self.transport, name.kind) {
            (Transport::Spi(negotiation), page_type::SCSI_PORT | page_type::SCSI_DEVICE) => {
                negotiation.find(name)
            }
            (Transport::Sas, page_type::EXTENDED) => sas::find(name, attached),
            _ => self.common(name),
        }
    }

    fn common(&self, name: Name) -> Result<Page, u16> {
        let (kind, number) = (name.kind, name.number);
        let (changeable, persistent) = (kind | page_type::CHANGEABLE, kind | page_type::PERSISTENT);
        let page = |attributed: u8, version: u8, len: usize| Page::new(number, attributed, version, len);
        Ok(match (kind, number) {
            (page_type::IO_UNIT, 0) => page(kind, 0, 12),
            (page_type::IO_UNIT, 1) => page(persistent, 0, 8),
            (page_type::IO_UNIT, 2) => page(persistent, 2, 32),
            (page_type::IO_UNIT, 3) => page(changeable, 1, 8),
            (page_type::IOC, 0) => page(kind, 1, 28).u32(12, self.board.pci_id).u32(24, self.board.pci_id),
            (page_type::IOC, 1) => page(persistent, 3, 16).u8(13, 0xff),
            (page_type::IOC, 2) => page(kind, 4, 12),
            (page_type::IOC, 3) => page(kind, 0, 8),
            (page_type::IOC, 4) => page(changeable, 0, 8).u8(5, 1),
            (page_type::MANUFACTURING, 0) => page(kind, 0, 76)
                .text(4, 16, self.board.chip)
                .text(20, 8, "B0")
                .text(28, 16, self.board.board)
                .text(44, 16, self.board.board)
                .text(60, 16, "0"),
            (page_type::MANUFACTURING, 1..=4) => page(persistent, 0, 8),
            (page_type::IO_UNIT | page_type::IOC | page_type::MANUFACTURING, _) => {
                return Err(ioc_status::CONFIG_INVALID_PAGE);
            }
            _ => return Err(ioc_status::CONFIG_INVALID_TYPE),
        })
    }

    /// Write a page. Only the requested transfer parameters have an effect; writes to other changeable pages are
    /// taken and forgotten, for drivers disable a target when they fail.
    ///
    /// # Errors
    /// IOCStatus: no such page, or one that cannot be changed.
    pub(super) fn write(
        &mut self,
        action: u8,
        name: Name,
        attached: Attached,
        data: &[u8],
    ) -> Result<(), u16> {
        if !self.find(name, attached)?.may_change() {
            return Err(ioc_status::CONFIG_CANT_COMMIT);
        }
        match &mut self.transport {
            Transport::Spi(negotiation) => negotiation.write(action, name, data),
            Transport::Sas => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
