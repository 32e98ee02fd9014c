//! Malformed chains.

use super::*;

/// How a chain ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Answered with this response.
    Response(u8),
    /// Not at all: the device needs a reset.
    NeedsReset,
}

fn run(queue: u16, put: impl FnOnce(&mut Guest) -> u16) -> End {
    let mut guest = Guest::new();
    let head = put(&mut guest);
    guest.kick(queue);
    guest.device.on_completions(guest.now);
    let status = guest.status();
    let end = match guest.completions(queue).as_slice() {
        [] => {
            assert!(status.contains(DeviceStatus::DEVICE_NEEDS_RESET));
            End::NeedsReset
        }
        [(id, _)] => {
            assert!(!status.contains(DeviceStatus::DEVICE_NEEDS_RESET));
            assert_eq!(*id, u32::from(head));
            End::Response(guest.answered(0).response)
        }
        more => panic!("{more:?}"),
    };
    // After any of these chains, a driver that resets has a device that works.
    guest.bring_up(ALL, 64);
    guest.clear_unit_attention();
    guest.check_io();
    assert_eq!(guest.in_flight(), 0);
    end
}

fn failure() -> End {
    End::Response(Response::Failure as u8)
}

/// Run a read of one sector with its pieces changed.
fn changed(change: impl FnOnce(&mut Vec<Piece>)) -> End {
    run(FIRST, |guest| {
        let mut pieces = guest.pieces(0, HERE, &transfer10(false, 0, 1), &[writes(DATA, 512)]);
        change(&mut pieces);
        guest.put(FIRST, &pieces)
    })
}

#[test]
fn requests_that_cannot_be_read() {
    assert_eq!(changed(|_| {}), End::Response(0));
    assert_eq!(changed(|pieces| pieces[0].len = 50), failure());
    assert_eq!(changed(|pieces| *pieces = pieces.split_off(1)), failure());
    assert_eq!(changed(|pieces| pieces[0].address = 3 * MIB), failure());
    assert_eq!(changed(|pieces| pieces.insert(1, reads(DATA, 0))), failure());
}

#[test]
fn data_that_cannot_be() {
    assert_eq!(changed(|pieces| pieces[2].address = 3 * MIB), failure());
    assert_eq!(changed(|pieces| pieces[2].address = u64::MAX - 100), failure());
    assert_eq!(changed(|pieces| pieces[2].len = 0), failure());
    // Data in both directions.
    assert_eq!(changed(|pieces| pieces.insert(1, reads(DATA, 512))), failure());
}

#[test]
fn answers_without_room() {
    // Too short for sense data, but long enough for a response.
    assert_eq!(
        changed(|pieces| {
            pieces.truncate(2);
            pieces[1].len = 107;
        }),
        failure()
    );
    assert_eq!(
        changed(|pieces| {
            pieces.truncate(2);
            pieces[1].len = 12;
        }),
        failure()
    );
    for len in [0, 11] {
        assert_eq!(
            changed(|pieces| {
                pieces.truncate(2);
                pieces[1].len = len;
            }),
            End::NeedsReset
        );
    }
    assert_eq!(changed(|pieces| pieces.truncate(1)), End::NeedsReset);
    assert_eq!(changed(|pieces| pieces[1].address = 3 * MIB), End::NeedsReset);
    assert_eq!(changed(|pieces| pieces[1].address = u64::MAX - 11), End::NeedsReset);
    // A readable descriptor after the writable ones.
    assert_eq!(changed(|pieces| pieces.push(reads(DATA, 512))), End::NeedsReset);
}

#[test]
fn chains_without_end() {
    let looped = run(FIRST, |guest| {
        let head = guest.request(FIRST, 0, HERE, TEST_UNIT_READY, &[]);
        let at = guest.rings_at(FIRST) + 16 * u64::from(head + 1);
        let answer = guest.answer(0);
        guest.put_descriptor(at, answer, NEXT, head);
        head
    });
    assert_eq!(looped, End::NeedsReset);
    let nested = run(FIRST, |guest| {
        let pieces = [Piece { address: DATA, len: 32, flags: INDIRECT }];
        guest.put_indirect(FIRST, &pieces)
    });
    assert_eq!(nested, End::NeedsReset);
    let outside = run(FIRST, |guest| {
        guest.put_head(FIRST, 64);
        64
    });
    assert_eq!(outside, End::NeedsReset);
}

/// Run a chain of the control queue. Returns the first byte of the response and the length.
fn control(request: &[u8], capacity: u32) -> Option<(u8, u32)> {
    let mut guest = Guest::new();
    guest.control(request, capacity);
    let needs_reset = guest.status().contains(DeviceStatus::DEVICE_NEEDS_RESET);
    let completions = guest.completions(CONTROL);
    assert_eq!(needs_reset, completions.is_empty());
    completions.first().map(|(_, len)| (guest.bytes(REQUESTS - 0x1000 + 0x100, 1)[0], *len))
}

#[test]
fn control_requests_of_no_known_kind() {
    let rejected = Some((Response::FunctionRejected as u8, 1));
    assert_eq!(control(&[9, 0, 0, 0], 1), rejected);
    assert_eq!(control(&[0, 0, 0], 16), rejected);
    // Task management and queries that are cut short.
    assert_eq!(control(&[0; 23], 1), Some((Response::Failure as u8, 1)));
    assert_eq!(control(&[1, 0, 0, 0, 0], 5), Some((0, 5)));
    // No buffer for the response.
    assert_eq!(control(&[0; 24], 0), None);
    assert_eq!(control(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4), None);
}
