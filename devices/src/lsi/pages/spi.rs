//! Pages of parallel SCSI. The two SCSI device pages have exactly the sizes (12 and 16 bytes) for which drivers reserve
//! space.

use super::super::spec::{config_action, ioc_status};
use super::page::{Name, Page, page_type};

/// Number of targets of a bus.
pub(in crate::lsi) const TARGETS: usize = 16;
/// The adapter's own identifier on the bus.
pub(in crate::lsi) const HOST_ID: u8 = 7;

/// Transfer parameters: negotiated, requested and supported ones have the same layout.
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

/// Capabilities of the port: Ultra320, offset 127, wide, information units, double transition, quick arbitration.
const PORT_CAPABILITIES: u32 = parameters::WIDE
    | 127 << parameters::OFFSET_SHIFT
    | 0x08 << parameters::PERIOD_SHIFT
    | parameters::QAS
    | parameters::DT
    | parameters::IU;
/// Low-voltage differential (LVD).
const PHYSICAL_INTERFACE_LVD: u32 = 3;
/// Port page 2: the driver should not reset the bus before it scans it.
const PORT_FLAGS_AVOID_SCSI_RESET: u32 = 4;

/// The transfer parameters that were requested for each target.
#[derive(Debug, Default)]
pub(super) struct Negotiation {
    requested: [u32; TARGETS],
}

impl Negotiation {
    /// A page of a port or a device.
    pub(super) fn find(&self, name: Name) -> Result<Page, u16> {
        let (kind, number) = (name.kind, name.number);
        let (changeable, persistent) = (kind | page_type::CHANGEABLE, kind | page_type::PERSISTENT);
        let page = |attributed: u8, version: u8, len: usize| Page::new(number, attributed, version, len);
        let target = || device(name.address);
        Ok(match (kind, number) {
            (page_type::SCSI_PORT, 0) => {
                page(kind, 2, 12).u32(4, PORT_CAPABILITIES).u32(8, PHYSICAL_INTERFACE_LVD)
            }
            (page_type::SCSI_PORT, 1) => {
                page(changeable, 3, 16).u32(4, 1 << (16 + HOST_ID) | u32::from(HOST_ID))
            }
            (page_type::SCSI_PORT, 2) => (0..TARGETS).fold(
                page(persistent, 2, 76).u32(4, PORT_FLAGS_AVOID_SCSI_RESET).u32(8, 0x30 | u32::from(HOST_ID)),
                // Timeout, synchronous factor, then flags: disconnect, identifier scan, unit scan, tags.
                |page, target| page.u32(12 + target * 4, 0x000f_080a),
            ),
            (page_type::SCSI_DEVICE, 0) => {
                page(kind, 4, 12).u32(4, negotiated(self.requested[target()?])).u32(8, 1)
            }
            (page_type::SCSI_DEVICE, 1) => page(changeable, 5, 16).u32(4, self.requested[target()?]),
            (page_type::SCSI_DEVICE, 2) => target().map(|_| page(changeable, 1, 16))?,
            (page_type::SCSI_DEVICE, 3) => target().map(|_| page(kind, 1, 12))?,
            _ => return Err(ioc_status::CONFIG_INVALID_PAGE),
        })
    }

    /// Write a page, which the caller has checked to exist and to be changeable.
    pub(super) fn write(&mut self, action: u8, name: Name, data: &[u8]) -> Result<(), u16> {
        if (name.kind, name.number, action) == (page_type::SCSI_DEVICE, 1, config_action::WRITE_CURRENT) {
            let bytes = data.get(4..8).ok_or(ioc_status::CONFIG_INVALID_DATA)?;
            self.requested[device(name.address)?] =
                u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }
}

/// Target of a SCSI device page's address: identifier in the low byte, bus in the next.
fn device(address: u32) -> Result<usize, u16> {
    let target = (address & 0xff) as usize;
    if address >> 8 & 0xff != 0 || target >= TARGETS {
        return Err(ioc_status::CONFIG_INVALID_PAGE);
    }
    Ok(target)
}

/// The negotiated parameters: the requested ones, limited to the port's capabilities. Offset 0 means asynchronous
/// transfers.
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
