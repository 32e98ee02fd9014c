//! Which writes to a disk may be in flight together.
//!
//! A write of a part of a sector reads the sector, merges its bytes and writes the sector ([`Part`](super::parts::Part)). If another write
//! changed the sector between the read and the write, it would be lost. So two writes conflict if one of them writes a part of a sector
//! that the other writes, too. Writes that conflict are in flight one after the other, in the order in which they entered the gate; all
//! others are in flight together.
//!
//! While no write of a part is in the gate, a write of whole sectors only increments a counter, and its range is not known. A write of a
//! part ends that: from then on all writes enter a table with their ranges, and it waits for those that were counted.
//!
//! ```text
//! enter -> counted (whole sectors, no parts in the gate) -------------> granted
//!       -> in the table, behind no conflicting write -----------------> granted
//!       -> in the table, behind some: they are dropped -> Waker, event -> granted
//! ```

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
#[expect(
    clippy::disallowed_types,
    reason = "writes of whole sectors take the lock only beside writes of parts"
)]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// In [`WriteGate::counted`]: writes of parts are in the table, so no write is only counted.
const ORDERED: u64 = 1 << 63;

/// The sectors that a write changes, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Numbers of the sectors.
    pub(super) sectors: Range<u64>,
    /// Only a part of the first sector is written.
    pub(super) part_of_first: bool,
    /// Only a part of the last sector is written.
    pub(super) part_of_last: bool,
    /// It may take long (discards, writes of zeros of any length): it is in the table always, so that writes of parts elsewhere do not
    /// wait for it.
    pub(super) long: bool,
}

impl Claim {
    /// Whether parts of sectors are written.
    pub(super) const fn has_parts(&self) -> bool {
        self.part_of_first || self.part_of_last
    }

    fn conflicts(&self, other: &Self) -> bool {
        self.writes_part_in(&other.sectors) || other.writes_part_in(&self.sectors)
    }

    fn writes_part_in(&self, sectors: &Range<u64>) -> bool {
        self.part_of_first && sectors.contains(&self.sectors.start)
            || self.part_of_last && sectors.contains(&self.sectors.end.saturating_sub(1))
    }
}

/// Tells a connection which of its requests have been granted.
#[derive(Debug)]
pub(super) struct Waker {
    event: OwnedFd,
    /// A bit for each request.
    granted: Box<[AtomicU64]>,
}

impl Waker {
    /// For requests with numbers below `requests`.
    ///
    /// # Errors
    /// The host has no eventfd left.
    pub(super) fn new(requests: u32) -> Result<Arc<Self>, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let words = requests.div_ceil(u64::BITS) as usize;
        Ok(Arc::new(Self {
            event,
            granted: std::iter::repeat_with(AtomicU64::default).take(words).collect(),
        }))
    }

    fn grant(&self, request: u32) {
        let Some(word) = self.granted.get((request / u64::BITS) as usize) else { return };
        word.fetch_or(1 << (request % u64::BITS), Ordering::AcqRel);
        // Fails only for a full counter, which is readable.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Append the requests that have been granted since the last call.
    pub(super) fn take(&self, requests: &mut Vec<u32>) {
        for (word, first) in self.granted.iter().zip((0..).step_by(u64::BITS as usize)) {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let bits = word.swap(0, Ordering::AcqRel);
            requests.extend((0..u64::BITS).filter(|bit| bits >> bit & 1 == 1).map(|bit| first + bit));
        }
    }

    /// Readable when a request has been granted, until it is [acknowledged](Self::acknowledge).
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Make [`event`](Self::event) unreadable. [`take`](Self::take) after it.
    pub(super) fn acknowledge(&self) {
        // Fails only where it is unreadable already.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

/// The gate of a disk, shared by all connections that use it.
#[derive(Debug, Default)]
#[expect(
    clippy::disallowed_types,
    reason = "writes of whole sectors take the lock only beside writes of parts"
)]
pub(super) struct WriteGate {
    /// Writes that are only counted, and [`ORDERED`].
    counted: AtomicU64,
    table: Mutex<Table>,
}

/// Writes with their ranges.
#[derive(Debug, Default)]
struct Table {
    /// The number of the next entry.
    next: u64,
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Places of the entries that write parts.
    parts: Vec<usize>,
}

#[derive(Debug)]
struct Entry {
    /// The order in which the entries came.
    number: u64,
    claim: Claim,
    /// Earlier entries that conflict, and one more if it waits for the writes that are only counted. 0: it is granted.
    blockers: usize,
    /// It waits for the writes that are only counted.
    behind_counted: bool,
    waker: Arc<Waker>,
    request: u32,
}

impl Entry {
    fn unblock(&mut self) {
        self.blockers -= 1;
        if self.blockers == 0 {
            self.waker.grant(self.request);
        }
    }
}

impl Table {
    /// The entries that conflict with a claim.
    fn each_conflicting(&mut self, claim: &Claim, mut act: impl FnMut(&mut Entry)) {
        let mut visit = |entry: &mut Option<Entry>| {
            if let Some(entry) = entry
                && entry.claim.conflicts(claim)
            {
                act(entry);
            }
        };
        if claim.has_parts() {
            self.entries.iter_mut().for_each(visit);
        } else {
            // Writes of whole sectors do not conflict with each other.
            self.parts.iter().for_each(|place| self.entries.get_mut(*place).into_iter().for_each(&mut visit));
        }
    }

    /// Add an entry. Returns its place, and whether it is granted.
    fn insert(
        &mut self,
        claim: Claim,
        behind_counted: bool,
        waker: &Arc<Waker>,
        request: u32,
    ) -> (usize, bool) {
        let mut blockers = usize::from(behind_counted);
        self.each_conflicting(&claim, |_| blockers += 1);
        let number = self.next;
        self.next += 1;
        let place = self.free.pop().unwrap_or(self.entries.len());
        if claim.has_parts() {
            self.parts.push(place);
        }
        let entry =
            Some(Entry { number, claim, blockers, behind_counted, waker: Arc::clone(waker), request });
        match self.entries.get_mut(place) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        (place, blockers == 0)
    }

    fn remove(&mut self, place: usize) {
        let Some(Entry { number, claim, .. }) = self.entries.get_mut(place).and_then(Option::take) else {
            return;
        };
        self.free.push(place);
        if claim.has_parts() {
            self.parts.retain(|part| *part != place);
        }
        self.each_conflicting(&claim, |entry| {
            if entry.number > number {
                entry.unblock();
            }
        });
    }

    /// No write is only counted any more.
    fn counted_ended(&mut self) {
        for place in &self.parts {
            if let Some(Some(entry)) = self.entries.get_mut(*place)
                && std::mem::take(&mut entry.behind_counted)
            {
                entry.unblock();
            }
        }
    }
}

/// A write's place in the gate. Dropping it lets in the writes that wait for it.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    gate: &'a WriteGate,
    /// `None`: it is only counted.
    place: Option<usize>,
}

impl WriteGate {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing that holds the lock can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enter with a write. True: it is granted. False: it must not start before the waker has its number, `request`; the caller does not
    /// drop the permit before.
    pub(super) fn enter(&self, claim: Claim, waker: &Arc<Waker>, request: u32) -> (Permit<'_>, bool) {
        if !claim.has_parts() && !claim.long && self.count() {
            return (Permit { gate: self, place: None }, true);
        }
        let mut table = self.table();
        let mut behind_counted = false;
        if claim.has_parts() {
            // The counter only decreases from here on, and with the last of these writes it is `ORDERED`.
            behind_counted = self.counted.fetch_or(ORDERED, Ordering::AcqRel) & !ORDERED != 0;
        }
        let (place, granted) = table.insert(claim, behind_counted, waker, request);
        (Permit { gate: self, place: Some(place) }, granted)
    }

    /// Count a write of whole sectors, if no write of a part is in the gate.
    #[inline]
    fn count(&self) -> bool {
        let count = |counted: u64| (counted & ORDERED == 0).then_some(counted + 1);
        self.counted.fetch_update(Ordering::Acquire, Ordering::Relaxed, count).is_ok()
    }

    #[cold]
    fn last_counted_ended(&self) {
        let mut table = self.table();
        // Meanwhile the writes of parts may have left the gate, and others that wait for other counted writes may have entered.
        if self.counted.load(Ordering::Acquire) == ORDERED {
            table.counted_ended();
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let gate = self.gate;
        let Some(place) = self.place else {
            if gate.counted.fetch_sub(1, Ordering::AcqRel) == ORDERED | 1 {
                gate.last_counted_ended();
            }
            return;
        };
        let mut table = gate.table();
        table.remove(place);
        if table.parts.is_empty() {
            gate.counted.fetch_and(!ORDERED, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(sectors: Range<u64>, part_of_first: bool, part_of_last: bool) -> Claim {
        Claim { sectors, part_of_first, part_of_last, long: false }
    }

    fn whole(sectors: Range<u64>) -> Claim {
        claim(sectors, false, false)
    }

    /// A part of one sector.
    fn part(sector: u64) -> Claim {
        claim(sector..sector + 1, true, false)
    }

    fn granted(waker: &Waker) -> Vec<u32> {
        let mut requests = Vec::new();
        waker.take(&mut requests);
        requests
    }

    #[test]
    fn writes_conflict_where_one_of_them_writes_a_part() {
        for (one, other, expected) in [
            (whole(0..9), whole(3..5), false),
            (part(3), whole(3..4), true),
            (part(3), whole(0..9), true),
            (part(3), whole(4..9), false),
            (part(3), part(3), true),
            (part(3), part(4), false),
            // The middle of a large write is whole sectors.
            (claim(0..9, true, true), whole(1..8), false),
            (claim(0..9, true, true), whole(8..9), true),
            (claim(0..9, true, false), whole(8..9), false),
            (claim(0..9, false, true), part(4), true),
            (claim(0..9, true, true), claim(8..20, true, true), true),
            (claim(0..9, true, true), claim(9..20, true, true), false),
        ] {
            assert_eq!(
                (one.conflicts(&other), other.conflicts(&one)),
                (expected, expected),
                "{one:?} {other:?}"
            );
        }
    }

    #[test]
    fn writes_of_whole_sectors_are_only_counted() {
        let (gate, waker) = (WriteGate::default(), Waker::new(128).unwrap());
        let all: Vec<_> = (0..100).map(|n| gate.enter(whole(0..8), &waker, n)).collect();
        assert!(all.iter().all(|(permit, granted)| *granted && permit.place.is_none()));
        let (long, granted) = gate.enter(Claim { long: true, ..whole(0..1 << 40) }, &waker, 100);
        assert!(granted && long.place.is_some());
        drop((all, long));
        assert_eq!(gate.counted.load(Ordering::Relaxed), 0);
    }

    /// Writes that conflict are granted in the order in which they came, of whichever connection they are.
    #[test]
    fn conflicting_writes_take_turns() {
        let gate = WriteGate::default();
        let wakers = [(); 3].map(|()| Waker::new(128).unwrap());
        let claims = [part(7), part(7), whole(0..8), whole(7..9), part(7), claim(6..8, false, true)];
        let enter = |(claim, n): (Claim, u32)| gate.enter(claim, &wakers[n as usize % 3], n);
        let (permits, at_once): (Vec<_>, Vec<_>) = claims.into_iter().zip(0..).map(enter).unzip();
        assert_eq!(at_once, [true, false, false, false, false, false]);
        assert!(enter((part(20), 6)).1, "another sector");
        let mut permits: Vec<_> = permits.into_iter().map(Some).collect();
        for (ends, expected) in [(0, &[1][..]), (1, &[2, 3]), (3, &[]), (2, &[4]), (4, &[5]), (5, &[])] {
            permits[ends] = None;
            let mut now: Vec<_> = wakers.iter().flat_map(|waker| granted(waker)).collect();
            now.sort_unstable();
            assert_eq!(now, expected, "{ends}");
        }
    }

    /// Writes of whole sectors without end do not delay a write of a part by more than those that were in flight before it.
    #[test]
    fn a_part_waits_for_what_was_in_flight_and_no_more() {
        let (gate, waker) = (WriteGate::default(), Waker::new(128).unwrap());
        let (first, second) = (gate.enter(whole(0..1), &waker, 0).0, gate.enter(whole(50..60), &waker, 1).0);
        let (one, one_granted) = gate.enter(part(0), &waker, 2);
        let (other, other_granted) = gate.enter(part(99), &waker, 3);
        assert!(!one_granted && !other_granted, "the ranges of the writes in flight are not known");
        let (elsewhere, granted_elsewhere) = gate.enter(whole(1..90), &waker, 4);
        let (behind, granted_behind) = gate.enter(whole(0..90), &waker, 5);
        assert!(granted_elsewhere && !granted_behind);
        drop(first);
        assert!(granted(&waker).is_empty());
        drop(second);
        assert_eq!(granted(&waker), [2, 3]);
        // Now the ranges of all writes in flight are known.
        let (third, third_granted) = gate.enter(part(95), &waker, 6);
        assert!(third_granted);
        drop(other);
        drop(one);
        assert_eq!(granted(&waker), [5]);
        drop(third);
        assert!(gate.enter(whole(0..1), &waker, 7).0.place.is_none(), "it is only counted again");
        // Of writes that entered the table, the range is known.
        let (part, part_granted) = gate.enter(part(5), &waker, 8);
        assert!(!part_granted);
        drop(behind);
        assert!(granted(&waker).is_empty());
        drop(elsewhere);
        assert_eq!(granted(&waker), [8]);
        drop(part);
    }

    /// Those that wait for a write that is counted leave before it ends, and others enter.
    #[test]
    fn who_leaves_while_it_waits_delays_nobody() {
        let (gate, waker) = (WriteGate::default(), Waker::new(128).unwrap());
        let counted = gate.enter(whole(0..1), &waker, 0).0;
        let (first, second) = (gate.enter(part(5), &waker, 1).0, gate.enter(part(5), &waker, 2).0);
        drop(first);
        drop(second);
        let more = gate.enter(whole(0..1), &waker, 3).0;
        assert!(more.place.is_none());
        let third = gate.enter(part(5), &waker, 4).0;
        drop(counted);
        assert!(granted(&waker).is_empty());
        drop(more);
        assert_eq!(granted(&waker), [4]);
        drop(third);
        assert_eq!(gate.counted.load(Ordering::Relaxed), 0);
        assert!(gate.table().parts.is_empty() && gate.table().entries.iter().all(Option::is_none));
    }

    /// Threads that write bytes of few sectors, read-modify-write, and whole sectors. A byte that is lost is found.
    #[test]
    fn threads_exclude_each_other() {
        const SECTORS: usize = 3;
        const THREADS: u64 = 4;
        let gate = WriteGate::default();
        // A byte of each thread in each sector.
        let disk: [AtomicU64; SECTORS] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (gate, disk) = (&gate, &disk);
                scope.spawn(move || {
                    let waker = Waker::new(1).unwrap();
                    let mut mine = [0u8; SECTORS];
                    for round in 0..20_000 {
                        let sector = round % SECTORS;
                        // Some writes are whole sectors elsewhere.
                        let claim =
                            if round % 7 == thread as usize { whole(10..20) } else { part(sector as u64) };
                        let parts = claim.has_parts();
                        let (_permit, granted) = gate.enter(claim, &waker, 0);
                        if !granted {
                            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                                waker.event(),
                                rustix::event::PollFlags::IN,
                            )];
                            while rustix::event::poll(&mut fds, None) == Err(Errno::INTR) {}
                            waker.acknowledge();
                            assert_eq!(super::tests::granted(&waker), [0]);
                        }
                        if parts {
                            let old = disk[sector].load(Ordering::Relaxed);
                            assert_eq!(old.to_le_bytes()[thread as usize], mine[sector]);
                            mine[sector] = mine[sector].wrapping_add(1);
                            let mut new = old.to_le_bytes();
                            new[thread as usize] = mine[sector];
                            disk[sector].store(u64::from_le_bytes(new), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(gate.counted.load(Ordering::Relaxed), 0);
    }
}
