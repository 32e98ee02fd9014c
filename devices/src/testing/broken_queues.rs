//! The family "broken queues": the queue of a disk breaks its contract while requests are in flight. The disk is faulted:
//! - Every request in flight ends once. From the breach on, those of the disk end with an error.
//! - Later requests of the disk fail at once.
//! - Another unit and the adapter's reset are not affected.

use super::disk::Breach;
use super::initiator::{Initiator, Outcome};
use crate::fault::{NOTHING_IN_FLIGHT, UNKNOWN_COMPLETION, expected};

/// Requests of the unit whose queue breaks.
const FIRST: u64 = 5;
/// All requests: others are for the other unit.
const ALL: u64 = 8;

/// A guest whose first unit has `FIRST` requests in flight, and its second the others.
fn with_requests<I: Initiator>(guest: &mut I) {
    guest.clear_attention([0, 1]);
    guest.hold().set(true);
    (0..ALL).for_each(|slot| guest.start(slot, usize::from(slot >= FIRST), false));
    assert_eq!(guest.serve(), []);
}

/// `other`: the second unit has a queue of its own.
pub(crate) fn play<I: Initiator>(make: impl Fn() -> I, other: bool) {
    let mine = if other { FIRST } else { ALL };
    for (breach, what) in [
        (Breach::Tag(1 << 32), UNKNOWN_COMPLETION),
        (Breach::Tag(u64::MAX), UNKNOWN_COMPLETION),
        (Breach::Tag(250), UNKNOWN_COMPLETION),
        // If both units share a queue, this tag is in flight there: its request completes twice.
        (Breach::Tag(FIRST + 1), UNKNOWN_COMPLETION),
        (Breach::Twice, UNKNOWN_COMPLETION),
        (Breach::Lose, NOTHING_IN_FLIGHT),
    ] {
        expected::begin();
        let mut guest = make();
        with_requests(&mut guest);
        guest.hold().breach(breach);
        guest.hold().set(false);
        let mut ended = guest.serve();
        ended.sort_unstable_by_key(|(slot, _)| *slot);
        assert_eq!(ended.iter().map(|end| end.0).collect::<Vec<_>>(), (0..ALL).collect::<Vec<_>>());
        // The breach changed the completion of the first unit's first request.
        let faulted: Vec<u64> =
            ended.iter().filter(|end| end.1 == Outcome::Faulted).map(|(slot, _)| *slot).collect();
        let wanted: Vec<u64> = match breach {
            Breach::Tag(tag) if !other && tag == FIRST + 1 => vec![0, FIRST + 2],
            Breach::Tag(_) => (0..mine).collect(),
            Breach::Twice => (1..mine).collect(),
            Breach::Lose => vec![0],
        };
        assert_eq!(faulted, wanted, "{breach:?}");
        assert!(ended.iter().all(|end| end.1 != Outcome::Other), "{breach:?}: {ended:?}");
        // Later requests never reach the disk.
        guest.hold().set(true);
        assert_eq!(guest.run_slot(0, 0, false), Outcome::Faulted);
        guest.hold().set(false);
        assert_eq!(guest.run_slot(1, 1, false), if other { Outcome::Good } else { Outcome::Faulted });
        reset(&mut guest);
        assert_eq!(guest.run_slot(0, 0, false), Outcome::Faulted, "no reset repairs it");
        assert_eq!(expected::take(), [what], "{breach:?}: reported once");
    }
    lost_before_a_reset(make);
}

/// A reset does not wait for a completion that never comes.
fn lost_before_a_reset<I: Initiator>(make: impl Fn() -> I) {
    expected::begin();
    let mut guest = make();
    with_requests(&mut guest);
    guest.hold().breach(Breach::Lose);
    guest.begin_reset();
    guest.hold().set(false);
    assert_eq!(guest.serve(), []);
    assert!(guest.reset_is_over());
    guest.bring_up();
    assert_eq!(guest.run_slot(0, 0, false), Outcome::Faulted);
    assert_eq!(expected::take(), [NOTHING_IN_FLIGHT]);
}

fn reset<I: Initiator>(guest: &mut I) {
    guest.begin_reset();
    assert_eq!(guest.serve(), []);
    assert!(guest.reset_is_over());
    guest.bring_up();
}
