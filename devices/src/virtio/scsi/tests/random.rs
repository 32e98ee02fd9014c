//! A guest that writes anything anywhere, and then comes up as if nothing had happened.

use std::time::{Duration, Instant};

use super::*;
use crate::HotPlug;
use crate::testing::Random;

fn piece(random: &mut Random) -> Piece {
    let address = DATA + random.below(MIB - 65536);
    let len = if random.below(2) == 0 { 4096 } else { random.below(9) * 512 } as u32;
    let mut piece = if random.below(2) == 0 { reads(address, len) } else { writes(address, len) };
    match random.below(30) {
        0 => piece.address = random.value(),
        1 => piece.len = random.value() as u32,
        2 => piece.flags = random.value() as u16,
        3 => piece.flags |= INDIRECT,
        _ => {}
    }
    piece
}

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
        0..3 => transfer(false, random.below(2048) as u32, random.below(9) as u16).to_vec(),
        3..6 => transfer(true, random.below(2048) as u32, random.below(9) as u16).to_vec(),
        6 => TEST_UNIT_READY.to_vec(),
        7 => vec![
            [0x12, 0xa0, 0x25, 0x35, 0x1a, 0x89, 0x93][random.below(7) as usize],
            0,
            0,
            0,
            200,
            0,
            0,
            0,
            0,
            8,
        ],
        _ => (0..32).map(|_| random.next() as u8).collect(),
    }
}

fn put(guest: &mut Guest, random: &mut Random, queue: u16, mut pieces: Vec<Piece>) {
    if random.below(40) == 0 {
        let at = random.below(pieces.len() as u64) as usize;
        pieces.remove(at);
    }
    if pieces.is_empty() || guest.rings[usize::from(queue)].size == 0 {
        return;
    }
    if random.below(3) == 0 && pieces.len() < 16 {
        guest.put_indirect(queue, &pieces);
    } else {
        guest.put(queue, &pieces);
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
    put(guest, random, queue, pieces);
}

fn random_function(guest: &mut Guest, random: &mut Random) {
    let kind = if random.below(6) == 0 { random.below(4) as u32 } else { VIRTIO_SCSI_T_TMF };
    let id = random.below(60).into();
    let function = TaskManagement { subtype: (random.below(9) as u32).into(), lun: random_lun(random), id };
    let bytes = [&kind.to_le_bytes(), function.as_bytes()].concat();
    let at = REQUESTS - 0x4000 + random.below(32) * 64;
    guest.memory.write_slice(&bytes, GuestAddress(at)).unwrap();
    let room = if random.below(10) == 0 { random.below(6) as u32 } else { 8 };
    put(guest, random, CONTROL, vec![reads(at, bytes.len() as u32), writes(at + 32, room)]);
    guest.kick(CONTROL);
}

/// The driver again, with any features and sizes.
fn up(guest: &mut Guest, random: &mut Random) {
    guest.device.config_write(4, &6u16.to_le_bytes());
    guest.bring_up(random.next() | Features::VERSION_1.bits(), 4 << random.below(5));
    if random.below(2) == 0 {
        guest.enable_msix();
    }
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

fn step(guest: &mut Guest, random: &mut Random) {
    let queue = random.below(4) as u16;
    match random.below(100) {
        0..50 => random_request(guest, random),
        50..62 => guest.kick(queue),
        62..67 => guest.device.on_completions(guest.now),
        67..70 => drop(guest.completions(queue)),
        70..73 => {
            let _ = guest.device.before_sleep(guest.now);
        }
        73..75 => guest.hold.set(random.below(3) == 0),
        75 => {
            // Descriptors, rings, headers full of anything.
            let address = (RINGS + random.below(DATA - RINGS)) & !7;
            guest.memory.write_obj(random.value(), GuestAddress(address)).unwrap();
        }
        76 => guest.set_used_event(queue, random.value() as u16),
        77..80 => guest.random_access(random),
        80 => {
            let policy = [Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops][random.below(4) as usize];
            guest.device.set_coalescing(Coalescing::policy(policy));
        }
        81 => {
            guest.write(QUEUE_SELECT, 2, random.below(5));
            guest.write([QUEUE_RESET, QUEUE_MSIX_VECTOR][random.below(2) as usize], 2, random.below(4));
        }
        82 => guest.device.quiesce(guest.now),
        83 => guest.device.config_write(4, &[random.below(8) as u8, 0]),
        84 => {
            let size =
                |random: &mut Random, usual| if random.below(8) == 0 { random.below(300) } else { usual };
            let (sense, cdb) = (size(random, 96), size(random, 32));
            guest.write(DEVICE_CFG + SENSE_SIZE, 4, sense);
            guest.write(DEVICE_CFG + CDB_SIZE, 4, cdb);
        }
        85..89 => random_function(guest, random),
        89..92 => {
            let event = vec![writes(DATA + random.below(MIB / 2), random.below(20) as u32)];
            put(guest, random, EVENTS, event);
            guest.kick(EVENTS);
        }
        92..95 => hot_plug(guest, random),
        95..97 => {
            if random.below(4) == 0 || !guest.device.transport.live() {
                up(guest, random);
            }
        }
        _ => guest.now.0 += random.below(5_000_000),
    }
}

#[test]
fn anything_goes_and_a_clean_start_follows() {
    let (mut functions, mut events) = (0, 0);
    for seed in 1..=4u64 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut guest = Guest::with(ALL, Config { queues: 2, tasks: 48, ..Config::default() });
        let mut longest = Duration::ZERO;
        for _ in 0..50_000 {
            let begin = Instant::now();
            step(&mut guest, &mut random);
            longest = longest.max(begin.elapsed());
            functions += guest.completions(CONTROL).len();
            events += guest.completions(EVENTS).len();
        }
        assert!(longest.as_secs() < 2, "a step took {longest:?}");
        let stats = guest.device.stats();
        assert!(stats.requests > 5_000 && stats.completions > 4_000, "the test lost its guest: {stats:?}");
        assert!(stats.errors > 500 && stats.interrupts > 500, "the test lost its teeth: {stats:?}");
        guest.hold.set(false);
        guest.device.reset(guest.now);
        guest.device.config_write(4, &6u16.to_le_bytes());
        guest.bring_up(ALL, 64);
        guest.clear_unit_attention();
        guest.check_io();
        assert_eq!(guest.in_flight(), 0);
    }
    assert!(functions > 1_000 && events > 150, "{functions} functions, {events} events");
}
