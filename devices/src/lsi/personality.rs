//! The differences between the emulated Fusion-MPT controllers.

use super::pages::{Board, HOST_ID, PHYS, Pages, SPI_TARGETS};
use super::port::REPLY_DEPTH;
use super::sgl::MAX_CHAIN_DEPTH;
use super::spec::{IocFactsReply, PortFactsReply};
use crate::pci::Identity;

/// The controller that an adapter emulates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Personality {
    /// LSI53C1030: parallel SCSI, Ultra320. The Linux driver is `mptspi`.
    #[default]
    Spi1030,
    /// SAS1068: SAS with up to eight phys, one disk on each. The Linux driver is `mptsas`.
    Sas1068,
}

/// Size of a request frame in bytes.
pub(super) const REQUEST_FRAME: usize = 128;
/// Maximum size of a reply frame in bytes.
pub(super) const REPLY_FRAME: usize = 128;
/// Initiator, product family 1030.
const PRODUCT_ID_1030: u16 = 0x0102;
/// Initiator, SAS.
const PRODUCT_ID_1068: u16 = 0x2102;
const PORT_TYPE_SCSI: u8 = 0x01;
const PORT_TYPE_SAS: u8 = 0x30;
const PROTOCOL_INITIATOR: u16 = 0x08;
const MPI_VERSION_1_2: u16 = 0x0102;
const MPI_VERSION_1_5: u16 = 0x0105;
/// With a lower version, drivers scan for disks by an older method.
const HEADER_VERSION_1_5: u16 = 0x1300;

impl Personality {
    /// Identity of the PCI function.
    pub(super) const fn identity(self) -> Identity {
        Identity {
            vendor: 0x1000,
            device: match self {
                Self::Spi1030 => 0x0030,
                Self::Sas1068 => 0x0054,
            },
            revision: 1,
            class: [0x01, 0x00, 0x00],
            subsystem_vendor: 0x1000,
            subsystem: 0x8000,
        }
    }

    /// Configuration pages of the controller.
    pub(super) fn pages(self) -> Pages {
        let board = "PARADISK";
        match self {
            Self::Spi1030 => Pages::spi(Board { chip: "LSI53C1030", board, pci_id: 0x0030_1000 }),
            Self::Sas1068 => Pages::sas(Board { chip: "LSISAS1068", board, pci_id: 0x0054_1000 }),
        }
    }

    /// Whether `target` may have units.
    #[must_use]
    pub const fn has_target(self, target: u8) -> bool {
        target < self.targets() && !(matches!(self, Self::Spi1030) && target == HOST_ID)
    }

    /// Number of targets on the bus, including the host's own identifier.
    pub(super) const fn targets(self) -> u8 {
        match self {
            Self::Spi1030 => SPI_TARGETS as u8,
            Self::Sas1068 => PHYS,
        }
    }

    /// The constant fields of IOC FACTS.
    pub(super) fn ioc_facts(self) -> IocFactsReply {
        let (msg_version, header_version, product_id) = match self {
            Self::Spi1030 => (MPI_VERSION_1_2, 0, PRODUCT_ID_1030),
            Self::Sas1068 => (MPI_VERSION_1_5, HEADER_VERSION_1_5, PRODUCT_ID_1068),
        };
        IocFactsReply {
            msg_version: msg_version.into(),
            header_version: header_version.into(),
            max_chain_depth: MAX_CHAIN_DEPTH,
            block_size: 8,
            reply_queue_depth: (REPLY_DEPTH as u16).into(),
            request_frame_size: (REQUEST_FRAME as u16 / 4).into(),
            product_id: product_id.into(),
            number_of_ports: 1,
            max_devices: self.targets(),
            max_buses: 1,
            fw_version: [0, 0x20, 0x03, 0x01],
            ..IocFactsReply::default()
        }
    }

    /// The constant fields of PORT FACTS.
    pub(super) fn port_facts(self) -> PortFactsReply {
        let (port_type, port_scsi_id) = match self {
            Self::Spi1030 => (PORT_TYPE_SCSI, HOST_ID),
            // Drivers read the number of devices from this field.
            Self::Sas1068 => (PORT_TYPE_SAS, PHYS),
        };
        PortFactsReply {
            port_type,
            max_devices: u16::from(self.targets()).into(),
            port_scsi_id: u16::from(port_scsi_id).into(),
            protocol_flags: PROTOCOL_INITIATOR.into(),
            ..PortFactsReply::default()
        }
    }
}
