//! BusLogic's adapter under any guest.
//!
//! With the highest bit of the first byte set, mailboxes are set up before. What follows is taken for what the guest does: accesses to
//! registers, commands of the adapter, CCBs and mailboxes, and changes of memory. Disks hold requests back, and fail some.

use std::sync::atomic::Ordering::Relaxed;

use paradisk_devices::{AccessKind, AdapterKind};

use crate::common::device::Guest;
use crate::common::input::Input;

const MAILBOXES: u64 = 4096;
const COUNT: u8 = 8;
const CCBS: u64 = 8192;
const LISTS: u64 = 12_288;

/// Eight mailboxes of each kind, in turn, CCBs of the extended format.
fn up(guest: &mut Guest) {
    let [a, b, c, d] = (MAILBOXES as u32).to_le_bytes();
    for byte in [0x81, COUNT, a, b, c, d, 0x8f, 1, 0x96, 1] {
        guest.write(1, 1, &[byte]);
    }
}

/// A CCB, or an abort of one, in the next outgoing mailbox.
fn request(guest: &mut Guest, input: &mut Input<'_>, next: &mut u8) {
    let slot = input.u8() % COUNT;
    let place = CCBS + 64 * u64::from(slot);
    let flags = input.u8();
    if flags & 0x40 == 0 {
        let (len, address) = (u32::from(input.u16()), u32::from(input.u16()) << 2);
        let mut ccb = [0; 40];
        (ccb[0], ccb[1], ccb[2], ccb[3]) = (flags & 0x83, input.u8(), 12, input.u8());
        ccb[4..8].copy_from_slice(&len.to_le_bytes());
        ccb[8..12].copy_from_slice(&address.to_le_bytes());
        (ccb[16], ccb[17]) = (input.u8() % 5, input.u8());
        let cdb = input.bytes(12);
        ccb[18..18 + cdb.len()].copy_from_slice(cdb);
        if flags & 0x20 != 0 {
            // READ or WRITE (10) of blocks that are there, from a list of segments that has as many bytes.
            let blocks = len % 9;
            (ccb[0], ccb[16], ccb[17]) = (flags & 2, 0, 0);
            ccb[18..30].copy_from_slice(&[
                0x28 | flags & 2,
                0,
                0,
                0,
                0,
                flags & 0xf,
                0,
                0,
                blocks as u8,
                0,
                0,
                0,
            ]);
            let bytes = 512 * blocks;
            let segments = [bytes / 2, address, bytes - bytes / 2, address ^ 0x8000];
            let list: Vec<u8> = segments.iter().flat_map(|word| word.to_le_bytes()).collect();
            guest.poke(LISTS + 64 * u64::from(slot), &list);
            let (len, data) =
                if ccb[0] == 2 { (16, LISTS as u32 + 64 * u32::from(slot)) } else { (bytes, address) };
            ccb[4..8].copy_from_slice(&len.to_le_bytes());
            ccb[8..12].copy_from_slice(&data.to_le_bytes());
        }
        ccb[36..40].copy_from_slice(&address.to_le_bytes());
        guest.poke(place, &ccb);
    }
    let [a, b, c, d] = (place as u32).to_le_bytes();
    let action = if flags & 0x40 == 0 { 1 } else { flags % 4 };
    guest.poke(MAILBOXES + 8 * u64::from(*next), &[a, b, c, d, 0, 0, 0, action]);
    *next = (*next + 1) % COUNT;
    if flags & 0x10 == 0 {
        guest.write(1, 1, &[2]);
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut guest = Guest::new(AdapterKind::BusLogic, &[0, 3]);
    if input.u8() & 0x80 != 0 {
        up(&mut guest);
    }
    let mut next = 0;
    while !input.is_empty() {
        let code = input.u8();
        guest.now.0 += 10_000;
        match code & 0xf {
            0 | 1 => {
                let (place, value) = (input.u8(), input.u8());
                guest.write(place >> 6, u64::from(place & 0x3f), &[value]);
            }
            2 => {
                let (place, mut data) = (input.u8(), [0]);
                guest.device.bar_read(place >> 7, u64::from(place & 3), &mut data, guest.now);
            }
            3 => {
                // As a virtual CPU's thread, which leaves what it may not do.
                let (place, data) = (input.u8(), [input.u8()]);
                let (bar, offset) = (place >> 7, u64::from(place & 3));
                if guest.device.access_kind(bar, offset, Some(&data)) != AccessKind::Command {
                    guest.write(bar, offset, &data);
                }
            }
            4 => {
                // A command of the adapter with its parameters, whose reply is read.
                let parameters = input.u8() % 16;
                for byte in input.bytes(1 + usize::from(parameters)) {
                    guest.write(1, 1, &[*byte]);
                }
                for _ in 0..code >> 4 {
                    guest.device.bar_read(1, 1, &mut [0], guest.now);
                }
            }
            5..=9 => request(&mut guest, &mut input, &mut next),
            10 => guest.poke_from(u64::from(input.u16()) << 2, &mut input),
            11 => guest.turn(),
            12 => guest.own(input.u8()),
            13 => guest.behaviour.hold.store(code & 0x20 != 0, Relaxed),
            14 => guest.behaviour.failing.store(input.u8(), Relaxed),
            _ => {
                // Incoming mailboxes are taken, and the interrupt is acknowledged.
                guest.poke(MAILBOXES + 8 * u64::from(COUNT), &[0; 8 * COUNT as usize]);
                guest.write(1, 0, &[0x20]);
                if code & 0x80 != 0 {
                    up(&mut guest);
                    next = 0;
                }
            }
        }
    }
    guest.end();
}
