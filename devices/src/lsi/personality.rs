//! What tells one Fusion-MPT controller from another.

use super::pages::{Board, HOST_ID, SPI_TARGETS};
use super::port::{REPLY_DEPTH, REQUEST_CREDITS};
use super::sgl::MAX_CHAIN_DEPTH;
use super::spec::{IocFactsReply, PortFactsReply};
use crate::pci::Identity;

/// The controller that an adapter shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Personality {
    /// LSI53C1030: parallel SCSI, Ultra320; `mptspi` drives it.
    #[default]
    Spi1030,
}

/// Bytes of a request frame.
pub(super) const REQUEST_FRAME: usize = 128;
/// Bytes of a reply frame that the host may offer at the most.
pub(super) const REPLY_FRAME: usize = 128;
/// Initiator, product family 1030.
const PRODUCT_ID_1030: u16 = 0x0102;
const PORT_TYPE_SCSI: u8 = 0x01;
const PROTOCOL_INITIATOR: u16 = 0x08;
const MPI_VERSION_1_2: u16 = 0x0102;

impl Personality {
    /// Identity of the PCI function.
    pub(super) const fn identity(self) -> Identity {
        match self {
            Self::Spi1030 => Identity {
                vendor: 0x1000,
                device: 0x0030,
                revision: 1,
                class: [0x01, 0x00, 0x00],
                subsystem_vendor: 0x1000,
                subsystem: 0x8000,
            },
        }
    }

    /// What manufacturing page 0 says.
    pub(super) const fn board(self) -> Board {
        match self {
            Self::Spi1030 => Board { chip: "LSI53C1030", board: "PARADISK", pci_id: 0x0030_1000 },
        }
    }

    /// Targets on the bus, the host's own identifier among them.
    pub(super) const fn targets(self) -> u8 {
        match self {
            Self::Spi1030 => SPI_TARGETS as u8,
        }
    }

    /// What IOC FACTS tells apart from the state.
    pub(super) fn ioc_facts(self) -> IocFactsReply {
        IocFactsReply {
            msg_version: MPI_VERSION_1_2.into(),
            max_chain_depth: MAX_CHAIN_DEPTH,
            block_size: 8,
            reply_queue_depth: (REPLY_DEPTH as u16).into(),
            request_frame_size: (REQUEST_FRAME as u16 / 4).into(),
            product_id: PRODUCT_ID_1030.into(),
            global_credits: (REQUEST_CREDITS as u16).into(),
            number_of_ports: 1,
            max_devices: self.targets(),
            max_buses: 1,
            fw_version: [0, 0x20, 0x03, 0x01],
            ..IocFactsReply::default()
        }
    }

    /// What PORT FACTS tells.
    pub(super) fn port_facts(self) -> PortFactsReply {
        PortFactsReply {
            port_type: PORT_TYPE_SCSI,
            max_devices: u16::from(self.targets()).into(),
            port_scsi_id: u16::from(HOST_ID).into(),
            protocol_flags: PROTOCOL_INITIATOR.into(),
            ..PortFactsReply::default()
        }
    }
}
