//! Chains and rings that no driver makes.

use super::*;

/// The result of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Answered with this status and this length.
    Answered(u8, u32),
    /// There is no status byte to write: the device sets DEVICE_NEEDS_RESET.
    NeedsReset,
}

use Outcome::{Answered, NeedsReset};

fn outcome(guest: &mut Guest) -> Outcome {
    guest.kick(0);
    let ended = guest.completions(0);
    let status = guest.status();
    let needs_reset = status.contains(DeviceStatus::DEVICE_NEEDS_RESET);
    // The guest is interrupted, as for a completion.
    assert!(guest.counts.line());
    let isr = Isr::from_bits_retain(guest.read(ISR, 1) as u8);
    match ended.as_slice() {
        [(_, len)] if !needs_reset => {
            assert_eq!(isr, Isr::QUEUE);
            Answered(guest.status_of(0), *len)
        }
        [] if needs_reset => {
            assert_eq!(isr, Isr::CONFIG);
            NeedsReset
        }
        more => panic!("{more:?}, {status:?}"),
    }
}

/// The outcome of a chain. Afterwards a driver initializes the device, which must work.
fn outcome_of(pieces: &[Piece]) -> Outcome {
    let mut guest = Guest::new();
    guest.header(0, VIRTIO_BLK_T_IN, 0);
    guest.put(0, pieces);
    let found = outcome(&mut guest);
    guest.bring_up(ALL, 64);
    guest.check_io();
    found
}

/// The outcome of a chain whose descriptors are written as they are.
fn outcome_raw(descriptors: &[(Piece, u16, u16)], head: u16) -> Outcome {
    let mut guest = Guest::new();
    guest.header(0, VIRTIO_BLK_T_IN, 0);
    let table = guest.rings_at(0);
    for (n, (piece, flags, next)) in (0..).zip(descriptors) {
        guest.put_descriptor(table + 16 * n, *piece, *flags, *next);
    }
    guest.put_head(0, head);
    let found = outcome(&mut guest);
    guest.bring_up(ALL, 64);
    guest.check_io();
    found
}

const HEADER: Piece = reads(REQUESTS, 16);
const STATUS: Piece = writes(REQUESTS + 32, 1);
const IO_ERROR: u8 = Status::IoErr as u8;

#[test]
fn chains_without_a_status_byte() {
    assert_eq!(outcome_of(&[HEADER]), NeedsReset);
    assert_eq!(outcome_of(&[HEADER, reads(DATA, 512)]), NeedsReset);
    assert_eq!(outcome_of(&[HEADER, writes(REQUESTS + 32, 0)]), NeedsReset);
    assert_eq!(outcome_of(&[HEADER, STATUS, reads(DATA, 512)]), NeedsReset);
    // The status byte is outside memory, or its address overflows.
    assert_eq!(outcome_of(&[HEADER, writes(2 * MIB, 1)]), NeedsReset);
    assert_eq!(outcome_of(&[HEADER, writes(u64::MAX, 1)]), NeedsReset);
    assert_eq!(outcome_of(&[HEADER, writes(u64::MAX, 8)]), NeedsReset);
}

#[test]
fn chains_in_the_wrong_order() {
    assert_eq!(outcome_of(&[STATUS]), Answered(IO_ERROR, 1));
    assert_eq!(outcome_of(&[writes(DATA, 512), HEADER, STATUS]), Answered(IO_ERROR, 0));
    assert_eq!(outcome_of(&[HEADER, writes(DATA, 512), reads(DATA, 512), STATUS]), Answered(IO_ERROR, 0));
}

#[test]
fn descriptors_without_bytes() {
    assert_eq!(outcome_of(&[reads(REQUESTS, 0), HEADER, writes(DATA, 512), STATUS]), Answered(IO_ERROR, 0));
    assert_eq!(outcome_of(&[HEADER, writes(DATA, 0), STATUS]), Answered(IO_ERROR, 0));
    assert_eq!(outcome_of(&[HEADER, writes(DATA, 512), writes(DATA, 0), STATUS]), Answered(IO_ERROR, 0));
}

#[test]
fn headers_that_are_not_all_there() {
    for len in [1, 8, 15] {
        assert_eq!(outcome_of(&[reads(REQUESTS, len), STATUS]), Answered(IO_ERROR, 1));
    }
    assert_eq!(outcome_of(&[reads(2 * MIB - 8, 16), STATUS]), Answered(IO_ERROR, 1));
    assert_eq!(outcome_of(&[reads(u64::MAX - 8, 16), STATUS]), Answered(IO_ERROR, 1));
}

#[test]
fn loops() {
    assert_eq!(outcome_raw(&[(HEADER, NEXT, 0)], 0), NeedsReset);
    assert_eq!(outcome_raw(&[(HEADER, NEXT, 1), (writes(DATA, 512), NEXT, 1)], 0), NeedsReset);
    assert_eq!(outcome_raw(&[(HEADER, NEXT, 1), (writes(DATA, 512), NEXT, 0)], 0), NeedsReset);
    // A loop of long descriptors: their sum would exceed 32 bits, too.
    assert_eq!(outcome_raw(&[(HEADER, NEXT, 1), (writes(DATA, u32::MAX), NEXT, 1)], 0), NeedsReset);
}

#[test]
fn indices_beyond_the_table() {
    for beyond in [64, 65, 0x8000, 0xffff] {
        assert_eq!(outcome_raw(&[(HEADER, NEXT, 1), (STATUS, NEXT, beyond)], 0), NeedsReset);
        assert_eq!(outcome_raw(&[(HEADER, NEXT, 1), (STATUS, 0, 0)], beyond), NeedsReset);
    }
}

/// The outcome of a chain that refers to a table; the table is at [`DATA`].
fn outcome_indirect(table: &[(Piece, u16, u16)], address: u64, len: u32) -> Outcome {
    let mut guest = Guest::new();
    guest.header(0, VIRTIO_BLK_T_FLUSH, 0);
    for (n, (piece, flags, next)) in (0..).zip(table) {
        guest.put_descriptor(DATA + 16 * n, *piece, *flags, *next);
    }
    guest.put(0, &[Piece { address, len, flags: INDIRECT }]);
    let found = outcome(&mut guest);
    guest.bring_up(ALL, 64);
    guest.check_io();
    found
}

#[test]
fn tables_of_descriptors() {
    let good = [(HEADER, NEXT, 1), (STATUS, 0, 0)];
    assert_eq!(outcome_indirect(&good, DATA, 32), Answered(0, 1));
    // Lengths that are no multiple of a descriptor, zero, too long, outside memory, or that cut the last descriptor off.
    for len in [0, 8, 31, 33, 16 * 65536, 0xffff_fff0, 16] {
        assert_eq!(outcome_indirect(&good, DATA, len), NeedsReset, "{len}");
    }
    for address in [2 * MIB, 2 * MIB - 16, u64::MAX - 15, u64::MAX - 7] {
        assert_eq!(outcome_indirect(&good, address, 32), NeedsReset, "{address:#x}");
    }
    // Loops and invalid indices in a table are refused as in the ring.
    assert_eq!(outcome_indirect(&[(HEADER, NEXT, 0)], DATA, 32), NeedsReset);
    assert_eq!(outcome_indirect(&[(HEADER, NEXT, 1), (STATUS, NEXT, 2)], DATA, 32), NeedsReset);
    // A table inside a table, as its first descriptor and as a later one.
    let nested = Piece { address: DATA, len: 32, flags: INDIRECT };
    assert_eq!(outcome_indirect(&[(nested, 0, 0), (STATUS, 0, 0)], DATA, 32), NeedsReset);
    assert_eq!(outcome_indirect(&[(HEADER, NEXT, 1), (nested, 0, 0)], DATA, 32), NeedsReset);
    // A table of the maximum length, with a loop.
    let circle = [(reads(DATA, 1), NEXT, 1), (reads(DATA, 1), NEXT, 0)];
    assert_eq!(outcome_indirect(&circle, DATA, 16 * 65535), NeedsReset);
}

#[test]
fn an_available_index_that_cannot_be() {
    let mut guest = Guest::new();
    for index in [65u16, 0x7fff, 0xffff] {
        guest.memory.write_obj(index, GuestAddress(guest.rings_at(0) + DRIVER + 2)).unwrap();
        assert_eq!(outcome(&mut guest), NeedsReset);
        guest.bring_up(ALL, 64);
    }
    guest.check_io();
}

/// The same chain made available many times: memory stays safe, and each is answered.
#[test]
fn one_chain_made_available_many_times() {
    let mut guest = Guest::held(batch());
    guest.hold.set(true);
    let head = guest.request(0, 0, VIRTIO_BLK_T_OUT, 0, &[reads(DATA, 512)]);
    (0..63).for_each(|_| guest.put_head(0, head));
    guest.kick(0);
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions(0), vec![(head.into(), 1); 64]);
    guest.check_io();
}

/// Requests that were in flight before complete, and no further request is taken.
#[test]
fn requests_beside_a_broken_one() {
    let mut guest = Guest::held(batch());
    guest.hold.set(true);
    guest.request(0, 0, VIRTIO_BLK_T_OUT, 0, &[reads(DATA, 512)]);
    guest.put(0, &[HEADER]);
    guest.request(0, 1, VIRTIO_BLK_T_OUT, 0, &[reads(DATA, 512)]);
    guest.kick(0);
    assert!(guest.status().contains(DeviceStatus::DEVICE_NEEDS_RESET));
    guest.hold.set(false);
    guest.kick(0);
    assert_eq!((guest.completions(0).len(), guest.status_of(0), guest.status_of(1)), (1, 0, 0xff));
    assert_eq!(guest.device.stats().requests, 1);
}

/// The event log of a program that embeds the device reports the broken ring, once for each DEVICE_NEEDS_RESET.
#[test]
fn a_broken_ring_is_logged() {
    let (mut log, written) = std::io::pipe().unwrap();
    let writer = move || written.try_clone().unwrap();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    tracing::subscriber::with_default(subscriber, || {
        let mut guest = Guest::new();
        guest.put_head(0, 64);
        assert_eq!(outcome(&mut guest), NeedsReset);
        guest.kick(0);
    });
    let mut text = String::new();
    std::io::Read::read_to_string(&mut log, &mut text).unwrap();
    assert_eq!(text.matches("DEVICE_NEEDS_RESET").count(), 1, "{text}");
    assert!(text.contains("WARN"), "{text}");
}
