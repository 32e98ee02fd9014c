//! The memory of a block map: units of one size, which are reused and are read without a lock.
//!
//! A unit has the words of a page, the head of a mixed granule, or a part of one: lanes or places ([`Owner`]). A reader follows a link to a unit,
//! reads, and then compares the stamps of link and unit, as with a sequence lock. If the unit was reused in the
//! meantime, the stamps differ, and the reader discards what it read. The memory of units is never freed, so a slow
//! reader always reads valid memory.
//!
//! The unit of a mixed granule counts the threads that modify it. It is dirty while the images do not record its
//! content. A unit that is dirty or that a writer has pinned is not evicted.

use std::collections::BTreeSet;
use std::ops::Range;

use super::entry::{MAX_UNITS, MIXED, STAMP_SHIFT, link, same_use, unit_of};
use super::sizes::CHUNK;
use super::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use super::sync::{MutexGuard, OnceLock, PoisonError};

pub(super) use super::sizes::WORDS;

#[allow(
    clippy::disallowed_types,
    reason = "the slow path: entering, evicting, and writes whose granule was evicted meanwhile"
)]
type Mutex<T> = super::sync::Mutex<T>;

/// Base-2 logarithm of the number of granules of a page.
pub(super) const PAGE_SHIFT: u32 = WORDS.trailing_zeros();

/// The sectors of a granule that are in the top file, as a bitmap. The first sector is bit 0 of the first word. A
/// granule that can be mixed has at most 4,096 sectors.
pub(crate) type Presence = [u64; WORDS];
/// Size of a unit in bytes.
pub(super) const UNIT: u64 = std::mem::size_of::<Unit>() as u64;

/// Mask in the state of a unit: number of writers that have pinned it.
const WRITERS: u64 = 0xFFFF;
/// The unit has changes that the images do not record. The next flush records them.
const DIRTY: u64 = 1 << 20;
/// A flush is recording the unit.
const RECORDING: u64 = 1 << 21;

/// What a unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Nothing, or a part of a mixed granule: only the head of the granule refers to it.
    Nothing,
    /// The words of the granules of this page.
    Page(u64),
    /// The head of this mixed granule.
    Granule(u64),
}

impl Owner {
    /// Encode as a tag, and above it the number of the page or granule.
    fn word(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Page(page) => page << 2 | 1,
            Self::Granule(granule) => granule << 2 | 2,
        }
    }

    fn of(word: u64) -> Self {
        match word & 3 {
            1 => Self::Page(word >> 2),
            2 => Self::Granule(word >> 2),
            _ => Self::Nothing,
        }
    }
}

pub(super) struct Unit {
    /// The stamp (0 if the unit is free or part of a mixed granule), [`DIRTY`], [`RECORDING`], and the number of
    /// writers.
    state: AtomicU64,
    /// The unit was read after the clock hand passed it.
    used: AtomicBool,
    /// For a mixed granule: base-2 logarithm of the lane width in bits.
    pub(super) lanes: AtomicU32,
    /// For a mixed granule: number of sectors that are not in the top file.
    pub(super) not_in_top: AtomicU32,
    /// An [`Owner`]. Slow path.
    owner: AtomicU64,
    /// For a mixed granule: byte offset of its block in the top file; 0 if there is none.
    pub(super) top: AtomicU64,
    /// For a mixed granule with one place outside of the top file: that place.
    pub(super) place: AtomicU64,
    pub(super) words: [AtomicU64; WORDS],
}

struct Chunk {
    /// One bit for each unit that may be dirty. A flush examines these units.
    dirty: AtomicU64,
    units: [Unit; CHUNK],
}

/// State that is protected by the lock.
#[derive(Default)]
pub(super) struct Slow {
    free: Vec<u32>,
    /// Number of the next unit that has never been used.
    made: u32,
    hand: u32,
    stamp: u64,
    pub(super) evicted_writes: EvictedWrites,
}

pub(super) struct Pool {
    chunks: Box<[OnceLock<Box<Chunk>>]>,
    /// Limit of the unit numbers (exclusive).
    end: u32,
    slow: Mutex<Slow>,
    /// Units in use, the maximum so far, and the number of evictions.
    in_use: AtomicU64,
    peak: AtomicU64,
    evictions: AtomicU64,
}

/// A dirty granule that a flush records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// The granule.
    pub(crate) granule: u64,
    pub(super) link: u64,
}

/// The position of a flush in its search for dirty granules. Units that become dirty behind the position are left to
/// the next flush.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    chunk: usize,
    over: bool,
}

impl Scan {
    /// Whether the scan has examined all units.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }
}

impl Unit {
    fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            used: AtomicBool::new(false),
            lanes: AtomicU32::new(0),
            not_in_top: AtomicU32::new(0),
            owner: AtomicU64::new(Owner::Nothing.word()),
            top: AtomicU64::new(0),
            place: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Whether the unit still has the stamp of `link`. If so, what the caller read from the unit is valid.
    #[inline]
    pub(super) fn is_current(&self, link: u64) -> bool {
        // If the caller read words of a later use, it also sees the changed state.
        fence(Ordering::Acquire);
        let same = same_use(self.state.load(Ordering::Relaxed), link);
        if same && !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        same
    }

    /// Change the state, if it has the stamp of `link` and `change` returns a new state.
    fn change(&self, link: u64, change: impl Fn(u64) -> Option<u64>) -> bool {
        let change = |state| if same_use(state, link) { change(state) } else { None };
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Protect the unit from eviction while its sectors move to the top file; `false` if it was evicted already.
    #[inline]
    pub(super) fn pin(&self, link: u64) -> bool {
        self.change(link, |state| Some((state + 1) | DIRTY))
    }

    fn unpin(&self, link: u64) {
        // A flush may have cleared `DIRTY` since `pin`.
        self.change(link, |state| Some((state - 1) | DIRTY));
    }

    /// End the unit's use, unless the state has one of the bits of `kept_by`.
    fn retire(&self, link: u64, kept_by: u64) -> bool {
        self.change(link, |state| if state & kept_by == 0 { Some(0) } else { None })
    }

    fn owner(&self) -> Owner {
        Owner::of(self.owner.load(Ordering::Relaxed))
    }

    /// The link to this unit, whose number is `number`.
    fn link(&self, number: u32) -> u64 {
        link(MIXED, number, self.state.load(Ordering::Relaxed) >> STAMP_SHIFT)
    }
}

impl Pool {
    /// A pool of at most `limit` units.
    pub(super) fn new(limit: u32) -> Self {
        // Number 0 means no unit.
        let end = limit.min(MAX_UNITS - 1) + 1;
        let chunks = (end as usize).div_ceil(CHUNK);
        Self {
            chunks: std::iter::repeat_with(OnceLock::new).take(chunks).collect(),
            end,
            slow: Mutex::new(Slow { made: 1, ..Slow::default() }),
            in_use: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Slow> {
        // The state is consistent even if a holder of the lock panicked.
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn unit(&self, number: u32) -> Option<&Unit> {
        self.chunks.get(number as usize / CHUNK)?.get()?.units.get(number as usize % CHUNK)
    }

    /// Units in use, the maximum so far, the limit, and the number of evictions.
    pub(super) fn counts(&self) -> [u64; 4] {
        let [in_use, peak, evictions] =
            [&self.in_use, &self.peak, &self.evictions].map(|count| count.load(Ordering::Relaxed));
        [in_use, peak, u64::from(self.end - 1), evictions]
    }

    /// Whether a unit is available without an eviction.
    pub(super) fn has_free(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) < u64::from(self.end - 1)
    }

    /// Take `count` units, which have no owner yet. `evict` frees a unit in use, or returns `false`. `None` if there
    /// are not enough.
    pub(super) fn take(
        &self,
        slow: &mut Slow,
        count: usize,
        mut evict: impl FnMut(&mut Slow) -> bool,
    ) -> Option<Vec<u32>> {
        while slow.free.len() + ((self.end - slow.made) as usize) < count {
            if !evict(slow) {
                return None;
            }
        }
        let mut taken = Vec::with_capacity(count);
        for _ in 0..count {
            taken.push(self.take_one(slow)?);
        }
        let in_use = self.in_use.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        self.peak.fetch_max(in_use, Ordering::Relaxed);
        Some(taken)
    }

    fn take_one(&self, slow: &mut Slow) -> Option<u32> {
        if let Some(number) = slow.free.pop() {
            return Some(number);
        }
        let number = slow.made;
        self.chunks.get(number as usize / CHUNK)?.get_or_init(Chunk::new);
        slow.made += 1;
        Some(number)
    }

    pub(super) fn free(&self, slow: &mut Slow, number: u32) {
        if let Some(unit) = self.unit(number) {
            unit.owner.store(Owner::Nothing.word(), Ordering::Relaxed);
        }
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        slow.free.push(number);
    }

    /// The memory of a taken unit, to be filled. The fence makes readers with an old link see the changed state before
    /// the new words.
    pub(super) fn fill(&self, number: u32) -> Option<&Unit> {
        fence(Ordering::Release);
        self.unit(number)
    }

    /// Publish a filled unit with a new stamp. Returns the link to it.
    pub(super) fn publish(&self, slow: &mut Slow, number: u32, owner: Owner, dirty: bool) -> u64 {
        slow.stamp = (slow.stamp + 1) & (u64::MAX >> STAMP_SHIFT);
        slow.stamp = slow.stamp.max(1);
        if let Some(unit) = self.unit(number) {
            unit.owner.store(owner.word(), Ordering::Relaxed);
            unit.used.store(true, Ordering::Relaxed);
            let state = slow.stamp << STAMP_SHIFT | if dirty { DIRTY } else { 0 };
            unit.state.store(state, Ordering::Release);
        }
        if dirty {
            self.note_dirty(number);
        }
        link(MIXED, number, slow.stamp)
    }

    /// Mark a unit for examination by the next flush.
    #[inline]
    fn note_dirty(&self, number: u32) {
        if let Some(chunk) = self.chunks.get(number as usize / CHUNK).and_then(OnceLock::get) {
            chunk.dirty.fetch_or(1 << (number as usize % CHUNK), Ordering::AcqRel);
        }
    }

    /// A writer has moved its sectors to the top file: unpin the unit and mark it dirty.
    #[inline]
    pub(super) fn unpin(&self, unit: &Unit, link: u64) {
        unit.unpin(link);
        self.note_dirty(unit_of(link));
    }

    /// Evict a unit by the clock algorithm. Returns its number and its owner. Units that were read after the hand passed them get a second
    /// chance.
    pub(super) fn evict(
        &self,
        slow: &mut Slow,
        page_is_needed: impl Fn(&Unit) -> bool,
    ) -> Option<(u32, Owner)> {
        for _ in 0..2 * u64::from(slow.made) {
            let number = slow.hand % slow.made;
            slow.hand = number + 1;
            let Some(unit) = self.unit(number) else { continue };
            let owner = unit.owner();
            if owner == Owner::Nothing || unit.used.swap(false, Ordering::Relaxed) {
                continue;
            }
            let needed = matches!(owner, Owner::Page(_)) && page_is_needed(unit);
            if needed || !unit.retire(unit.link(number), DIRTY | RECORDING | WRITERS) {
                continue;
            }
            self.evictions.fetch_add(1, Ordering::Relaxed);
            return Some((number, owner));
        }
        None
    }

    /// End the use of a mixed granule's unit, dirty or not, after its writers have unpinned it. `false` if the use had
    /// ended already.
    pub(super) fn drop_use(&self, link: u64) -> bool {
        let Some(unit) = self.unit(unit_of(link)) else { return false };
        while same_use(unit.state.load(Ordering::Acquire), link) {
            if unit.retire(link, WRITERS) {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// About `count` dirty granules from the position of the scan on. They are marked as being recorded until
    /// [`recorded`](Self::recorded) is called for them.
    pub(super) fn take_dirty(&self, scan: &mut Scan, count: usize) -> Vec<Dirty> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let Some(chunk) = self.chunks.get(scan.chunk).and_then(OnceLock::get) else {
                scan.over = true;
                break;
            };
            let mut bits = chunk.dirty.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let at = bits.trailing_zeros();
                bits &= bits - 1;
                let Some(unit) = chunk.units.get(at as usize) else { continue };
                let link = unit.link((scan.chunk * CHUNK) as u32 + at);
                let dirty = |state| if state & DIRTY == 0 { None } else { Some(state & !DIRTY | RECORDING) };
                if let Owner::Granule(granule) = unit.owner()
                    && unit.change(link, dirty)
                {
                    taken.push(Dirty { granule, link });
                }
            }
            scan.chunk += 1;
        }
        taken
    }

    /// The recording of a dirty granule has ended. Without `done` the granule is dirty again. Returns whether it is
    /// unchanged since [`take_dirty`](Self::take_dirty).
    pub(super) fn recorded(&self, dirty: Dirty, done: bool) -> bool {
        let Some(unit) = self.unit(unit_of(dirty.link)) else { return false };
        unit.change(dirty.link, |state| Some(state & !RECORDING | if done { 0 } else { DIRTY }));
        if !done {
            self.note_dirty(unit_of(dirty.link));
        }
        let state = unit.state.load(Ordering::Acquire);
        same_use(state, dirty.link) && state & (DIRTY | WRITERS) == 0
    }

    /// End the use of a unit if it is clean and not pinned.
    pub(super) fn retire(&self, link: u64) -> bool {
        self.unit(unit_of(link)).is_some_and(|unit| unit.retire(link, DIRTY | RECORDING | WRITERS))
    }
}

impl Chunk {
    fn new() -> Box<Self> {
        Box::new(Self { dirty: AtomicU64::new(0), units: std::array::from_fn(|_| Unit::new()) })
    }
}

/// Maximum number of bytes that the set needs for a range: an entry has 16, and the nodes of a B-tree are at least half
/// full.
pub(super) const EVICTED_WRITE: u64 = 40;

/// Writes that completed after their granule was evicted: ranges of sectors that are in the top file although the images do not record it
/// yet.
#[derive(Default)]
pub(super) struct EvictedWrites {
    /// Granule, first sector, end (exclusive).
    ranges: BTreeSet<(u64, u32, u32)>,
    peak: usize,
}

impl EvictedWrites {
    pub(super) fn push(&mut self, granule: u64, sectors: &Range<usize>) {
        self.ranges.insert((granule, sectors.start as u32, sectors.end as u32));
        self.peak = self.peak.max(self.ranges.len());
    }

    /// The ranges of a granule.
    pub(super) fn of(&self, granule: u64) -> impl Iterator<Item = Range<usize>> + '_ {
        let ranges = self.ranges.range((granule, 0, 0)..=(granule, u32::MAX, u32::MAX));
        ranges.map(|(_, start, end)| *start as usize..*end as usize)
    }

    pub(super) fn remove(&mut self, granule: u64) {
        while let Some(range) = self.ranges.range((granule, 0, 0)..=(granule, u32::MAX, u32::MAX)).next() {
            let range = *range;
            self.ranges.remove(&range);
        }
    }

    /// In ascending order.
    pub(super) fn granules(&self) -> Vec<u64> {
        let mut granules: Vec<u64> = self.ranges.iter().map(|(granule, ..)| *granule).collect();
        granules.dedup();
        granules
    }

    /// Number of ranges now, and its maximum so far.
    pub(super) fn counts(&self) -> [u64; 2] {
        [self.ranges.len(), self.peak].map(|count| count as u64)
    }
}
