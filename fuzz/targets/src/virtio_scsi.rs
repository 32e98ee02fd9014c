//! The virtio SCSI host under any guest.
//!
//! With the highest bit of the first byte set, the driver is up before. What follows is taken for what the guest does: commands, task
//! management, buffers for events, doorbells, accesses to registers, and changes of rings and descriptors.

use paradisk_devices::AdapterKind;
use paradisk_devices::virtio::scsi::spec::{CDB_SIZE, SENSE_SIZE};

use crate::common::device::Guest;
use crate::common::input::Input;
use crate::common::virtio::{Driver, HEADERS, data};

const CONTROL: u16 = 0;
const EVENTS: u16 = 1;
const REQUESTS: u16 = 2;
/// Bytes of a request with a CDB of 32 bytes, and of a response with 96 bytes of sense data.
const REQUEST: u32 = 51;
const RESPONSE: u32 = 108;

fn lun(how: u8) -> [u8; 8] {
    match how % 8 {
        0 => [0xc1, 1, 0, 0, 0, 0, 0, 0],
        1 => [1, how >> 3, 0x40, 1, 0, 0, 0, 0],
        2 => [how; 8],
        n => [1, 3 * (n & 1), 0, 0, 0, 0, 0, 0],
    }
}

fn command(driver: &mut Driver, input: &mut Input<'_>, code: u8) {
    let (how, place) = (input.u8(), input.u8());
    let slot = HEADERS + 256 * u64::from(how & 0xf);
    let mut request = [0; REQUEST as usize];
    request[..8].copy_from_slice(&lun(place));
    (request[8], request[16]) = (how & 7, input.u8() & 3);
    let write = if how & 0x40 != 0 {
        // READ or WRITE (10) of blocks that are there.
        let (write, blocks) = (code & 0x10 != 0, how >> 4 & 3);
        request[19] = if write { 0x2a } else { 0x28 };
        (request[24], request[27]) = (place % 64, blocks);
        write
    } else {
        let cdb = input.bytes(usize::from(code >> 5) * 4);
        request[19..19 + cdb.len()].copy_from_slice(cdb);
        code & 0x10 != 0
    };
    driver.guest.poke(slot, &request);
    let answer = (slot + 128, RESPONSE, true);
    let data = data(input, code >> 5, !write);
    let mut pieces = vec![(slot, REQUEST, false)];
    if write {
        pieces.extend(data);
        pieces.push(answer);
    } else {
        pieces.push(answer);
        pieces.extend(data);
    }
    driver.put(REQUESTS, &pieces, how & 0x80 != 0);
    if how & 0x20 == 0 {
        driver.kick(REQUESTS);
    }
}

/// Task management, or notifications.
fn control(driver: &mut Driver, input: &mut Input<'_>) {
    let (kind, function, place) = (input.u8() % 4, input.u8() % 10, input.u8());
    let slot = HEADERS + 0x2000 + 64 * u64::from(place & 0xf);
    let mut request = [0; 24];
    (request[0], request[4], request[16]) = (kind, function, input.u8() & 7);
    request[8..16].copy_from_slice(&lun(place));
    driver.guest.poke(slot, &request);
    let (len, capacity) = (u32::from(input.u8() % 32), u32::from(input.u8() % 16));
    driver.put(CONTROL, &[(slot, len, false), (slot + 32, capacity, true)], place & 0x80 != 0);
    driver.kick(CONTROL);
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut driver = Driver::new(Guest::new(AdapterKind::VirtioScsi, &[0, 3]), 3);
    let first = input.u8();
    if first & 0x80 != 0 {
        driver.up(u32::from(first & 0x30) << 24 | 6);
    }
    while !input.is_empty() {
        let code = input.u8();
        driver.guest.now.0 += 10_000;
        match code & 0xf {
            0..=4 => command(&mut driver, &mut input, code),
            5 => control(&mut driver, &mut input),
            6 => {
                let (at, len) = (u64::from(input.u16()) << 2, u32::from(input.u8() % 20));
                driver.put(EVENTS, &[(at, len, true)], code & 0x80 != 0);
                driver.kick(EVENTS);
            }
            7 => {
                let offset = [SENSE_SIZE, CDB_SIZE, 0, 9][usize::from(code >> 6)];
                let value = input.u16();
                driver.configure(offset as u8, value);
            }
            _ => driver.act(code, &mut input),
        }
    }
    driver.guest.end();
}
