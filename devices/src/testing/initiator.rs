//! A driver that keeps to the rules of its adapter, for the tests that all adapters share.

use super::{Hold, MIB, Owner};
use crate::device::{IoDevice, Sleep};
use crate::time::Time;

/// Something that ends requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Manage {
    Abort { slot: u64, unit: usize },
    ResetUnit(usize),
    ResetBus,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    /// The error of requests of a faulted disk.
    Faulted,
    Other,
}

impl Outcome {
    /// A SCSI command ended with this status and these sense data.
    pub(crate) fn of_scsi(status: u8, sense: &[u8]) -> Self {
        match (status, sense) {
            (0, _) => Self::Good,
            (2, [0x70, _, 4, _, _, _, _, _, _, _, _, _, 0x44, 0, ..]) => Self::Faulted,
            _ => Self::Other,
        }
    }
}

/// Bytes of each request: four sectors.
pub(crate) const LEN: u64 = 2048;
/// Bytes of guest memory of a slot: more than [`LEN`].
pub(super) const SLOT: usize = 4096;

/// The address of a slot's data.
pub(crate) const fn at(slot: u64) -> u64 {
    MIB + slot * SLOT as u64
}

/// A driver of an adapter with two units.
pub(crate) trait Initiator: Owner {
    /// Requests that it has outstanding at the most, unless a test has made its queues longer.
    const SLOTS: u64;
    /// The register access that resets the adapter waits for the disks.
    const RESET_WAITS: bool;
    /// Completions may wait for space that the driver frees, for which the adapter polls.
    const POLLS_FOR_SPACE: bool = false;

    fn hold(&self) -> &Hold;
    fn device(&mut self) -> (&mut dyn IoDevice, &mut Time);
    /// Start a request of [`LEN`] bytes, whose data are [`at`] its slot.
    fn start(&mut self, slot: u64, unit: usize, write: bool);
    /// Take the posted completions: the slots whose requests have ended, and how.
    fn ended(&mut self) -> Vec<(u64, Outcome)>;
    /// Request it, unless the adapter has no such function or has not answered the last request yet.
    fn manage(&mut self, manage: Manage);
    fn begin_reset(&mut self);
    /// Whether the adapter says that the reset is over.
    fn reset_is_over(&mut self) -> bool;
    /// After a reset.
    fn bring_up(&mut self);

    /// Let the device work until it would sleep. Returns the requests that have ended.
    #[track_caller]
    fn serve(&mut self) -> Vec<(u64, Outcome)> {
        let mut ended = Vec::new();
        for _ in 0..100 {
            let (device, now) = self.device();
            device.on_completions(*now);
            ended.extend(self.ended());
            let (device, now) = self.device();
            match device.before_sleep(*now) {
                Sleep::No => {}
                Sleep::Until(poll) if Self::POLLS_FOR_SPACE => *now = poll,
                Sleep::Until(_) | Sleep::Forever => {
                    ended.extend(self.ended());
                    return ended;
                }
            }
        }
        panic!("never sleeps");
    }

    /// Run a request to its end, while no other ends.
    #[track_caller]
    fn run_slot(&mut self, slot: u64, unit: usize, write: bool) -> Outcome {
        self.start(slot, unit, write);
        match self.serve()[..] {
            [(ended, outcome)] if ended == slot => outcome,
            ref other => panic!("{other:?} ended"),
        }
    }

    /// Run requests until the units have reported their unit attentions.
    #[track_caller]
    fn clear_attention(&mut self, units: [usize; 2]) {
        for unit in units {
            assert!((0..4).any(|_| self.run_slot(0, unit, false) == Outcome::Good));
        }
    }
}
