//! A guest that writes random values anywhere, then initializes the device, which must work.

use super::*;
use crate::device::HotPlug;
use crate::testing::{Random, effort, seeds};

fn random_lun(random: &mut Random) -> [u8; 8] {
    match random.below(12) {
        0 => random.value().to_le_bytes(),
        1 => lun::REPORT_LUNS,
        2 => [1, random.below(8) as u8, 0x40, random.below(9) as u8, 0, 0, 0, 0],
        3..6 => lun::lun(THERE),
        _ => lun::lun(HERE),
    }
}

fn random_cdb(random: &mut Random) -> Vec<u8> {
    match random.below(10) {
        0..3 => transfer10(false, random.below(2048) as u32, random.below(9) as u16).to_vec(),
        3..6 => transfer10(true, random.below(2048) as u32, random.below(9) as u16).to_vec(),
        6 => TEST_UNIT_READY.to_vec(),
        7 => vec![random.pick(&[0x12, 0xa0, 0x25, 0x35, 0x1a, 0x89, 0x93]), 0, 0, 0, 200, 0, 0, 0, 0, 8],
        _ => (0..32).map(|_| random.next() as u8).collect(),
    }
}

fn random_request(guest: &mut Guest, random: &mut Random) {
    let n = random.below(60);
    let (lun, cdb) = (random_lun(random), random_cdb(random));
    let header = guest.header(n, lun, random.below(4) as u8, &cdb);
    let mut pieces = vec![header];
    let data: Vec<_> = (0..random.below(3)).map(|_| piece(random)).collect();
    // Mostly one way.
    let one_way = random.below(8) > 0;
    let flags = if cdb[0] == 0x2a { 0 } else { WRITE };
    for mut data in data {
        if one_way && data.flags <= WRITE {
            data.flags = flags;
        }
        pieces.push(data);
    }
    pieces.push(guest.answer(n));
    if flags == WRITE && pieces.len() > 2 {
        let answer = pieces.len() - 1;
        pieces.swap(1, answer);
    }
    let queue = FIRST + random.below(2) as u16;
    guest.put_random(queue, pieces, random);
}

fn random_function(guest: &mut Guest, random: &mut Random) {
    let kind = if random.below(6) == 0 { random.below(4) as u32 } else { VIRTIO_SCSI_T_TMF };
    let id = random.below(60).into();
    let function = TaskManagement { subtype: (random.below(9) as u32).into(), lun: random_lun(random), id };
    let bytes = [&kind.to_le_bytes(), function.as_bytes()].concat();
    let at = REQUESTS - 0x4000 + random.below(32) * 64;
    guest.memory.write_slice(&bytes, GuestAddress(at)).unwrap();
    let capacity = if random.below(10) == 0 { random.below(6) as u32 } else { 8 };
    guest.put_random(CONTROL, vec![reads(at, bytes.len() as u32), writes(at + 32, capacity)], random);
    guest.kick(CONTROL);
}

fn hot_plug(guest: &mut Guest, random: &mut Random) {
    let address = Address { target: 5, lun: random.below(3) as u16 };
    let now = guest.now;
    if random.below(2) == 0 {
        let unit = unit(&guest.hold);
        let _ = guest.device.attach(address, unit);
    } else {
        guest.device.detach(address, now);
    }
}

fn own_step(guest: &mut Guest, random: &mut Random) {
    match random.below(61) {
        0..50 => random_request(guest, random),
        50 => {
            let size =
                |random: &mut Random, usual| if random.below(8) == 0 { random.below(300) } else { usual };
            let (sense, cdb) = (size(random, 96), size(random, 32));
            guest.write(DEVICE_CFG + SENSE_SIZE, 4, sense);
            guest.write(DEVICE_CFG + CDB_SIZE, 4, cdb);
        }
        51..55 => random_function(guest, random),
        55..58 => {
            let event = vec![writes(DATA + random.below(MIB / 2), random.below(20) as u32)];
            guest.put_random(EVENTS, event, random);
            guest.kick(EVENTS);
        }
        _ => hot_plug(guest, random),
    }
}

#[test]
fn anything_goes_and_a_clean_start_follows() {
    let (mut functions, mut events) = (0, 0);
    for (seed, tasks) in seeds(48) {
        let mut random = Random::new(seed);
        let mut guest = Guest::with(ALL, Config { queues: 2, tasks, ..Config::default() });
        guest.do_anything(&mut random, |guest, random| {
            own_step(guest, random);
            functions += guest.completions(CONTROL).len();
            events += guest.completions(EVENTS).len();
        });
        guest.clear_unit_attention();
        guest.check_io();
        assert_eq!(guest.in_flight(), 0);
    }
    assert!(
        functions > 400 * effort() as usize && events > 60 * effort() as usize,
        "{functions} functions, {events} events"
    );
}
