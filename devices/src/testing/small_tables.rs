//! The family "small tables": a driver that keeps to the rules, in front of an adapter with fewer task numbers than it has requests,
//! over disks whose I/O does not complete at times. It aborts and resets at random.
//!
//! What must hold: a request ends once, or with the reset of the adapter; after that, nothing is written to its memory; when the disks
//! complete their I/O again, every request ends; and the thread is blocked by nothing but what [`Initiator::RESET_WAITS`] allows.

use super::{Hold, MIB, Owner, Random};
use crate::device::IoDevice;
use crate::scsi::Address;
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
    /// As of a disk that is faulted.
    Faulted,
    Other,
}

impl Outcome {
    /// Of a SCSI command with this status, which left these sense data.
    pub(crate) fn of_scsi(status: u8, sense: &[u8]) -> Self {
        match (status, sense) {
            (0, _) => Self::Good,
            (2, [0x70, _, 4, _, _, _, _, _, _, _, _, _, 0x44, 0, ..]) => Self::Faulted,
            _ => Self::Other,
        }
    }
}

/// A driver of an adapter with two units.
pub(crate) trait Initiator: Owner {
    /// Requests that it has outstanding at the most.
    const SLOTS: u64;
    /// A reset of the adapter waits for the disks inside of the register access.
    const RESET_WAITS: bool;

    fn hold(&self) -> &Hold;
    /// Start a request of [`LEN`] bytes.
    fn start(&mut self, slot: u64, unit: usize, write: bool, data: u64);
    /// Let the device work until it would sleep. The slots whose requests have ended, and how.
    fn serve(&mut self) -> Vec<(u64, Outcome)>;
    /// Ask for it, unless the adapter knows no such thing or has yet to answer the last time.
    fn manage(&mut self, manage: Manage);
    fn begin_reset(&mut self);
    /// Whether the adapter says that the reset is over.
    fn reset_is_over(&mut self) -> bool;
    /// After a reset.
    fn bring_up(&mut self);
}

/// Bytes of each request: four sectors.
pub(crate) const LEN: u64 = 2048;
/// Memory of a slot: more than the request's.
const SLOT: usize = 4096;

#[derive(Default)]
struct Slot {
    /// The unit that its request is for.
    busy: Option<usize>,
    /// What its memory holds while it has none.
    pattern: Vec<u8>,
}

const fn at(slot: u64) -> u64 {
    MIB + slot * SLOT as u64
}

/// Play so many steps, then let the disks complete.
pub(crate) fn play<I: Initiator>(guest: &mut I, seed: u64, steps: u32) {
    let mut random = Random(seed * 0x9e37_79b9);
    let mut slots: Vec<Slot> = (0..I::SLOTS).map(|_| Slot::default()).collect();
    (0..).zip(&mut slots).for_each(|(number, slot)| free(guest, number, slot, &mut random));
    let (mut ended, mut resets, mut waits) = (0, 0, 0);
    for _ in 0..steps {
        let number = random.below(I::SLOTS);
        let slot = &mut slots[number as usize];
        match (random.below(100), slot.busy) {
            (0..60, None) => {
                assert!(
                    guest.bytes(at(number), SLOT) == slot.pattern,
                    "slot {number} was written after its end"
                );
                let unit = random.below(2) as usize;
                slot.busy = Some(unit);
                guest.start(number, unit, random.below(2) == 0, at(number));
            }
            (60..80, _) => guest.hold().set(random.below(3) != 0),
            (80..88, Some(unit)) => guest.manage(Manage::Abort { slot: number, unit }),
            (88..91, _) => guest.manage(Manage::ResetUnit(random.below(2) as usize)),
            (91..93, _) => guest.manage(Manage::ResetBus),
            (93..95, _) => {
                resets += 1;
                reset(guest, &mut random);
                (0..).zip(&mut slots).for_each(|(number, slot)| free(guest, number, slot, &mut random));
                // The disks complete what they still have, if they have it.
                guest.hold().set(false);
                assert!(guest.serve().is_empty());
                for (number, slot) in (0..).zip(&slots) {
                    assert!(guest.bytes(at(number), SLOT) == slot.pattern, "written after the reset");
                }
                if I::RESET_WAITS {
                    waits = guest.hold().waits();
                }
                guest.bring_up();
            }
            _ => {}
        }
        ended += take_ended(guest, &mut slots, &mut random);
        assert_eq!(guest.hold().waits(), waits, "the thread was blocked");
    }
    guest.hold().set(false);
    for _ in 0..100 {
        ended += take_ended(guest, &mut slots, &mut random);
    }
    for (number, slot) in (0..).zip(&slots) {
        assert_eq!(slot.busy, None, "request {number} has not ended");
        assert!(guest.bytes(at(number), SLOT) == slot.pattern, "slot {number} was written after its end");
    }
    assert!(
        ended > steps / 50 && resets > steps / 100,
        "the test lost its guest: {ended} ended, {resets} resets"
    );
}

/// Detach the first unit while its disk does not complete its requests: nothing waits for them, and they end when it does.
pub(crate) fn detach_stalled<I: Initiator>(
    guest: &mut I,
    device: impl Fn(&mut I) -> &mut dyn IoDevice,
    address: Address,
) {
    for unit in [0, 1, 0, 1, 0, 1] {
        // Unit attention comes first.
        guest.start(0, unit, false, at(0));
        assert_eq!(guest.serve().len(), 1);
    }
    guest.hold().set(true);
    (0..5).for_each(|slot| guest.start(slot, usize::from(slot == 4), false, at(slot)));
    assert_eq!(guest.serve(), []);
    let fds = device(guest).completion_events().len();
    let now = Time(1 << 40);
    assert!(device(guest).hot_plug().unwrap().detach(address, now));
    assert!(!device(guest).hot_plug().unwrap().detach(address, now));
    assert_eq!((guest.serve(), guest.hold().waits()), (vec![], 0), "nothing waits");
    assert!(device(guest).hot_plug().unwrap().detaching(address));
    assert_eq!(device(guest).completion_events().len(), fds);
    guest.start(5, 0, false, at(5));
    assert_eq!(guest.serve(), [(5, Outcome::Other)], "there is no such unit");
    guest.hold().set(false);
    let mut ended = guest.serve();
    ended.sort_unstable_by_key(|(slot, _)| *slot);
    let outcomes = [Outcome::Other, Outcome::Other, Outcome::Other, Outcome::Other, Outcome::Good];
    assert_eq!(ended, (0..).zip(outcomes).collect::<Vec<_>>());
    assert!(!device(guest).hot_plug().unwrap().detaching(address));
    assert_eq!(device(guest).completion_events().len(), fds - 1);
}

/// The slot is the driver's: it uses the memory for something else.
fn free(guest: &impl Owner, number: u64, slot: &mut Slot, random: &mut Random) {
    slot.busy = None;
    slot.pattern = guest.fill(at(number), SLOT, random.next() as u8);
}

fn take_ended<I: Initiator>(guest: &mut I, slots: &mut [Slot], random: &mut Random) -> u32 {
    let ended = guest.serve();
    for &(number, _) in &ended {
        let slot = &mut slots[number as usize];
        assert!(slot.busy.is_some(), "request {number} has ended twice");
        free(guest, number, slot, random);
    }
    ended.len() as u32
}

/// Until it is over, nothing is posted to the driver.
fn reset<I: Initiator>(guest: &mut I, random: &mut Random) {
    guest.begin_reset();
    for round in 0.. {
        assert!(guest.serve().is_empty());
        if guest.reset_is_over() {
            return;
        }
        assert!(round < 20, "the reset does not end");
        if random.below(4) == 0 || round > 10 {
            guest.hold().set(false);
        }
    }
}
