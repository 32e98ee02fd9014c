//! The storage protocol: requests, their answers, invalid packets, absent units, resets, hot-plug.

use super::*;
use crate::device::HotPlug;
use crate::testing::attach_nameless;

const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 36, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

/// A request for a unit at this path and target.
fn elsewhere(payload: [u64; 8], path: u64, target: u64) -> [u64; 8] {
    let mut payload = payload;
    payload[2] |= path << 8 | target << 16;
    payload
}

#[test]
fn data_in_pages_anywhere_reach_the_right_bytes() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 8192, 1);
    assert_eq!(guest.run(1, &transfer_at(2, transfer(true, 0, 16, 16), DATA)).end(), (1, 0, 8192));
    // An offset in the first page, contiguous and other pages, the end of a region.
    let pages = [0x50, 0x51, 0xff];
    let read = with_pages(3, transfer(false, 0, 16, 16), 0xe00, 8192, &pages);
    assert_eq!(guest.run(1, &read).end(), (1, 0, 8192));
    let found = [guest.bytes(0x5_0e00, 512 + 4096), guest.bytes(0xf_f000, 3584)].concat();
    assert!(found == data);
    let across = with_pages(4, transfer(false, 0, 16, 16), 0, 8192, &[0xff, 0x100]);
    assert_eq!(guest.run(1, &across).end(), (1, 0, 8192));
    assert!(guest.bytes(0xf_f000, 8192) == data);
    // Less data than the range has.
    let mark = guest.fill(0x6_0200, 512, 7);
    let short = with_pages(5, transfer(false, 0, 16, 1), 0, 8192, &[0x60, 0x61]);
    assert_eq!(guest.run(1, &short).end(), (1, 0, 512));
    assert_eq!((guest.bytes(0x6_0000, 512), guest.bytes(0x6_0200, 512)), (data[..512].to_vec(), mark));
}

#[test]
fn packets_that_make_no_sense_are_answered() {
    let mut guest = Guest::new();
    let read = |len: u32| srb(0, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 1, len);
    for words in [
        // More data than the range, or without a range; pages outside memory, or too few pages.
        with_pages(1, read(513), 0, 512, &[0x100]),
        in_band(1, read(512)),
        with_pages(1, read(512), 0, 512, &[MEMORY_END >> 12]),
        with_pages(1, read(512), 0, 512, &[u64::MAX]),
        with_pages(1, read(512), 0, 512, &[1 << 52]),
        with_pages(1, read(512), 0xe01, 512, &[0x100]),
        with_pages(1, read(512), 4096, 512, &[0x100, 0x101]),
        with_pages(1, read(512), 0, 512, &[]),
        with_pages(1, read(512), u32::MAX.into(), u32::MAX.into(), &[0x100]),
        // Two ranges.
        vec![header(9, 5, 8), 1, 2 << 32, 512, 0x100, 512, 0x101].into_iter().chain(read(512)).collect(),
        // A CDB without bytes, and one that is too long.
        in_band(1, srb(0, &[], 2, 0)),
        in_band(1, {
            let mut payload = srb(0, &TEST_UNIT_READY, 2, 0);
            payload[2] |= 17 << 32;
            payload
        }),
    ] {
        let answer = guest.run(1, &words);
        assert_eq!((answer.end(), answer.u32(8)), ((6, 0, 0), 0xc000_000d), "{words:x?}");
    }
    // A payload that is too short for a storage packet, and unknown operations.
    let cut = guest.run(1, &[header(6, 0, 7), 8, 3, 0, 0, 0, 0, 0, 0]);
    assert_eq!((cut.u32(0), cut.u32(8)), (1, 0xc000_000d));
    for operation in [0, 1, 2, 11, 12, 14, 99] {
        assert_eq!(guest.control(1, vstor(operation, 0)), 0xc000_0010, "{operation}");
    }
    // Packets that request no answer, and packets of other types.
    for first in [header(6, 0, 8) & !(1 << 48), header(0xb, 0, 8), header(7, 0, 8)] {
        let mut words = in_band(1, srb(0, &TEST_UNIT_READY, 2, 0));
        words[0] = first;
        assert!(guest.put(1, &words) && guest.run_all(1).is_empty());
    }
    guest.check_io(1);
}

#[test]
fn a_transaction_may_be_any_number() {
    let mut guest = Guest::new();
    for transaction in [0, 1, u64::MAX, 0xffff_8880_1234_5678] {
        guest.run(1, &in_band(transaction, srb(0, &TEST_UNIT_READY, 2, 0)));
    }
}

#[test]
fn ends_have_their_status() {
    let mut guest = Guest::new();
    // An operation code that no disk has: sense data in the answer.
    let answer = guest.run(1, &in_band(1, srb(0, &[0xee; 16], 2, 0)));
    assert_eq!(answer.end(), (0x84, 2, 0));
    assert_eq!((answer.payload[21], &answer.payload[28..31]), (18, &[0x70, 0, 5][..]));
    assert_eq!(answer.payload[40], 0x20, "INVALID COMMAND OPERATION CODE");
    // A command with more data than the buffer.
    let mut over = transfer(false, 0, 0, 2);
    over[3] = over[3] & !0xffff_ffff | 512;
    assert_eq!(guest.run(1, &transfer_at(1, over, DATA)).end(), (0x12, 0, 512));
    // The direction of the request is not that of the command: no data are transferred.
    let mut wrong = transfer(true, 0, 0, 1);
    wrong[2] |= 1 << 48;
    assert_eq!(guest.run(1, &transfer_at(1, wrong, DATA)).end(), (6, 0, 0));
    // Fewer data than the buffer has.
    let inquiry = srb(0, &[0x12, 0, 0, 0, 255, 0], 1, 255);
    let (srb_status, scsi, len) = guest.run(1, &transfer_at(1, inquiry, DATA)).end();
    assert!((srb_status, scsi) == (1, 0) && (36..255).contains(&len));
    assert_eq!(guest.device.stats().completions, guest.device.stats().requests);
}

#[test]
fn units_that_are_not_there_are_not_found() {
    let mut guest = Guest::new();
    let places = [(0, 0, 5), (0, 0, 63), (0, 0, 64), (0, 0, 255), (1, 0, 0), (0, 1, 0), (0, 1, 3), (7, 1, 0)];
    for (path, target, lun) in places {
        let at = |payload| elsewhere(payload, path, target);
        guest.fill(DATA, 512, 0xaa);
        let answer = guest.run(1, &transfer_at(1, at(srb(lun, &INQUIRY, 1, 36)), DATA));
        assert_eq!(answer.end(), (1, 0, 36), "{path} {target} {lun}");
        assert_eq!(guest.bytes(DATA, 1), [0x7f]);
        let answer = guest.run(1, &transfer_at(1, at(srb(lun, &REPORT_LUNS, 1, 256)), DATA));
        let luns: &[u8] = if (path, target) == (0, 0) { &[0, 3] } else { &[] };
        assert_eq!(answer.end(), (1, 0, 8 + 8 * luns.len() as u32));
        assert_eq!(u32::from_be_bytes(guest.bytes(DATA, 4).try_into().unwrap()), 8 * luns.len() as u32);
        for (index, lun) in (0..).zip(luns) {
            assert_eq!(guest.bytes(DATA + 8 + 8 * index, 8), [0, *lun, 0, 0, 0, 0, 0, 0]);
        }
        let answer = guest.run(1, &in_band(1, at(srb(lun, &TEST_UNIT_READY, 2, 0))));
        assert_eq!((answer.end(), answer.u32(8)), ((0x20, 0, 0), 0xc000_00c0));
        let answer = guest.run(1, &transfer_at(1, at(transfer(false, lun, 0, 1)), DATA));
        assert_eq!(answer.end(), (0x20, 0, 0));
    }
}

/// The same without any unit.
#[test]
fn a_controller_without_units_is_scanned() {
    let mut guest = Guest::new();
    for lun in LUNS {
        guest.device.detach(Address { target: lun, lun: 0 }, guest.now);
    }
    assert_eq!(guest.run_all(1).iter().map(|packet| packet.u32(0)).collect::<Vec<_>>(), [11, 11]);
    assert_eq!(guest.run(1, &transfer_at(1, srb(0, &INQUIRY, 1, 36), DATA)).end(), (1, 0, 36));
    assert_eq!(guest.bytes(DATA, 1), [0x7f]);
    assert_eq!(guest.run(1, &transfer_at(1, srb(0, &REPORT_LUNS, 1, 256), DATA)).end(), (1, 0, 8));
}

#[test]
fn requests_before_the_initialization_has_ended_fail() {
    let mut guest = Guest::powered(config(Policy::Batch));
    assert!(guest.contact(0));
    guest.post(&[3, 0]);
    guest.offers();
    assert_eq!((guest.share(1, 1), guest.open(1, 1, 0)), (0, 0));
    for (operation, content) in [(7, 0), (9, 0x0602), (10, 0), (8, 0)] {
        let answer = guest.run(1, &in_band(1, srb(0, &TEST_UNIT_READY, 2, 0)));
        assert_eq!((answer.end(), answer.u32(8)), ((4, 0, 0), 0xc000_0184));
        assert_eq!(guest.control(1, vstor(6, 0)), 0xc000_0010);
        assert_eq!(guest.control(1, vstor(operation, content)), 0);
    }
    guest.clear_unit_attention(&LUNS);
    guest.check_io(1);
}

#[test]
fn a_bus_reset_is_answered_at_once_and_requests_end_when_the_disk_has_completed_them() {
    for tasks in [1, 4, 256] {
        let mut guest = Guest::up(Config { tasks, ..config(Policy::Batch) });
        guest.hold.set(true);
        guest.put_reads(10);
        assert!(guest.put(1, &in_band(CONTROL, vstor(6, 0))));
        let early = guest.run_all(1);
        assert_eq!((early[0].transaction, early[0].u32(8)), (CONTROL, 0));
        for packet in &early[1..] {
            assert_eq!(packet.end(), (0x0e, 0, 0), "those that the disk did not have yet");
        }
        assert_eq!(guest.hold.waits(), 0);
        guest.hold.set(false);
        let late = guest.run_all(1);
        let mut all: Vec<u64> = early[1..].iter().chain(&late).map(|packet| packet.transaction).collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>(), "{tasks}");
        assert!(late.iter().all(|packet| packet.end() == (0x0e, 0, 0)));
        guest.clear_unit_attention(&LUNS);
        guest.check_io(1);
    }
}

#[test]
fn a_unit_reset_ends_the_requests_of_the_unit() {
    let mut guest = Guest::up(Config { tasks: 4, ..config(Policy::Batch) });
    guest.hold.set(true);
    guest.put_reads(10);
    let mut reset = vstor(4, 0);
    reset[2] = 3 << 24;
    assert!(guest.put(1, &in_band(CONTROL, reset)));
    let mut ended = guest.run_all(1);
    guest.hold.set(false);
    ended.extend(guest.run_all(1));
    for packet in ended.iter().filter(|packet| packet.transaction != CONTROL) {
        let status = if packet.transaction % 2 == 1 { 0x0e } else { 1 };
        assert_eq!(packet.end().0, status, "{packet:?}");
    }
    assert_eq!(ended.len(), 11);
}

#[test]
fn units_come_and_go() {
    let mut guest = Guest::new();
    let at = |target| Address { target, lun: 0 };
    guest.device.attach(at(7), unit(&guest.hold)).unwrap();
    let packet = guest.run_all(1);
    let [packet] = &*packet else { panic!("{packet:?}") };
    assert_eq!((packet.kind, packet.flags, packet.transaction, packet.u32(0)), (6, 0, 0, 11));
    assert_eq!(packet.payload.len(), 64);
    guest.clear_unit_attention(&[7, 0, 3]);
    assert_eq!(guest.run(1, &transfer_at(1, transfer(false, 7, 0, 1), DATA)).end(), (1, 0, 512));
    for target in [7, 64, 200] {
        let refused = guest.device.attach(at(target), unit(&guest.hold)).unwrap_err();
        assert!(refused.to_string().starts_with(&format!("target {target}")), "{refused}");
    }
    assert!(guest.device.attach(Address { target: 1, lun: 1 }, unit(&guest.hold)).is_err());
    guest.hold.set(true);
    assert!(guest.put(1, &transfer_at(2, transfer(false, 7, 0, 1), DATA)));
    assert!(guest.device.detach(at(7), guest.now) && guest.device.detaching(at(7)));
    assert!(!guest.device.detach(at(7), guest.now) && !guest.device.detach(at(64), guest.now));
    assert_eq!(guest.run_all(1).iter().map(|packet| packet.u32(0)).collect::<Vec<_>>(), [11]);
    // The guest sends TEST UNIT READY to all units that it knows.
    let ready = guest.run(1, &in_band(3, srb(7, &TEST_UNIT_READY, 2, 0)));
    assert_eq!(ready.end().0, 0x20);
    guest.hold.set(false);
    assert_eq!(guest.run_all(1).iter().map(Received::end).collect::<Vec<_>>(), [(0x0e, 0, 0)]);
    assert!(!guest.device.detaching(at(7)));
    guest.clear_unit_attention(&LUNS);
    guest.check_io(1);
}

#[test]
fn a_unit_that_comes_before_the_driver_is_not_announced() {
    let mut guest = Guest::powered(config(Policy::Batch));
    let attach = |guest: &mut Guest, target| {
        guest.device.attach(Address { target, lun: 0 }, unit(&guest.hold)).unwrap();
    };
    attach(&mut guest, 9);
    guest.bring_up();
    assert!(guest.run_all(1).is_empty());
    // If the ring is full, the packet follows later, once.
    let (memory, rings) = (guest.memory.clone(), guest.rings[&1].clone());
    for _ in 0..200 {
        if rings.get(&memory, 1, PENDING) == 0 {
            guest.put(1, &in_band(1, srb(0, &TEST_UNIT_READY, 2, 0)));
        }
    }
    assert_eq!(rings.get(&memory, 1, PENDING), 88);
    (10..13).for_each(|target| attach(&mut guest, target));
    let packets = guest.run_all(1);
    assert_eq!(packets.iter().filter(|packet| packet.u32(0) == 11).count(), 1);
    assert_eq!(rings.get(&memory, 1, PENDING), 0);
}

#[test]
fn a_disk_that_is_attached_without_a_serial_number_has_one_of_its_place() {
    attach_nameless(&mut Guest::new().device, "storvsc", 0, |device, address| {
        device.engine.bus.serial(Address { target: 0, lun: address.target.into() })
    });
}

/// Requests that a reset has ended are completed even if the next packet breaks the ring.
#[test]
fn a_ring_is_broken_behind_a_reset() {
    let mut guest = Guest::up(Config { tasks: 1, ..config(Policy::Batch) });
    guest.hold.set(true);
    for n in 0..4 {
        assert!(guest.put(1, &transfer_at(n, transfer(false, 0, 0, 1), DATA)));
    }
    let rings = guest.rings.get_mut(&1).unwrap();
    assert!(rings.put(&guest.memory, &in_band(CONTROL, vstor(6, 0))));
    assert!(rings.put(&guest.memory, &[header(6, 0, 8), 0]));
    guest.device.on_completions(guest.now);
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.device.channels[0].requests, 0);
    guest.post(&[7, 0, 1]);
    guest.post(&[11, 0, 1, 0xe1e10]);
    assert_eq!(guest.answer(12)[2], 0xe1e10);
    guest.open_primary();
    guest.clear_unit_attention(&LUNS);
    guest.check_io(1);
}
