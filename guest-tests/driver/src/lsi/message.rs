//! What messages other than SCSI I/O carry: configuration pages, task management, events.

use super::spec::*;

/// Callback index in contexts of SCSI I/O and of the driver's other messages.
pub(super) const IO_CONTEXT: u32 = 9 << 16;
pub(super) const MESSAGE_CONTEXT: u32 = 15 << 16;

/// What a CONFIG request does.
pub mod action {
    /// Read the header.
    pub const HEADER: u8 = 0;
    /// Read the current page.
    pub const READ_CURRENT: u8 = 1;
    /// Write the current page.
    pub const WRITE_CURRENT: u8 = 2;
    /// Read the page in non-volatile memory.
    pub const READ_NVRAM: u8 = 6;
}

/// Type of extended pages.
pub(super) const TYPE_EXTENDED: u8 = 0xf;

/// A configuration page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageAddress {
    /// Type; 0xf: extended.
    pub kind: u8,
    /// Extended type.
    pub extended: u8,
    /// Number.
    pub number: u8,
    /// Address, by type.
    pub address: u32,
}

impl PageAddress {
    /// A page.
    #[must_use]
    pub const fn new(kind: u8, number: u8, address: u32) -> Self {
        Self { kind, extended: 0, number, address }
    }

    /// An extended page.
    #[must_use]
    pub const fn extended(extended: u8, number: u8, address: u32) -> Self {
        Self { kind: TYPE_EXTENDED, extended, number, address }
    }
}

/// A page's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// Version.
    pub version: u8,
    /// Length in dwords.
    pub dwords: u16,
}

/// Task management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// Type: 1 abort, 3 target reset, 4 bus reset, 5 LUN reset, 7 query ...
    pub kind: u8,
    /// Target.
    pub target: u8,
    /// Logical unit number.
    pub lun: u8,
    /// The request meant.
    pub tag: u32,
}

/// A reply frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its dwords.
    pub words: [u32; REPLY_FRAME / 4],
}

impl Reply {
    /// Function of the message.
    #[must_use]
    pub const fn function(&self) -> u8 {
        (self.words[0] >> 24) as u8
    }

    /// IOCStatus without the flag of log information.
    #[must_use]
    pub const fn ioc_status(&self) -> u16 {
        (self.words[REPLY_IOC_STATUS / 4] >> 16) as u16 & IOC_STATUS_MASK
    }
}

/// An event that no request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub event: u32,
    /// The first dwords of its data.
    pub data: [u32; 2],
}

/// The header that a CONFIG reply shows.
pub(super) const fn config_header(reply: &Reply, page: PageAddress) -> PageHeader {
    let [version, short, ..] = reply.words[5].to_le_bytes();
    let dwords = if page.kind == TYPE_EXTENDED { reply.words[1] as u16 } else { short as u16 };
    PageHeader { version, dwords }
}
