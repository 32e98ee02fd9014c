//! Sub-channels: offered when the driver requests them, answered on the channel of the request, rescinded with the primary channel.

use super::*;

/// Request this many sub-channels, and open those that are offered.
pub(super) fn with_sub_channels(guest: &mut Guest, count: u64) {
    assert_eq!(guest.control(1, vstor(13, count)), 0);
    let offers = guest.offers();
    let wanted: Vec<(u32, u32, u16)> =
        (1..=count as u16).map(|n| (1 + u32::from(n), 17 + u32::from(n), n)).collect();
    assert_eq!(offers, wanted);
    for (relid, _, index) in offers {
        assert_eq!(guest.share(relid, 100 + relid), 0);
        assert_eq!(guest.open(relid, 100 + relid, index.into()), 0);
    }
}

#[test]
fn requests_are_answered_on_their_channel() {
    let mut guest = Guest::up(config(Policy::Off));
    with_sub_channels(&mut guest, 3);
    for relid in 1..=4 {
        guest.check_io(relid);
    }
    // Each channel signals its own virtual processor.
    let _ = [0, 1, 2, 3].map(|vp| guest.flags(vp));
    guest.hold.set(true);
    for relid in 1..=4 {
        for n in 0..5u64 {
            let transaction = u64::from(relid) << 8 | n;
            assert!(guest.put(relid, &transfer_at(transaction, transfer(false, 0, 0, 1), DATA)));
        }
    }
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    for relid in 1..=4 {
        let transactions: Vec<u64> = guest.take(relid).iter().map(|packet| packet.transaction).collect();
        assert_eq!(transactions, (0..5).map(|n| u64::from(relid) << 8 | n).collect::<Vec<_>>());
    }
    assert_eq!([0, 1, 2, 3].map(|vp| guest.flags(vp)), [2, 4, 8, 16]);
}

#[test]
fn only_the_primary_channel_controls_the_controller() {
    let mut guest = Guest::new();
    with_sub_channels(&mut guest, 1);
    for operation in [7, 8, 9, 10, 13] {
        assert_eq!(guest.control(2, vstor(operation, 1)), 0xc000_0010, "{operation}");
    }
    assert_eq!(guest.control(2, vstor(6, 0)), 0, "a reset is for all");
    guest.clear_unit_attention(&LUNS);
    guest.check_io(2);
    // A later request for more: channels that were offered before are not offered again.
    assert_eq!(guest.control(1, vstor(13, 2)), 0);
    assert_eq!(guest.offers(), [(3, 19, 2)]);
    assert_eq!(guest.control(1, vstor(13, 4)), 0xc000_000d);
}

#[test]
fn sub_channels_go_with_the_primary_and_come_again_when_they_are_released() {
    let mut guest = Guest::new();
    with_sub_channels(&mut guest, 2);
    for _ in 0..3 {
        guest.hold.set(true);
        assert!(guest.put(2, &transfer_at(9, transfer(false, 0, 0, 1), DATA)));
        guest.post(&[7, 0, 1]);
        assert_eq!(guest.received(), [[2, 0, 2], [2, 0, 3]]);
        guest.post(&[11, 0, 1, 0xe1e10]);
        assert_eq!(guest.answer(12)[2], 0xe1e10);
        // The driver releases one channel before the disk has completed its requests, and the other after that.
        guest.post(&[13, 0, 2]);
        guest.hold.set(false);
        guest.open_primary();
        assert_eq!(guest.open(3, 103, 0), 0xc000_0184, "it was taken away");
        guest.share_pages(3, 500, &[16]);
        assert_eq!(guest.answer(10)[4], 0xc000_000d);
        assert_eq!(guest.control(1, vstor(13, 2)), 0);
        assert_eq!(guest.offers(), [(2, 18, 1)]);
        guest.post(&[13, 0, 3]);
        assert_eq!(guest.offers(), [(3, 19, 2)]);
        for relid in [2, 3] {
            assert_eq!(guest.share(relid, 100 + relid), 0, "the lists were freed");
            assert_eq!(guest.open(relid, 100 + relid, 0), 0);
            guest.check_io(relid);
        }
    }
}

#[test]
fn a_channel_that_nobody_took_away_is_not_released() {
    let mut guest = Guest::new();
    with_sub_channels(&mut guest, 1);
    for relid in [1, 2, 3] {
        guest.post(&[13, 0, relid]);
    }
    assert!(guest.received().is_empty());
    guest.check_io(1);
    guest.check_io(2);
}

#[test]
fn a_sub_channel_closes_alone() {
    let mut guest = Guest::new();
    with_sub_channels(&mut guest, 2);
    guest.post(&[7, 0, 2]);
    guest.post(&[11, 0, 2, 102]);
    assert_eq!(guest.answer(12)[2], 102);
    assert!(!guest.device.channels[1].is_open());
    guest.check_io(1);
    guest.check_io(3);
    assert_eq!((guest.share(2, 102), guest.open(2, 102, 0)), (0, 0));
    guest.check_io(2);
}

#[test]
fn a_ring_that_the_guest_breaks_stops_its_channel_alone() {
    let mut guest = Guest::new();
    with_sub_channels(&mut guest, 1);
    let rings = guest.rings[&2].clone();
    rings.set(&guest.memory, 0, WRITE, 0x1234_5678);
    guest.device.on_doorbell(1, guest.now);
    assert!(guest.run_all(2).is_empty());
    rings.set(&guest.memory, 0, WRITE, rings.write);
    guest.put(2, &transfer_at(9, transfer(false, 0, 0, 1), DATA));
    assert!(guest.run_all(2).is_empty(), "it is not served any more");
    guest.check_io(1);
    guest.post(&[7, 0, 2]);
    assert_eq!(guest.open(2, 102, 0), 0);
    guest.check_io(2);
}
