//! Interrupt moderation holds no signal back for longer than its backstop.

use std::time::Duration;

use super::Counts;
use super::initiator::{Initiator, Outcome};
use crate::device::Sleep;
use crate::time::Time;

/// The disk holds many requests. Meanwhile requests to the unit `absent`, which does not exist, end one at a time, at a high rate.
/// `meanwhile` is called while a signal is held back.
pub(crate) fn play<I: Initiator>(
    guest: &mut I,
    counts: &Counts,
    absent: usize,
    meanwhile: impl FnOnce(&mut I),
) {
    const HELD: u64 = 31;
    guest.hold().set(true);
    (0..HELD).for_each(|slot| guest.start(slot, 0, false));
    assert_eq!(guest.serve(), []);
    let mut withheld = false;
    for ended in 1..=40_000 {
        guest.device().1.0 += 10_000;
        guest.start(HELD, absent, false);
        complete(guest);
        assert_eq!(guest.ended(), [(HELD, Outcome::Other)], "a completion is always posted at once");
        if counts.signals() == 0 {
            withheld = true;
            if ended > 30_000 {
                break;
            }
        }
    }
    assert!(withheld);
    let (device, now) = guest.device();
    let Sleep::Until(deadline) = device.before_sleep(*now) else { panic!("no deadline") };
    assert!(deadline <= now.after(Duration::from_millis(1)));
    *now = Time(deadline.0 - 1);
    complete(guest);
    assert_eq!(counts.signals(), 0);
    meanwhile(guest);
    counts.signals();
    let (device, now) = guest.device();
    *now = deadline;
    device.on_completions(*now);
    assert_eq!(counts.signals(), 1);
    assert_eq!(device.before_sleep(*now), Sleep::Forever);
    assert_eq!(guest.ended(), []);
    // The last completion always signals.
    guest.hold().set(false);
    complete(guest);
    assert_eq!(counts.signals(), 1);
    let ended: Vec<_> = (0..HELD).map(|slot| (slot, Outcome::Good)).collect();
    assert_eq!(guest.ended(), ended);
}

fn complete<I: Initiator>(guest: &mut I) {
    let (device, now) = guest.device();
    device.on_completions(*now);
}
