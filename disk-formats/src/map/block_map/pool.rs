//! The memory of a block map: units of one size that are reused, and read without a lock.
//!
//! A unit holds the words of a page, or the sectors of a mixed granule, or a part of these. A reader follows a link to
//! a unit, reads, and then compares the link's stamp with that of the unit (as a sequence lock): a unit that was reused
//! meanwhile has another stamp, and the reader discards what it read. The memory of a unit is never freed, so that a
//! slow reader finds valid memory.
//!
//! A unit of a mixed granule counts the threads that change it, and has a dirty flag while the images do not record its
//! content. Neither a unit in use by a writer nor a dirty one is evicted.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use super::entry::{MAX_UNITS, STAMP_SHIFT, link, same_use, unit_of};
use super::late::Late;

#[allow(
    clippy::disallowed_types,
    reason = "the slow path: entering, evicting, and writes whose granule was evicted meanwhile"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// Words of a unit.
pub(super) const WORDS: usize = 64;
/// Granules of a page.
pub(super) const PAGE_SHIFT: u32 = WORDS.trailing_zeros();

/// Which sectors of a granule are in the top file: the first is bit 0 of the first word. A granule has 4,096 at the most.
pub(crate) type Presence = [u64; WORDS];
/// Units that are allocated together: as many as a word has bits.
const CHUNK: usize = 64;
/// Bytes of a unit.
pub(super) const UNIT: u64 = std::mem::size_of::<Unit>() as u64;

/// Below the stamp, in the state of a unit: how many writers change its sectors now.
const WRITERS: u64 = 0xFFFF;
/// It has changes that the images do not record: the next flush does.
const DIRTY: u64 = 1 << 20;
/// A flush is about to record it.
const RECORDING: u64 = 1 << 21;

/// What a unit is used for, with the number of the page or granule above the tag.
pub(super) const NO_OWNER: u64 = 0;
pub(super) const PAGE: u64 = 1;
pub(super) const GRANULE: u64 = 2;

pub(super) struct Unit {
    /// The stamp of its use (0 for none or a part of another), [`DIRTY`], [`RECORDING`], the count of writers.
    state: AtomicU64,
    /// Read since the clock's hand passed.
    used: AtomicBool,
    /// Of a mixed granule: power of two of a lane's bits.
    pub(super) lanes: AtomicU32,
    /// Of a mixed granule: sectors that are not in the top file.
    pub(super) elsewhere: AtomicU32,
    /// Its owner: a page or a granule. Slow path.
    owner: AtomicU64,
    /// Of a mixed granule: byte offset in the top file, 0 while it has no block here.
    pub(super) top: AtomicU64,
    /// Of a mixed granule with one place beside the top: that place.
    pub(super) place: AtomicU64,
    pub(super) words: [AtomicU64; WORDS],
}

struct Chunk {
    /// A bit for each unit that may be dirty: what a flush examines.
    dirty: AtomicU64,
    units: [Unit; CHUNK],
}

/// What changes under the lock.
#[derive(Default)]
pub(super) struct Slow {
    free: Vec<u32>,
    /// Behind the last unit so far.
    made: u32,
    hand: u32,
    stamp: u64,
    /// Writes that arrived after their granule was evicted.
    pub(super) late: Late,
}

pub(super) struct Pool {
    chunks: Box<[OnceLock<Box<Chunk>>]>,
    /// Behind the last unit that may be made.
    end: u32,
    slow: Mutex<Slow>,
    /// Units in use, now and at the most; units taken from one use for another.
    in_use: AtomicU64,
    peak: AtomicU64,
    evictions: AtomicU64,
}

/// A mixed granule that a flush records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dirty {
    /// The granule.
    pub(crate) granule: u64,
    pub(super) link: u64,
}

/// Where a flush is in its search for dirty granules: what becomes dirty behind it is left to the next flush.
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
    const fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            used: AtomicBool::new(false),
            lanes: AtomicU32::new(0),
            elsewhere: AtomicU32::new(0),
            owner: AtomicU64::new(NO_OWNER),
            top: AtomicU64::new(0),
            place: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Whether the unit is still in the use that this link names, so that what was read before is valid.
    #[inline]
    pub(super) fn still(&self, link: u64) -> bool {
        // Words of another use are seen only after the change of the state.
        fence(Ordering::Acquire);
        let same = same_use(self.state.load(Ordering::Relaxed), link);
        if same && !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        same
    }

    /// Change the state, if it is still of this link's use and `change` allows it.
    fn change(&self, link: u64, change: impl Fn(u64) -> Option<u64>) -> bool {
        let change = |state| if same_use(state, link) { change(state) } else { None };
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Keep it from being evicted while sectors come to the top file: `false` where it was evicted.
    #[inline]
    pub(super) fn pin(&self, link: u64) -> bool {
        self.change(link, |state| Some((state + 1) | DIRTY))
    }

    fn unpin(&self, link: u64) {
        // A flush may have cleared the flag since.
        self.change(link, |state| Some((state - 1) | DIRTY));
    }

    /// End its use, unless a writer or one of the flags `kept_by` holds it.
    fn retire(&self, link: u64, kept_by: u64) -> bool {
        self.change(link, |state| if state & kept_by == 0 { Some(0) } else { None })
    }

    fn link(&self, tag: u64, number: u32) -> u64 {
        link(tag, number, self.state.load(Ordering::Relaxed) >> STAMP_SHIFT)
    }
}

impl Pool {
    /// Units up to `limit`.
    pub(super) fn new(limit: u32) -> Self {
        // Number 0 is none.
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

    #[allow(clippy::disallowed_types, reason = "as above")]
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Slow> {
        // Nothing that panics leaves it half changed.
        self.slow.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn unit(&self, number: u32) -> Option<&Unit> {
        self.chunks.get(number as usize / CHUNK)?.get()?.units.get(number as usize % CHUNK)
    }

    /// Units in use now and at the most, the limit, and evictions.
    pub(super) fn counts(&self) -> [u64; 4] {
        let [in_use, peak, evictions] =
            [&self.in_use, &self.peak, &self.evictions].map(|count| count.load(Ordering::Relaxed));
        [in_use, peak, u64::from(self.end - 1), evictions]
    }

    /// Whether a unit can be taken without an eviction.
    pub(super) fn has_free(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) < u64::from(self.end - 1)
    }

    /// Take `count` units, without owner so far; `evict` allows to evict others. `None` where there are not as many.
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

    pub(super) fn give_back(&self, slow: &mut Slow, number: u32) {
        if let Some(unit) = self.unit(number) {
            unit.owner.store(NO_OWNER, Ordering::Relaxed);
        }
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        slow.free.push(number);
    }

    /// Before a unit that was taken is filled: invalidate it for readers that still follow an old link.
    pub(super) fn fill(&self, number: u32) -> Option<&Unit> {
        fence(Ordering::Release);
        self.unit(number)
    }

    /// Begin the use of a unit that was filled: the link to it.
    pub(super) fn begin(&self, slow: &mut Slow, number: u32, tag: u64, owner: u64, dirty: bool) -> u64 {
        slow.stamp = (slow.stamp + 1) & (u64::MAX >> STAMP_SHIFT);
        slow.stamp = slow.stamp.max(1);
        if let Some(unit) = self.unit(number) {
            unit.owner.store(owner, Ordering::Relaxed);
            unit.used.store(true, Ordering::Relaxed);
            let state = slow.stamp << STAMP_SHIFT | if dirty { DIRTY } else { 0 };
            unit.state.store(state, Ordering::Release);
        }
        if dirty {
            self.note_dirty(number);
        }
        link(tag, number, slow.stamp)
    }

    /// Have the next flush examine a unit.
    #[inline]
    fn note_dirty(&self, number: u32) {
        if let Some(chunk) = self.chunks.get(number as usize / CHUNK).and_then(OnceLock::get) {
            chunk.dirty.fetch_or(1 << (number as usize % CHUNK), Ordering::AcqRel);
        }
    }

    /// The sectors of a pinned unit have come to the top file.
    #[inline]
    pub(super) fn unpin(&self, unit: &Unit, link: u64) {
        unit.unpin(link);
        self.note_dirty(unit_of(link));
    }

    /// Evict the next unit: its number, its owner, and the link to its use, which has ended. Units that were read since
    /// the hand passed are skipped once.
    pub(super) fn evict(
        &self,
        slow: &mut Slow,
        tag: u64,
        page_is_needed: impl Fn(&Unit) -> bool,
    ) -> Option<(u32, u64, u64)> {
        for _ in 0..2 * u64::from(slow.made) {
            let number = slow.hand % slow.made;
            slow.hand = number + 1;
            let Some(unit) = self.unit(number) else { continue };
            let owner = unit.owner.load(Ordering::Relaxed);
            if owner == NO_OWNER || unit.used.swap(false, Ordering::Relaxed) {
                continue;
            }
            let link = unit.link(tag, number);
            if owner & 3 == PAGE && page_is_needed(unit) || !unit.retire(link, DIRTY | RECORDING | WRITERS) {
                continue;
            }
            self.evictions.fetch_add(1, Ordering::Relaxed);
            return Some((number, owner, link));
        }
        None
    }

    /// End the use of a mixed granule's unit, dirty or not, when no writer changes it any more. `false` where it has
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

    /// Dirty granules that the scan has not met so far, about `count` at the most. They are being recorded from now on, until
    /// [`recorded`](Self::recorded) is called for them. `tag` is that of links to mixed granules.
    pub(super) fn take_dirty(&self, scan: &mut Scan, count: usize, tag: u64) -> Vec<Dirty> {
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
                let link = unit.link(tag, (scan.chunk * CHUNK) as u32 + at);
                let owner = unit.owner.load(Ordering::Relaxed);
                let dirty = |state| if state & DIRTY == 0 { None } else { Some(state & !DIRTY | RECORDING) };
                if owner & 3 == GRANULE && unit.change(link, dirty) {
                    taken.push(Dirty { granule: owner >> 2, link });
                }
            }
            scan.chunk += 1;
        }
        taken
    }

    /// A dirty granule is recorded, or is not (then it is dirty as before). `true` where nothing has changed in it since.
    pub(super) fn recorded(&self, dirty: Dirty, done: bool) -> bool {
        let Some(unit) = self.unit(unit_of(dirty.link)) else { return false };
        unit.change(dirty.link, |state| Some(state & !RECORDING | if done { 0 } else { DIRTY }));
        if !done {
            self.note_dirty(unit_of(dirty.link));
        }
        let state = unit.state.load(Ordering::Acquire);
        same_use(state, dirty.link) && state & (DIRTY | WRITERS) == 0
    }

    /// End the use of a unit, if it is clean and has no writers.
    pub(super) fn retire(&self, link: u64) -> bool {
        self.unit(unit_of(link)).is_some_and(|unit| unit.retire(link, DIRTY | RECORDING | WRITERS))
    }
}

impl Chunk {
    fn new() -> Box<Self> {
        Box::new(Self { dirty: AtomicU64::new(0), units: [const { Unit::new() }; CHUNK] })
    }
}
