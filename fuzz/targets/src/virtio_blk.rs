//! The virtio block device under any guest.
//!
//! With the highest bit of the first byte set, the driver is up before. What follows is taken for what the guest does: requests of each
//! type in chains of any pieces, doorbells, accesses to registers, and changes of rings and descriptors.

use paradisk_devices::AdapterKind;
use paradisk_devices::virtio::blk::spec::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};

use crate::common::device::Guest;
use crate::common::input::Input;
use crate::common::virtio::{Driver, HEADERS, data};

fn request(driver: &mut Driver, input: &mut Input<'_>, code: u8) {
    const TYPES: [u32; 6] = [
        VIRTIO_BLK_T_IN,
        VIRTIO_BLK_T_OUT,
        VIRTIO_BLK_T_FLUSH,
        VIRTIO_BLK_T_GET_ID,
        VIRTIO_BLK_T_DISCARD,
        VIRTIO_BLK_T_WRITE_ZEROES,
    ];
    let (how, kind) = (input.u8(), input.u8());
    let kind = *TYPES.get(usize::from(kind)).unwrap_or(&kind.into());
    let slot = HEADERS + 64 * u64::from(how & 0xf);
    let sector = if how & 0x40 == 0 { u64::from(input.u8() % 128) } else { u64::from(input.u16()) << 48 };
    driver.guest.poke(slot, &[u64::from(kind).to_le_bytes(), sector.to_le_bytes()].concat());
    let mut pieces = vec![(slot, if how & 0xf == 0xf { u32::from(input.u8()) } else { 16 }, false)];
    if matches!(kind, VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES) {
        // Ranges: sector, count, flags.
        let mut ranges = Vec::new();
        for _ in 0..code >> 5 {
            ranges.extend(u64::from(input.u8()).to_le_bytes());
            ranges.extend(u32::from(input.u8()).to_le_bytes());
            ranges.extend(u32::from(input.u8() & 3).to_le_bytes());
        }
        driver.guest.poke(slot + 0x2000, &ranges);
        pieces.push((slot + 0x2000, ranges.len() as u32, false));
    } else {
        pieces.extend(data(input, code >> 5, kind == VIRTIO_BLK_T_IN || kind == VIRTIO_BLK_T_GET_ID));
    }
    if how & 0x30 != 0x30 {
        pieces.push((slot + 32, 1, true));
    }
    driver.put(0, &pieces, how & 0x80 != 0);
    if code & 0x10 == 0 {
        driver.kick(0);
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut driver = Driver::new(Guest::new(AdapterKind::VirtioBlk, &[0]), 1);
    let first = input.u8();
    if first & 0x80 != 0 {
        // Features of the rings, flush, discard, write of zeros, configurable cache.
        driver.up(u32::from(first & 0x30) << 24 | 0x6a00);
    }
    while !input.is_empty() {
        let code = input.u8();
        driver.guest.now.0 += 10_000;
        if code & 8 == 0 {
            request(&mut driver, &mut input, code);
        } else {
            driver.act(code, &mut input);
        }
    }
    driver.guest.end();
}
