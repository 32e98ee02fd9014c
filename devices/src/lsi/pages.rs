//! Configuration pages: properties of the controller, its ports and its targets (MPI 1.5, configuration messages). The
//! length of a page is the one in its header.
//! - this file: pages that all controllers have; `page`: construction of a page,
//! - `spi`: ports, targets and negotiation of parallel SCSI,
//! - `sas`: phys and devices of Serial Attached SCSI, as extended pages.

mod page;
mod sas;
mod spi;

use self::page::page_type;
use super::spec::ioc_status;

pub(super) use self::page::{Attached, MAX_PAGE, Name, Page};
pub(super) use sas::{PHYS, device_of};
pub(super) use spi::{HOST_ID, TARGETS as SPI_TARGETS};

/// Properties in manufacturing page 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Board {
    pub(super) chip: &'static str,
    pub(super) board: &'static str,
    pub(super) pci_id: u32,
}

/// The state that the pages are made from.
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

    /// Restore the state after power-on.
    pub(super) fn reset(&mut self) {
        if let Transport::Spi(negotiation) = &mut self.transport {
            *negotiation = spi::Negotiation::default();
        }
    }

    /// The page with this name, from the current state.
    ///
    /// # Errors
    /// IOCStatus: there is no such type or page.
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

    /// Write a page. Only the requested transfer parameters have an effect. Writes to other changeable pages succeed
    /// and are ignored, because drivers disable a target when such a write fails.
    ///
    /// # Errors
    /// IOCStatus: there is no such page, or the page cannot be changed.
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
