//! Control messages: contact, offers, GPADLs, open and close, unload, invalid messages.

use super::*;
use crate::testing::Random;

#[test]
fn versions_are_taken_or_refused() {
    let mut guest = Guest::powered(config(Policy::Batch));
    for (version, supported) in [
        (0x6_0000, false),
        (0x5_0004, false),
        (0x2_0004, false),
        (0x3_0001, false),
        (0, false),
        (0x4_0001, true),
    ] {
        guest.version = version;
        assert_eq!(guest.contact(0), supported, "{version:#x}");
        // Without a negotiated version, no message is answered.
        guest.post(&[3, 0]);
        assert_eq!(!guest.received().is_empty(), supported);
    }
    // From 5.0 on messages go to another connection.
    guest.version = 0x5_0002;
    guest.post(&[14, 0, guest.version, 0, 2, 0, 0, 0, 0, 0]);
    assert_eq!(guest.answer(15), [15, 0, 1, 4]);
    // An interrupt source other than 2.
    guest.post(&[14, 0, guest.version, 0, 3, 0, 0, 0, 0, 0]);
    assert_eq!(guest.answer(15), [15, 0, 0, 0]);
}

#[test]
fn the_hypercall_is_checked() {
    let mut guest = Guest::new();
    let message = [3u8, 0, 0, 0, 0, 0, 0, 0];
    let now = guest.now;
    for (connection, kind, payload, status) in [
        (1, 1, &message[..], HypercallStatus::Success),
        (4, 1, &message, HypercallStatus::Success),
        (0, 1, &message, HypercallStatus::InvalidConnectionId),
        (2, 1, &message, HypercallStatus::InvalidConnectionId),
        (17, 1, &message, HypercallStatus::InvalidConnectionId),
        (1, 2, &message, HypercallStatus::InvalidHypercallInput),
        (1, 1, &[0; 241], HypercallStatus::InvalidHypercallInput),
        (1, 1, &[], HypercallStatus::Success),
    ] {
        assert_eq!(guest.device.on_message(connection, kind, payload, now), status, "{connection} {kind}");
    }
    assert_eq!(guest.device.connections(), [17, 18, 19, 20]);
}

#[test]
fn each_request_for_offers_is_answered() {
    let mut guest = Guest::powered(config(Policy::Batch));
    assert!(guest.contact(0));
    guest.post(&[3, 0]);
    let received = guest.received();
    assert_eq!(received.iter().map(|message| message[0]).collect::<Vec<_>>(), [1, 4]);
    guest.post(&[3, 0]);
    assert_eq!(guest.answer(4), [4, 0], "it is offered already");
}

#[test]
fn messages_go_to_the_processor_that_the_guest_named() {
    let mut guest = Guest::powered(config(Policy::Batch));
    guest.post(&[14, 0, 0x5_0003, 2, 2, 0, 0, 0, 0, 0]);
    guest.post(&[3, 0]);
    assert_eq!(guest.hypervisor.slots.each_ref().map(SegQueue::len), [0, 0, 1, 0]);
    assert_eq!(guest.received().iter().map(|message| message[0]).collect::<Vec<_>>(), [15, 1, 4]);
}

#[test]
fn a_guest_that_does_not_read_its_messages_is_told_to_wait() {
    let mut guest = Guest::powered(config(Policy::Batch));
    assert!(guest.contact(0));
    let answered = (0..1000).take_while(|_| guest.post(&[3, 0]) == HypercallStatus::Success).count();
    assert!((16..200).contains(&answered), "{answered}");
    assert_eq!(guest.post(&[3, 0]), HypercallStatus::InsufficientBuffers);
    // INITIATE_CONTACT is possible in any state.
    guest.post(&[14, 0, 0x5_0003, 0, 2, 0, 0, 0, 0, 0]);
    let received = guest.received();
    assert_eq!(received.len(), 2, "the one in the slot, and the answer: {received:x?}");
    // While the guest's message page is disabled, messages are dropped.
    guest.hypervisor.off.store(true, Ordering::Relaxed);
    (0..1000).for_each(|_| assert_eq!(guest.post(&[3, 0]), HypercallStatus::Success));
    guest.hypervisor.off.store(false, Ordering::Relaxed);
    guest.bring_up();
}

#[test]
fn an_open_that_cannot_be_is_answered() {
    const INVALID: u32 = 0xc000_000d;
    const STATE: u32 = 0xc000_0184;
    let mut guest = Guest::powered(config(Policy::Batch));
    assert!(guest.contact(0));
    assert_eq!(guest.share(1, 5), INVALID, "not offered yet");
    guest.post(&[3, 0]);
    guest.offers();
    assert_eq!(guest.open(1, 5, 0), INVALID, "no such list");
    assert_eq!(guest.share(1, 5), 0);
    assert_eq!(guest.open(1, 5, 4), INVALID, "no such processor");
    for relid in [0, 2, 5, u32::MAX] {
        assert_eq!(guest.open(relid, 5, 0), STATE, "channel {relid}");
        guest.share_pages(relid, 9, &[16]);
        assert_eq!(guest.answer(10)[2..], [relid, 9, INVALID]);
    }
    for split in [0, 1, 5, 6, 7, u32::MAX] {
        let mut message = vec![5, 0, 1, 77, 5, 0, split];
        message.resize(37, 0);
        guest.post(&message);
        assert_eq!(guest.answer(6)[2..], [1, 77, INVALID], "split at {split}");
    }
    // Pages outside memory, indices outside the ring.
    guest.share_pages(1, 6, &[16, 17, 18, 19, 20, MEMORY_END >> 12]);
    assert_eq!(guest.answer(10)[4], 0);
    guest.post_open(1, 6, 0);
    assert_eq!(guest.answer(6)[4], INVALID);
    let rings = guest.rings[&1].clone();
    for (ring, field, value) in [(0, WRITE, 8192), (0, READ, 4), (1, WRITE, u32::MAX), (1, READ, 12)] {
        let memory = guest.memory.clone();
        guest.rings.get_mut(&1).unwrap().clear(&memory);
        rings.set(&guest.memory, ring, field, value);
        guest.post_open(1, 5, 0);
        assert_eq!(guest.answer(6)[4], INVALID, "{ring} {field}");
    }
    assert_eq!(guest.open(1, 5, 0), 0);
    assert_eq!(guest.open(1, 5, 0), STATE, "it is open");
}

#[test]
fn a_list_in_use_is_torn_down_when_the_channel_has_closed() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    assert!(guest.put(1, &transfer_at(9, transfer(false, 0, 0, 1), DATA)));
    guest.post(&[11, 0, 1, 0xe1e10]);
    assert!(guest.received().is_empty(), "it is in use");
    guest.post(&[7, 0, 1]);
    assert!(guest.received().is_empty(), "the disk still has a request");
    assert!(guest.run_all(1).is_empty());
    let mark = guest.fill(DATA, 512, 0x99);
    guest.hold.set(false);
    assert!(guest.run_all(1).is_empty());
    assert_eq!(guest.answer(12), [12, 0, 0xe1e10]);
    assert_ne!(guest.bytes(DATA, 512), mark, "the request had not ended before");
    assert_eq!(guest.hold.waits(), 0);
    // A GPADL that does not exist.
    guest.post(&[11, 0, 1, 0xe1e10]);
    assert_eq!(guest.answer(12), [12, 0, 0xe1e10]);
    guest.open_primary();
    guest.check_io(1);
}

#[test]
fn a_channel_is_closed_and_opened_again() {
    let mut guest = Guest::new();
    for round in 0..3 {
        guest.post(&[7, 0, 1]);
        guest.post(&[11, 0, 1, 0xe1e10]);
        assert_eq!(guest.answer(12)[2], 0xe1e10, "round {round}");
        guest.open_primary();
        guest.clear_unit_attention(&LUNS);
        guest.check_io(1);
    }
}

#[test]
fn an_open_while_the_channel_closes_waits() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    assert!(guest.put(1, &transfer_at(9, transfer(false, 0, 0, 1), DATA)));
    guest.post(&[7, 0, 1]);
    let memory = guest.memory.clone();
    guest.rings.get_mut(&1).unwrap().clear(&memory);
    guest.post_open(1, 0xe1e10, 0);
    assert!(guest.run_all(1).is_empty() && guest.received().is_empty());
    guest.post_open(1, 0xe1e10, 0);
    assert_eq!(guest.answer(6)[4], 0xc000_0184, "one waits already");
    guest.hold.set(false);
    assert!(guest.run_all(1).is_empty(), "nothing of before is answered");
    assert_eq!(guest.answer(6)[2..], [1, 77, 0]);
    for (operation, content) in [(7, 0), (9, 0x0600), (10, 0), (8, 0)] {
        assert_eq!(guest.control(1, vstor(operation, content)), 0);
    }
    guest.check_io(1);
}

#[test]
fn a_contact_in_any_state_begins_anew() {
    for stalled in [false, true] {
        let mut guest = Guest::new();
        guest.hold.set(stalled);
        for n in 0..20 {
            assert!(guest.put(1, &transfer_at(n, transfer(true, LUNS[n as usize % 2], 0, 1), DATA)));
        }
        guest.take(1);
        guest.post(&[14, 0, 0x5_0002, 1, 2, 0, 0, 0, 0, 0]);
        let before = guest.bytes(RINGS, RINGS_LEN as usize);
        if stalled {
            assert!(guest.run_all(1).is_empty() && guest.received().is_empty());
            // The guest connects again.
            guest.post(&[14, 0, 0x5_0003, 2, 2, 0, 0, 0, 0, 0]);
            guest.post(&[3, 0]);
            assert!(guest.run_all(1).is_empty() && guest.received().is_empty());
            guest.hold.set(false);
            assert!(guest.run_all(1).is_empty());
        }
        assert_eq!(guest.answer(15), [15, 0, 1, 4]);
        assert!(guest.bytes(RINGS, RINGS_LEN as usize) == before, "the rings were written");
        assert_eq!(guest.hold.waits(), 0);
        guest.post(&[3, 0]);
        assert_eq!(guest.offers().len(), 1);
        guest.open_primary();
        guest.clear_unit_attention(&LUNS);
        guest.check_io(1);
    }
}

#[test]
fn unload_is_answered_when_the_disks_have_completed() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    assert!(guest.put(1, &transfer_at(9, transfer(false, 0, 0, 1), DATA)));
    guest.post(&[16, 0]);
    assert!(guest.run_all(1).is_empty() && guest.received().is_empty());
    guest.hold.set(false);
    assert!(guest.run_all(1).is_empty());
    assert_eq!(guest.answer(17), [17, 0]);
    guest.post(&[3, 0]);
    assert!(guest.received().is_empty(), "it is unloaded");
    guest.post(&[16, 0]);
    assert_eq!(guest.answer(17), [17, 0], "answered all the same");
    guest.bring_up();
    guest.clear_unit_attention(&LUNS);
    guest.check_io(1);
}

#[test]
fn a_channel_moves_to_another_processor() {
    for version in [0x5_0002, 0x5_0003] {
        let mut guest = Guest::powered(config(Policy::Off));
        guest.version = version;
        guest.bring_up();
        guest.clear_unit_attention(&LUNS);
        guest.check_io(1);
        assert_ne!((guest.flags(0), guest.flags(2)), (0, 2));
        for (relid, vp, status) in [(1, 2, 0), (1, 4, 0xc000_000d), (2, 0, 0xc000_000d), (7, 0, 0xc000_000d)]
        {
            guest.post(&[22, 0, relid, vp]);
            if version == 0x5_0003 {
                assert_eq!(guest.answer(24), [24, 0, relid, status]);
            }
            assert!(guest.received().is_empty());
        }
        guest.flags(0);
        guest.check_io(1);
        assert_eq!((guest.flags(0), guest.flags(2)), (0, 2));
    }
}

#[test]
fn messages_that_are_cut_or_unknown_change_nothing() {
    let mut guest = Guest::new();
    let mut random = Random::new(77);
    for kind in 0..32 {
        for len in 1..12 {
            // These messages are complete at this length.
            if [14, 16].contains(&kind) || kind == 3 || kind == 7 && len > 2 {
                continue;
            }
            let mut message: Vec<u32> = (0..len).map(|_| random.value() as u32).collect();
            message[0] = kind;
            guest.post(&message);
        }
    }
    guest.received();
    guest.post(&[14, 0, 0x5_0003, 0, 2]);
    assert!(guest.received().is_empty(), "a contact that is cut");
    guest.check_io(1);
}

#[test]
fn a_reset_of_the_machine_forgets_everything() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    assert!(guest.put(1, &transfer_at(9, transfer(false, 0, 0, 1), DATA)));
    let now = guest.now;
    guest.device.reset(now);
    assert!(guest.hold.waits() > 0, "it waits for the disks");
    guest.writes_nothing(|guest| {
        guest.hold.set(false);
        assert!(guest.run_all(1).is_empty());
    });
    assert!(guest.received().is_empty());
    guest.bring_up();
    guest.clear_unit_attention(&LUNS);
    guest.check_io(1);
}
