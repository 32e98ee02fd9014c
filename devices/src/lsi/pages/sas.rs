//! Extended pages of Serial Attached SCSI: the controller has a phy for each target. If a target has a unit, an end
//! device is attached directly to the phy.

use super::super::spec::ioc_status;
use super::page::{Attached, Name, Page, page_type};

/// Number of phys of the controller, and so of its targets.
pub(in crate::lsi) const PHYS: u8 = 8;

/// Types of extended pages.
mod extended {
    pub(super) const IO_UNIT: u8 = 0x10;
    pub(super) const EXPANDER: u8 = 0x11;
    pub(super) const DEVICE: u8 = 0x12;
    pub(super) const PHY: u8 = 0x13;
    pub(super) const LOG: u8 = 0x14;
    pub(super) const ENCLOSURE: u8 = 0x15;
}

/// Device information: an end device that supports SSP as initiator or as target, attached without an expander.
const END_DEVICE: u32 = 1;
const DIRECT: u32 = 0x800;
const SSP_INITIATOR: u32 = 0x40;
const SSP_TARGET: u32 = 0x400;
const INITIATOR: u32 = END_DEVICE | SSP_INITIATOR;
/// Device information of a disk.
const TARGET: u32 = END_DEVICE | SSP_TARGET | DIRECT;
/// Link rates: 3 Gbit/s negotiated, 1.5 to 3 Gbit/s allowed.
const RATE_3_0: u8 = 0x09;
const RATE_ALLOWED: u8 = 0x98;
/// Flags of device page 0: the device is present, and its target number is mapped.
const PRESENT: u16 = 1;
const MAPPED: u16 = 2;
/// Handle of the controller itself; 0 would mean no device.
const CONTROLLER: u16 = 1;
/// Handle of the first phy's device.
const FIRST_DEVICE: u16 = 0x10;
/// SAS address of the controller, locally assigned (NAA 3); devices follow.
const CONTROLLER_ADDRESS: u64 = 0x3000_7061_7261_0000;
/// Forms of a device page's address (bits 31:28).
const FORM_GET_NEXT: u32 = 0;
const FORM_BUS_TARGET: u32 = 1;
const FORM_HANDLE: u32 = 2;
/// The handle that requests the first device.
const BEFORE_FIRST: u32 = 0xffff;

/// An attached device, as in events and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lsi) struct Device {
    pub(in crate::lsi) handle: u16,
    pub(in crate::lsi) parent: u16,
    pub(in crate::lsi) address: u64,
    pub(in crate::lsi) phy: u8,
    pub(in crate::lsi) info: u32,
}

/// The device of a target, if one is attached.
pub(in crate::lsi) const fn device_of(target: u8) -> Device {
    Device {
        handle: FIRST_DEVICE + target as u16,
        parent: CONTROLLER,
        address: CONTROLLER_ADDRESS + FIRST_DEVICE as u64 + target as u64,
        phy: target,
        info: TARGET,
    }
}

const fn controller() -> Device {
    Device { handle: CONTROLLER, parent: 0, address: CONTROLLER_ADDRESS, phy: 0, info: INITIATOR }
}

/// An extended page.
pub(super) fn find(name: Name, attached: Attached) -> Result<Page, u16> {
    match (name.extended, name.number) {
        (extended::IO_UNIT, 0) => Ok(io_unit_0(name, attached)),
        (extended::IO_UNIT, 1) => Ok(io_unit_1(name)),
        (extended::DEVICE, 0) => device_0(name, attached),
        (extended::PHY, 0) => phy_0(name, attached),
        // Error counters, which are always zero.
        (extended::PHY, 1) => phy(name).map(|_| Page::extended(name, 0, 0, 28)),
        (
            extended::IO_UNIT
            | extended::EXPANDER
            | extended::DEVICE
            | extended::PHY
            | extended::LOG
            | extended::ENCLOSURE,
            _,
        ) => Err(ioc_status::CONFIG_INVALID_PAGE),
        _ => Err(ioc_status::CONFIG_INVALID_TYPE),
    }
}

/// SAS IO unit page 0: the device on each phy.
fn io_unit_0(name: Name, attached: Attached) -> Page {
    const HEAD: usize = 16;
    const EACH: usize = 16;
    let page = Page::extended(name, 0, 4, HEAD + EACH * usize::from(PHYS)).u8(0x0c, PHYS);
    (0..PHYS).fold(page, |page, phy| {
        let at = HEAD + EACH * usize::from(phy);
        let page = page.u8(at, phy).u32(at + 4, INITIATOR).u16(at + 0x0a, CONTROLLER);
        if attached.has(phy) { page.u8(at + 3, RATE_3_0).u16(at + 8, device_of(phy).handle) } else { page }
    })
}

/// SAS IO unit page 1: the configuration of each phy.
fn io_unit_1(name: Name) -> Page {
    const HEAD: usize = 20;
    const EACH: usize = 12;
    let attributes = page_type::PERSISTENT;
    let page = Page::extended(name, attributes, 7, HEAD + EACH * usize::from(PHYS)).u8(0x10, PHYS);
    (0..PHYS).fold(page, |page, phy| {
        let at = HEAD + EACH * usize::from(phy);
        page.u8(at, phy).u8(at + 3, RATE_ALLOWED).u32(at + 4, INITIATOR)
    })
}

/// The phy that an address refers to: form 0, number in the low byte.
fn phy(name: Name) -> Result<u8, u16> {
    let number = name.address as u8;
    if name.address >> 28 != 0 || number >= PHYS {
        return Err(ioc_status::CONFIG_INVALID_PAGE);
    }
    Ok(number)
}

fn phy_0(name: Name, attached: Attached) -> Result<Page, u16> {
    let number = phy(name)?;
    let page = Page::extended(name, 0, 1, 36)
        .u16(8, CONTROLLER)
        .u64(0x0c, CONTROLLER_ADDRESS)
        .u8(0x1c, RATE_ALLOWED)
        .u8(0x1d, RATE_ALLOWED);
    if !attached.has(number) {
        return Ok(page);
    }
    let device = device_of(number);
    Ok(page.u16(0x14, device.handle).u32(0x18, device.info))
}

fn device_0(name: Name, attached: Attached) -> Result<Page, u16> {
    let (form, low) = (name.address >> 28, name.address & 0xffff);
    let mut targets = (0..PHYS).filter(|phy| attached.has(*phy)).map(|target| (target, device_of(target)));
    let found = match form {
        FORM_GET_NEXT if low == BEFORE_FIRST => Some((0, controller())),
        // In the order of handles; the controller's own is the first.
        FORM_GET_NEXT => targets.find(|(_, device)| u32::from(device.handle) > low),
        FORM_BUS_TARGET => targets.find(|(target, _)| u32::from(*target) == low),
        FORM_HANDLE if low == u32::from(CONTROLLER) => Some((0, controller())),
        FORM_HANDLE => targets.find(|(_, device)| u32::from(device.handle) == low),
        _ => None,
    };
    let (target, device) = found.ok_or(ioc_status::CONFIG_INVALID_PAGE)?;
    Ok(Page::extended(name, 0, 5, 36)
        .u64(0x0c, device.address)
        .u16(0x14, device.parent)
        .u8(0x16, device.phy)
        .u16(0x18, device.handle)
        .u8(0x1a, target)
        .u32(0x1c, device.info)
        .u16(0x20, PRESENT | MAPPED)
        .u8(0x22, device.phy))
}
