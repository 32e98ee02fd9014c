//! Replies that describe the adapter: a BT-958 with firmware 5.07B.
//!
//! Drivers compare the firmware's version as text. From 3.31 on they use strict round robin and 211 mailboxes; if it begins with 5, they
//! also use extended CCBs and 192 tagged requests.

use zerocopy::{FromZeros, IntoBytes};

use super::OWN_ID;
use super::mailbox::Mailboxes;
use super::spec::{
    AUTO_SCSI, AUTO_SCSI_BUS, AUTO_SCSI_LEVEL, AUTO_SCSI_TRANSLATION, AutoScsi, BoardId, Configuration,
    EXTENDED_SETUP_FEATURES, EXTENDED_SETUP_LEVEL, ExtendedSetup, ISA_PORT_NONE, LOCAL_RAM, PCI_INFO_FLAGS,
    PciInfo, SG_LIMIT, Setup,
};
use crate::scsi::Address;

/// The first character stands for the bus. Linux uses it as an unchecked table index.
pub(super) const MODEL: [u8; 5] = *b"958  ";
pub(super) const FIRMWARE_3RD: u8 = b'7';
pub(super) const FIRMWARE_LETTER: u8 = b'B';

/// The largest logical unit number that drivers use.
const MAX_LUN: u8 = 31;

/// The reply, cut or padded with zeros to the length that the driver requests.
pub(super) fn cut(reply: &[u8], len: u8) -> Vec<u8> {
    let mut bytes = reply.to_vec();
    bytes.resize(len.into(), 0);
    bytes
}

pub(super) fn board_id() -> Vec<u8> {
    BoardId { board: b'A', options: b'A', firmware_1st: b'5', firmware_2nd: b'0' }.as_bytes().to_vec()
}

/// `irq`: the interrupt line register.
pub(super) fn configuration(irq: u8) -> Vec<u8> {
    let irq = match irq {
        9..=12 | 14 | 15 => 1 << (irq - 9),
        _ => 0,
    };
    // DMA channel 6: none.
    Configuration { dma: 1 << 6, irq, id: OWN_ID }.as_bytes().to_vec()
}

pub(super) fn pci_info(irq: u8) -> Vec<u8> {
    PciInfo { isa_port: ISA_PORT_NONE, irq, flags: PCI_INFO_FLAGS, reserved: 0 }.as_bytes().to_vec()
}

fn mailboxes_of(mailboxes: Option<&Mailboxes>) -> (u8, u32) {
    mailboxes.map_or((0, 0), |mailboxes| (mailboxes.count() as u8, mailboxes.base()))
}

pub(super) fn setup(mailboxes: Option<&Mailboxes>) -> Setup {
    let (count, base) = mailboxes_of(mailboxes);
    let [_, high, middle, low] = base.to_be_bytes();
    Setup {
        // Synchronous transfers, parity.
        flags: 1 | 1 << 1,
        mailboxes: count,
        mailbox_base: [high, middle, low],
        signature: *b"BDF",
        wide_allowed: u8::MAX,
        wide_active: u8::MAX,
        wide_allowed_high: u8::MAX,
        wide_active_high: u8::MAX,
        ..Setup::new_zeroed()
    }
}

pub(super) fn extended_setup(mailboxes: Option<&Mailboxes>) -> ExtendedSetup {
    let (count, base) = mailboxes_of(mailboxes);
    ExtendedSetup {
        bus_type: b'E',
        bios_address: 0,
        sg_limit: SG_LIMIT.into(),
        mailboxes: count,
        mailbox_base: base.into(),
        flags: EXTENDED_SETUP_LEVEL,
        firmware: [b'0', FIRMWARE_3RD, FIRMWARE_LETTER],
        features: EXTENDED_SETUP_FEATURES,
    }
}

/// A bit for each target with units.
pub(super) fn targets(units: impl Iterator<Item = Address>) -> Vec<u8> {
    let present = units.filter(|address| address.target < super::TARGETS);
    present.fold(0u16, |all, address| all | 1 << address.target).to_le_bytes().to_vec()
}

/// A byte for each of eight targets, with a bit for each of its first eight units.
pub(super) fn installed(units: impl Iterator<Item = Address>, first: u8) -> Vec<u8> {
    let mut luns = [0u8; 8];
    for Address { target, lun } in units {
        let place = target.checked_sub(first).and_then(|index| luns.get_mut(usize::from(index)));
        if let (Some(place), 0..8) = (place, lun) {
            *place |= 1 << lun;
        }
    }
    luns.to_vec()
}

/// A range of local RAM. `None`: it ends beyond the RAM.
pub(super) fn local_ram(offset: u8, count: u8, irq: u8) -> Option<Vec<u8>> {
    let mut ram = [0; LOCAL_RAM];
    let auto = AutoScsi {
        signature: *b"BL",
        size: size_of::<AutoScsi>() as u8,
        model: *b"BT-958",
        flags: AUTO_SCSI_LEVEL,
        irq,
        id: OWN_ID,
        bus_flags: AUTO_SCSI_BUS,
        bios_flags: AUTO_SCSI_TRANSLATION,
        enabled: u16::MAX.into(),
        wide: u16::MAX.into(),
        fast: u16::MAX.into(),
        sync: u16::MAX.into(),
        disconnect: u16::MAX.into(),
        start_unit: u16::MAX.into(),
        // INTA#.
        pins: 0,
        ultra: u16::MAX.into(),
        max_lun: MAX_LUN,
        boot_flags: 1,
        ..AutoScsi::new_zeroed()
    };
    for (to, from) in ram.iter_mut().skip(AUTO_SCSI).zip(auto.as_bytes()) {
        *to = *from;
    }
    let start = usize::from(offset);
    ram.get(start..start + usize::from(count)).map(<[u8]>::to_vec)
}
