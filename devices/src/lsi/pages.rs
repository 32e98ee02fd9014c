//! Configuration pages: what the SPI personality tells about its port, its targets and itself.
//!
//! Layouts follow the MPI 1.5 configuration pages. A page read has the same length as its header says, and the two
//! SCSI device pages have exactly the sizes that drivers reserve for them (12 and 16 bytes).

use zerocopy::IntoBytes;

use super::spec::{PageHeader, config_action, ioc_status};

/// Targets of an SPI bus.
pub(super) const SPI_TARGETS: usize = 16;
/// The adapter's own identifier on the bus.
pub(super) const HOST_ID: u8 = 7;
/// Longest page in bytes.
pub(super) const MAX_PAGE: usize = 80;

/// Page types: low four bits of [`PageHeader::page_type`].
mod page_type {
    pub(super) const IO_UNIT: u8 = 0x0;
    pub(super) const IOC: u8 = 0x1;
    pub(super) const SCSI_PORT: u8 = 0x3;
    pub(super) const SCSI_DEVICE: u8 = 0x4;
    pub(super) const MANUFACTURING: u8 = 0x9;
    /// Attribute: may be changed.
    pub(super) const CHANGEABLE: u8 = 0x10;
    /// Attribute: survives a power cycle.
    pub(super) const PERSISTENT: u8 = 0x20;
    pub(super) const MASK: u8 = 0x0f;
}

/// Transfer parameters: negotiated, requested and possible (same layout).
mod parameters {
    pub(super) const IU: u32 = 1;
    pub(super) const DT: u32 = 2;
    pub(super) const QAS: u32 = 4;
    pub(super) const PERIOD_SHIFT: u32 = 8;
    pub(super) const PERIOD_MASK: u32 = 0xff << PERIOD_SHIFT;
    pub(super) const OFFSET_SHIFT: u32 = 16;
    pub(super) const OFFSET_MASK: u32 = 0xff << OFFSET_SHIFT;
    pub(super) const WIDE: u32 = 0x2000_0000;
}

/// What the port can: Ultra320, offset 127, wide, information units, double transition, quick arbitration.
const PORT_CAPABILITIES: u32 = parameters::WIDE
    | 127 << parameters::OFFSET_SHIFT
    | 0x08 << parameters::PERIOD_SHIFT
    | parameters::QAS
    | parameters::DT
    | parameters::IU;
/// Low-voltage differential.
const PHYSICAL_INTERFACE_LVD: u32 = 3;
/// Port page 2: no bus reset is wanted before the bus is scanned.
const PORT_FLAGS_AVOID_SCSI_RESET: u32 = 4;

/// Negotiation of the targets, and the answers made from it.
#[derive(Debug)]
pub(super) struct Pages {
    requested: [u32; SPI_TARGETS],
    board: Board,
}

/// What manufacturing page 0 says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Board {
    pub(super) chip: &'static str,
    pub(super) board: &'static str,
    pub(super) pci_id: u32,
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

    fn u32(mut self, offset: usize, value: u32) -> Self {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u8(mut self, offset: usize, value: u8) -> Self {
        self.bytes[offset] = value;
        self
    }

    fn text(mut self, offset: usize, room: usize, text: &str) -> Self {
        let len = text.len().min(room - 1);
        self.bytes[offset..offset + len].copy_from_slice(&text.as_bytes()[..len]);
        self
    }

    /// The whole page.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Its header as a reply carries it.
    pub(super) fn header(&self) -> PageHeader {
        PageHeader {
            version: self.bytes[0],
            length: self.bytes[1],
            number: self.bytes[2],
            page_type: self.bytes[3],
        }
    }
}

impl Pages {
    pub(super) fn new(board: Board) -> Self {
        Self { requested: [0; SPI_TARGETS], board }
    }

    /// Back to asynchronous, narrow transfers.
    pub(super) fn reset(&mut self) {
        self.requested = [0; SPI_TARGETS];
    }

    /// The page that a request names, as it stands.
    ///
    /// # Errors
    /// IOCStatus: no such type or page.
    pub(super) fn find(&self, header: PageHeader, address: u32) -> Result<Page, u16> {
        let kind = header.page_type & page_type::MASK;
        let changeable = kind | page_type::CHANGEABLE;
        let persistent = kind | page_type::PERSISTENT;
        let number = header.number;
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
            (page_type::SCSI_PORT, 0) => {
                page(kind, 2, 12).u32(4, PORT_CAPABILITIES).u32(8, PHYSICAL_INTERFACE_LVD)
            }
            (page_type::SCSI_PORT, 1) => {
                page(changeable, 3, 16).u32(4, 1 << (16 + HOST_ID) | u32::from(HOST_ID))
            }
            (page_type::SCSI_PORT, 2) => (0..SPI_TARGETS).fold(
                page(persistent, 2, 76).u32(4, PORT_FLAGS_AVOID_SCSI_RESET).u32(8, 0x30 | u32::from(HOST_ID)),
                // Timeout, synchronous factor, then: disconnect, identifier scan, unit scan, tags.
                |page, target| page.u32(12 + target * 4, 0x000f_080a),
            ),
            (page_type::SCSI_DEVICE, 0) => {
                let target = device(address)?;
                page(kind, 4, 12).u32(4, negotiated(self.requested[target])).u32(8, 1)
            }
            (page_type::SCSI_DEVICE, 1) => {
                let target = device(address)?;
                page(changeable, 5, 16).u32(4, self.requested[target])
            }
            (page_type::SCSI_DEVICE, 2) => {
                device(address)?;
                page(changeable, 1, 16)
            }
            (page_type::SCSI_DEVICE, 3) => {
                device(address)?;
                page(kind, 1, 12)
            }
            (page_type::MANUFACTURING, 0) => page(kind, 0, 76)
                .text(4, 16, self.board.chip)
                .text(20, 8, "B0")
                .text(28, 16, self.board.board)
                .text(44, 16, self.board.board)
                .text(60, 16, "0"),
            (page_type::MANUFACTURING, 1..=4) => page(persistent, 0, 8),
            (
                page_type::IO_UNIT
                | page_type::IOC
                | page_type::SCSI_PORT
                | page_type::SCSI_DEVICE
                | page_type::MANUFACTURING,
                _,
            ) => return Err(ioc_status::CONFIG_INVALID_PAGE),
            _ => return Err(ioc_status::CONFIG_INVALID_TYPE),
        })
    }

    /// Write a page. Only the requested transfer parameters have an effect; writes to other changeable pages are
    /// taken and forgotten, for drivers give up on a target when they fail.
    ///
    /// # Errors
    /// IOCStatus: no such page, or one that cannot be changed.
    pub(super) fn write(
        &mut self,
        action: u8,
        header: PageHeader,
        address: u32,
        data: &[u8],
    ) -> Result<(), u16> {
        let page = self.find(header, address)?;
        let attributes = page.header().page_type & !page_type::MASK;
        if attributes == 0 {
            return Err(ioc_status::CONFIG_CANT_COMMIT);
        }
        let kind = header.page_type & page_type::MASK;
        if (kind, header.number, action) == (page_type::SCSI_DEVICE, 1, config_action::WRITE_CURRENT) {
            let bytes = data.get(4..8).ok_or(ioc_status::CONFIG_INVALID_DATA)?;
            self.requested[device(address)?] = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }
}

/// Target of a SCSI device page's address: identifier in the low byte, bus in the next.
fn device(address: u32) -> Result<usize, u16> {
    let target = (address & 0xff) as usize;
    if address >> 8 & 0xff != 0 || target >= SPI_TARGETS {
        return Err(ioc_status::CONFIG_INVALID_PAGE);
    }
    Ok(target)
}

/// What target and port agree on: what was requested, within what the port can; without an offset, asynchronous.
fn negotiated(requested: u32) -> u32 {
    let offset = (requested & parameters::OFFSET_MASK).min(PORT_CAPABILITIES & parameters::OFFSET_MASK);
    let wide = requested & parameters::WIDE;
    if offset == 0 {
        return wide;
    }
    let period = (requested & parameters::PERIOD_MASK).max(PORT_CAPABILITIES & parameters::PERIOD_MASK);
    let protocol = requested & PORT_CAPABILITIES & (parameters::IU | parameters::DT | parameters::QAS);
    wide | offset | period | protocol
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Pages {
        Pages::new(Board { chip: "LSI53C1030", board: "PARADISK", pci_id: 0x0030_1000 })
    }

    fn named(kind: u8, number: u8) -> PageHeader {
        PageHeader { page_type: kind, number, ..PageHeader::default() }
    }

    #[test]
    fn pages_that_drivers_read_have_the_sizes_they_reserve() {
        for ((kind, number), len) in [
            ((3, 0), 12),
            ((3, 2), 76),
            ((4, 0), 12),
            ((4, 1), 16),
            ((1, 1), 16),
            ((1, 4), 8),
            ((0, 2), 32),
            ((9, 0), 76),
        ] {
            let page = pages().find(named(kind, number), 0).unwrap();
            assert_eq!(page.as_slice().len(), len, "page {kind}.{number}");
            assert_eq!(usize::from(page.header().length) * 4, len);
            assert_eq!(page.header().page_type & 0xf, kind, "the type is echoed");
            assert_eq!(page.header().number, number);
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        assert_eq!(pages().find(named(3, 9), 0).unwrap_err(), ioc_status::CONFIG_INVALID_PAGE);
        assert_eq!(pages().find(named(7, 0), 0).unwrap_err(), ioc_status::CONFIG_INVALID_TYPE);
        assert_eq!(pages().find(named(4, 0), 16).unwrap_err(), ioc_status::CONFIG_INVALID_PAGE);
        assert_eq!(pages().find(named(4, 0), 0x100).unwrap_err(), ioc_status::CONFIG_INVALID_PAGE);
    }

    #[test]
    fn negotiation_is_kept_per_target_and_within_the_port() {
        let mut pages = pages();
        let mut data = [0; 16];
        data[4..8].copy_from_slice(&0x20ff_0007u32.to_le_bytes());
        pages.write(config_action::WRITE_CURRENT, named(4, 1), 3, &data).unwrap();
        let read = |pages: &Pages, target| {
            let page = pages.find(named(4, 0), target).unwrap();
            u32::from_le_bytes(page.as_slice()[4..8].try_into().unwrap())
        };
        assert_eq!(read(&pages, 3), 0x207f_0807);
        assert_eq!(read(&pages, 4), 0);
        assert_eq!(
            pages.write(config_action::WRITE_CURRENT, named(4, 1), 3, &data[..6]),
            Err(ioc_status::CONFIG_INVALID_DATA)
        );
        assert_eq!(
            pages.write(config_action::WRITE_CURRENT, named(4, 0), 3, &data),
            Err(ioc_status::CONFIG_CANT_COMMIT)
        );
        pages.reset();
        assert_eq!(read(&pages, 3), 0);
    }
}
