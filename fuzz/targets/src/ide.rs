//! The IDE function under any guest.
//!
//! The first byte of the input says whether ports are fixed. What follows is taken for what the guest does: accesses to registers, whole
//! commands with and without the bus master, strings of the data port, and changes of memory, tables of regions among it. Disks hold
//! requests back, and fail some.

use std::sync::atomic::Ordering::Relaxed;

use paradisk_devices::AdapterKind;

use crate::common::device::{Guest, MEMORY};
use crate::common::input::Input;

/// Offset of a channel's control register in its block: in compatibility mode, in native mode.
const CONTROL: [u64; 2] = [0, 2];
const TABLE: u64 = 4096;

/// The registers of a command, then its code: most often one that the drive implements.
fn command(guest: &mut Guest, input: &mut Input<'_>, block: u8) {
    const CODES: [u8; 24] = [
        0x20, 0x24, 0x25, 0x29, 0x30, 0x34, 0x35, 0x39, 0x40, 0x42, 0xc4, 0xc5, 0xc6, 0xc8, 0xca, 0xe7, 0xea,
        0xec, 0xef, 0x06, 0x3d, 0xce, 0x91, 0x08,
    ];
    // Both bytes of the registers that have two.
    for register in [2, 2, 3, 3, 4, 4, 5, 5, 1, 6] {
        let value = input.u8();
        // Small numbers of sectors, and sectors that are there.
        let value = if matches!(register, 4 | 5) { value & 1 } else { value };
        guest.write(block, register, &[value]);
    }
    let code = input.u8();
    let code = *CODES.get(usize::from(code)).unwrap_or(&code);
    guest.write(block, 7, &[code]);
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let compatible = input.u8() & 1 == 0;
    let kind = if compatible { AdapterKind::Ide } else { AdapterKind::IdeNative };
    let mut guest = Guest::new(kind, &[0, 1, 2]);
    while !input.is_empty() {
        let code = input.u8();
        let channel = code >> 4 & 1;
        let block = 2 * channel;
        let engine = 8 * u64::from(channel);
        guest.now.0 += 10_000;
        match code & 0xf {
            0 | 1 => {
                let (place, value) = (input.u8(), input.u8());
                guest.write(place >> 5, u64::from(place & 0x1f), &[value]);
            }
            2 => {
                let (place, width) = (input.u8(), [1, 2, 4, 1][usize::from(input.u8() & 3)]);
                let mut data = [0; 4];
                guest.device.bar_read(place >> 5, u64::from(place & 0x1f), &mut data[..width], guest.now);
            }
            3 | 4 => command(&mut guest, &mut input, block),
            5 | 6 => {
                // A table of two regions, a command, and the bus master before or after it.
                let (address, len, flags) = (input.u16(), input.u16(), input.u8());
                let mut table = [0; 16];
                table[..4].copy_from_slice(&(u32::from(address) << 2).to_le_bytes());
                table[4..6].copy_from_slice(&len.to_le_bytes());
                table[7] = flags & 0x80;
                table[8..12].copy_from_slice(&(MEMORY as u32 - u32::from(len)).to_le_bytes());
                table[12..].copy_from_slice(&[0, 2, 0, flags << 1]);
                guest.poke(TABLE, &table);
                guest.write(4, engine + 4, &(TABLE as u32).to_le_bytes());
                guest.write(4, engine + 2, &[6]);
                let start = 1 | flags & 8;
                if flags & 1 == 0 {
                    guest.write(4, engine, &[start]);
                }
                command(&mut guest, &mut input, block);
                guest.write(4, engine, &[start]);
            }
            7 => {
                let mut data = [0; 2048];
                let len = usize::from(input.u16()) % (data.len() + 1);
                let width = [1, 2, 4, 2][usize::from(input.u8() & 3)];
                let len = len / width * width;
                guest.device.port_read_string(block, 0, width, &mut data[..len], guest.now);
            }
            8 => {
                let len = usize::from(input.u16()) % 2049;
                let width = [1, 2, 4, 2][usize::from(input.u8() & 3)];
                let data = vec![input.u8(); len / width * width];
                guest.device.port_write_string(block, 0, width, &data, guest.now);
            }
            9 => guest.poke_from(u64::from(input.u16()) << 2, &mut input),
            10 => guest.turn(),
            11 => guest.own(input.u8()),
            12 => guest.behaviour.hold.store(code & 0x20 != 0, Relaxed),
            13 => guest.behaviour.failing.store(input.u8(), Relaxed),
            14 => guest.write(4, engine, &[code >> 5 & 1]),
            _ => {
                let control = CONTROL[usize::from(!compatible)];
                guest.write(block + 1, control, &[input.u8()]);
            }
        }
    }
    guest.end();
}
