//! The map itself: look-ups without a lock, and the slow path that fills, evicts and records.

use super::claim::{Claim, Found, Sectors};
use super::entry::{
    Base, MIXED, NO_BASE, SECTOR_SHIFT, TAG, UNKNOWN, ZEROS, base_of, is_top, lane_shift, place_word, unit_of,
};
use super::mixed::{
    Mixed, granules_and_pages, most_evicted_writes, parts_of, set_bits, unit_budget, units_without_eviction,
};
use super::pool::{Dirty, EVICTED_WRITE, Owner, PAGE_SHIFT, Pool, Presence, Scan, Slow, UNIT, Unit, WORDS};
use super::sync::atomic::{AtomicU64, Ordering};
use crate::contract::disk::MapMemory;
use crate::contract::error::IoError;
use crate::map::extent::{Extents, Place};
use crate::map::format::Mapping;

/// The reason why a granule is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// All units of the map are dirty: the caller flushes and tries again.
    Full,
    Damaged(IoError),
}

/// A link is broken: a bug.
pub(super) const BROKEN: Refused =
    Refused::Damaged(IoError::Damaged("the block map has a link to a unit that does not exist"));

impl Refused {
    /// Panic for a broken link, in builds with debug assertions.
    #[track_caller]
    fn check(&self) {
        debug_assert!(*self != BROKEN, "the block map has a link to a unit that does not exist");
    }
}

impl From<IoError> for Refused {
    fn from(error: IoError) -> Self {
        Self::Damaged(error)
    }
}

pub(super) const OUTSIDE: IoError = IoError::Damaged("a write reaches beyond the end of its granule");

/// The block map of a disk.
pub(crate) struct BlockMap {
    size: u64,
    shift: u32,
    /// For each page the link to its unit; 0 if it has none.
    pub(super) directory: Box<[AtomicU64]>,
    pub(super) pool: Pool,
}

/// The result of a look-up.
pub(super) enum Known<'a> {
    Unknown,
    /// Tagged `ZEROS` or `WHOLE`.
    Word(u64),
    /// The first unit of a mixed granule, and the link to it.
    Mixed(&'a Unit, u64),
}

/// The block of a granule in the top file.
enum Top {
    Unknown,
    No,
    At(u64),
}

impl BlockMap {
    /// A map of `size` bytes in granules of `1 << shift` bytes, all unknown. `memory` is the budget in bytes
    /// (approximate).
    pub(crate) fn new(size: u64, shift: u32, memory: u64) -> Self {
        Self::with_units(size, shift, unit_budget(size, shift, memory))
    }

    /// As [`new`](Self::new), with a budget of `units` units.
    pub(crate) fn with_units(size: u64, shift: u32, units: u32) -> Self {
        let [_, pages] = granules_and_pages(size, shift);
        let directory = std::iter::repeat_with(|| AtomicU64::new(0)).take(pages as usize).collect();
        Self { size, shift, directory, pool: Pool::new(units) }
    }

    /// Raise the budget so that nothing is ever evicted. For maps of a single image, whose granules take at most one
    /// unit.
    pub(crate) fn never_evict(&mut self) {
        *self = Self::with_units(self.size, self.shift, units_without_eviction(self.size, self.shift));
    }

    /// Memory in use, its peak, and the limit.
    pub(crate) fn memory(&self) -> MapMemory {
        let [in_use, peak, limit, evictions] = self.pool.counts();
        let [writes, most_writes] = self.pool.lock().evicted_writes.counts();
        let bytes = |units, writes| units * UNIT + writes * EVICTED_WRITE + self.directory.len() as u64 * 8;
        MapMemory {
            bytes: bytes(in_use, writes),
            peak: bytes(peak, most_writes),
            budget: bytes(limit, most_evicted_writes(limit)),
            evictions,
        }
    }

    /// Whether a flush must record the evicted writes before another range is resolved. Requests in flight may still add
    /// evicted writes.
    pub(crate) fn evicted_writes_are_full(&self) -> bool {
        let [_, _, limit, _] = self.pool.counts();
        self.pool.lock().evicted_writes.counts()[0] >= most_evicted_writes(limit)
    }

    /// Base-2 logarithm of the granule size.
    pub(crate) fn shift(&self) -> u32 {
        self.shift
    }

    /// Number of sectors of the granule inside the disk.
    pub(crate) fn sectors(&self, granule: u64) -> usize {
        let start = granule << self.shift;
        (self.size.saturating_sub(start).min(1 << self.shift) >> SECTOR_SHIFT) as usize
    }

    /// The unit of the granule's page, the link to that unit, and the granule's word in it.
    #[inline]
    fn page(&self, granule: u64) -> Option<(&Unit, u64, &AtomicU64)> {
        let link = self.directory.get((granule >> PAGE_SHIFT) as usize)?.load(Ordering::Acquire);
        if link == 0 {
            return None;
        }
        let unit = self.pool.unit(unit_of(link))?;
        Some((unit, link, unit.words.get(granule as usize & (WORDS - 1))?))
    }

    #[inline]
    pub(super) fn look_up(&self, granule: u64) -> Known<'_> {
        let Some((page, link, word)) = self.page(granule) else { return Known::Unknown };
        let word = word.load(Ordering::Acquire);
        if !page.is_current(link) {
            return Known::Unknown;
        }
        match word & TAG {
            UNKNOWN => Known::Unknown,
            MIXED => match self.pool.unit(unit_of(word)) {
                Some(unit) => Known::Mixed(unit, word),
                None => Known::Unknown,
            },
            _ => Known::Word(word),
        }
    }

    /// Whether the granule is known.
    pub(crate) fn known(&self, granule: u64) -> bool {
        match self.look_up(granule) {
            Known::Unknown => false,
            Known::Word(_) => true,
            Known::Mixed(unit, link) => unit.is_current(link),
        }
    }

    /// Whether there are free units.
    pub(crate) fn has_free(&self) -> bool {
        self.pool.has_free()
    }

    /// Split a range at granule boundaries: granule, offset in the granule, length.
    #[inline]
    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let (shift, end) = (self.shift, offset + len);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let within = at & ((1 << shift) - 1);
            let part = ((1 << shift) - within).min(end - at);
            let granule = at >> shift;
            at += part;
            Some((granule, within, part))
        })
    }

    /// As [`Format::map_read`](crate::Format::map_read).
    #[inline]
    pub(crate) fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        for (granule, within, part) in self.parts(offset, len) {
            match self.look_up(granule) {
                Known::Word(ZEROS) => extents.push(part, Place::Zeros),
                Known::Word(word) => {
                    let base = base_of(word);
                    let offset = base.offset.wrapping_add(within);
                    extents.push(part, Place::File { file: base.file, offset });
                }
                Known::Mixed(unit, link) => {
                    let read = self.mixed(unit).read(within, part, extents);
                    // The unit was reused during the read: the extents that were read are invalid.
                    if !unit.is_current(link) {
                        return Ok(Mapping::Blocked);
                    }
                    debug_assert!(read.is_some(), "granule {granule}: a sector without a place");
                    read.ok_or(NO_BASE)?;
                }
                Known::Unknown => return Ok(Mapping::Blocked),
            }
        }
        Ok(Mapping::Ready)
    }

    /// As [`Format::map_write`](crate::Format::map_write).
    #[inline]
    pub(crate) fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Mapping {
        for (granule, within, part) in self.parts(offset, len) {
            match self.top(granule) {
                Top::At(base) => extents.push(part, Place::File { file: 0, offset: base + within }),
                Top::No | Top::Unknown => return Mapping::Blocked,
            }
        }
        Mapping::Ready
    }

    #[inline]
    fn top(&self, granule: u64) -> Top {
        match self.look_up(granule) {
            Known::Unknown => Top::Unknown,
            Known::Word(word) if is_top(word) => Top::At(base_of(word).offset),
            Known::Word(_) => Top::No,
            Known::Mixed(unit, link) => {
                let top = unit.top.load(Ordering::Acquire);
                match (unit.is_current(link), top) {
                    (false, _) => Top::Unknown,
                    (true, 0) => Top::No,
                    (true, offset) => Top::At(offset),
                }
            }
        }
    }

    #[inline]
    pub(super) fn mixed<'a>(&'a self, unit: &'a Unit) -> Mixed<'a> {
        Mixed { pool: &self.pool, unit }
    }

    /// Store the state of a resolved granule. `evict` allows evicting other granules for it. A granule that is known
    /// already stays unchanged. Slow path.
    ///
    /// # Errors
    /// [`Refused::Full`]; [`Refused::Damaged`] if the claim is inconsistent.
    pub(crate) fn set(&self, granule: u64, claim: &Claim, evict: bool) -> Result<(), Refused> {
        let mut slow = self.pool.lock();
        if self.known(granule) {
            return Ok(());
        }
        let entered = match claim.found()? {
            // The top file has all of the granule or none of it: evicted writes add nothing.
            Found::Word(word) => {
                self.slot(&mut slow, granule, evict).map(|slot| slot.store(word, Ordering::Release))
            }
            Found::Mixed(mut sectors) => {
                let mut dirty = false;
                for range in slow.evicted_writes.of(granule).filter(|_| sectors.top != 0) {
                    sectors.values.get_mut(range).ok_or(OUTSIDE)?.fill(0);
                    dirty = true;
                }
                self.enter_mixed(&mut slow, granule, &sectors, dirty, evict)
            }
        };
        entered.inspect_err(Refused::check)?;
        slow.evicted_writes.remove(granule);
        Ok(())
    }

    /// Take free units. `evict` allows evicting units in use.
    pub(super) fn take(&self, slow: &mut Slow, count: usize, evict: bool) -> Result<Vec<u32>, Refused> {
        self.pool.take(slow, count, |slow| evict && self.evict(slow)).ok_or(Refused::Full)
    }

    /// The granule's word. Allocates its page if it has none.
    fn slot(&self, slow: &mut Slow, granule: u64, evict: bool) -> Result<&AtomicU64, Refused> {
        if self.page(granule).is_none() {
            let page = granule >> PAGE_SHIFT;
            let entry = self.directory.get(page as usize).ok_or(BROKEN)?;
            let number = self.take(slow, 1, evict)?.pop().ok_or(Refused::Full)?;
            let unit = self.pool.fill(number).ok_or(BROKEN)?;
            unit.words.iter().for_each(|word| word.store(UNKNOWN, Ordering::Relaxed));
            entry.store(self.pool.publish(slow, number, Owner::Page(page), false), Ordering::Release);
        }
        self.page(granule).map(|(_, _, slot)| slot).ok_or(BROKEN)
    }

    pub(super) fn enter_mixed(
        &self,
        slow: &mut Slow,
        granule: u64,
        sectors: &Sectors,
        dirty: bool,
        evict: bool,
    ) -> Result<(), Refused> {
        let shift = lane_shift(sectors.places.len());
        let [lanes, places] = parts_of(sectors.values.len(), sectors.places.len());
        let units = self.take(slow, 1 + lanes + places, evict)?;
        // Take the page last: taking the units may evict it. Taking the page cannot evict the units, because they have no
        // owner yet.
        let filled = self.slot(slow, granule, evict).and_then(|slot| {
            let (first, others) = units.split_first().ok_or(BROKEN)?;
            let unit = self.pool.fill(*first).ok_or(BROKEN)?;
            self.mixed(unit).fill(others, lanes, shift, sectors).ok_or(BROKEN)?;
            Ok((slot, *first))
        });
        match filled {
            Ok((slot, first)) => {
                let link = self.pool.publish(slow, first, Owner::Granule(granule), dirty);
                slot.store(link, Ordering::Release);
                Ok(())
            }
            Err(refused) => {
                units.iter().for_each(|unit| self.pool.free(slow, *unit));
                Err(refused)
            }
        }
    }

    /// Free the units of a mixed granule whose first unit is retired.
    fn release(&self, slow: &mut Slow, first: u32) {
        if let Some(unit) = self.pool.unit(first)
            && unit.lanes.load(Ordering::Relaxed) != 0
        {
            let parts = unit.words.iter().map(|word| word.load(Ordering::Relaxed) as u32);
            parts.filter(|part| *part != 0).for_each(|part| self.pool.free(slow, part));
        }
        self.pool.free(slow, first);
    }

    /// Evict a mixed granule, or a page without mixed granules; `false` if all units are dirty or in use.
    fn evict(&self, slow: &mut Slow) -> bool {
        let mixed = |page: &Unit| page.words.iter().any(|word| word.load(Ordering::Relaxed) & TAG == MIXED);
        match self.pool.evict(slow, mixed) {
            Some((number, Owner::Page(page))) => {
                if let Some(entry) = self.directory.get(page as usize) {
                    entry.store(0, Ordering::Release);
                }
                self.pool.free(slow, number);
            }
            Some((number, Owner::Granule(granule))) => {
                self.replace(granule, UNKNOWN);
                self.release(slow, number);
            }
            Some((_, Owner::Nothing)) | None => return false,
        }
        true
    }

    /// Replace the word of a granule, if its page has a unit.
    fn replace(&self, granule: u64, word: u64) {
        if let Some((_, _, slot)) = self.page(granule) {
            slot.store(word, Ordering::Release);
        }
    }

    /// The top file has allocated a block for the granule at `offset`. With `all`, the map takes its sectors (zeros) as
    /// present in the top file; otherwise each sector keeps its place until it is written. Slow path. An unknown
    /// granule stays unknown. If there is no free unit, and `evict` is false or nothing can be evicted, the granule becomes
    /// unknown; it is resolved from the images at its next use.
    ///
    /// # Errors
    /// [`IoError::Damaged`] if the map is inconsistent.
    pub(crate) fn allocated(&self, granule: u64, offset: u64, all: bool, evict: bool) -> Result<(), IoError> {
        let mut slow = self.pool.lock();
        let word = match self.look_up(granule) {
            Known::Unknown => return Ok(()),
            Known::Mixed(unit, _) => {
                unit.top.store(offset, Ordering::Release);
                return Ok(());
            }
            Known::Word(word) => word,
        };
        let whole = place_word(Base { file: 0, offset });
        let sectors = self.sectors(granule);
        let entered = match all {
            true => self.slot(&mut slow, granule, evict).map(|slot| slot.store(whole, Ordering::Release)),
            false => {
                let sectors = Sectors { top: offset, places: vec![word], values: vec![1; sectors] };
                self.enter_mixed(&mut slow, granule, &sectors, false, evict)
            }
        };
        let Err(refused) = entered else { return Ok(()) };
        self.replace(granule, UNKNOWN);
        refused.check();
        match refused {
            Refused::Full => Ok(()),
            Refused::Damaged(error) => Err(error),
        }
    }

    /// The granule reads as zeros, and the top file has freed its block. The caller guarantees that the granule does
    /// not become mixed again. Slow path. An unknown granule stays unknown.
    pub(crate) fn freed(&self, granule: u64) {
        let mut slow = self.pool.lock();
        slow.evicted_writes.remove(granule);
        let known = self.look_up(granule);
        if matches!(known, Known::Unknown) {
            return;
        }
        self.replace(granule, ZEROS);
        if let Known::Mixed(_, link) = known
            && self.pool.drop_use(link)
        {
            self.release(&mut slow, unit_of(link));
        }
    }

    /// Whether all of the granule is in the top file.
    pub(crate) fn in_top(&self, granule: u64) -> bool {
        match self.look_up(granule) {
            Known::Unknown => false,
            Known::Word(word) => is_top(word),
            Known::Mixed(unit, link) => unit.not_in_top.load(Ordering::Acquire) == 0 && unit.is_current(link),
        }
    }

    /// Called when a write to the top file has completed. `changes` counts the changes that the next flush has to
    /// record. It is incremented after the granule is marked dirty, so a flush that sees the count also finds the
    /// granule.
    #[inline]
    pub(crate) fn written(&self, offset: u64, len: u64, changes: &AtomicU64) {
        for (granule, within, part) in self.parts(offset, len) {
            let sectors = (within >> SECTOR_SHIFT) as usize..((within + part) >> SECTOR_SHIFT) as usize;
            if self.arrived(granule, &sectors).unwrap_or_else(|| self.arrived_evicted(granule, sectors)) {
                changes.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Move sectors to the top file. Returns whether there is a change to record; `None` if the granule is unknown.
    #[inline]
    fn arrived(&self, granule: u64, sectors: &std::ops::Range<usize>) -> Option<bool> {
        match self.look_up(granule) {
            Known::Unknown => None,
            // All of the granule is in the top file, or the granule was freed in the meantime.
            Known::Word(_) => Some(false),
            Known::Mixed(unit, link) => {
                if !unit.pin(link) {
                    return None;
                }
                self.mixed(unit).move_to_top(sectors);
                self.pool.unpin(unit, link);
                Some(true)
            }
        }
    }

    /// The granule was evicted after the write was mapped.
    #[cold]
    fn arrived_evicted(&self, granule: u64, sectors: std::ops::Range<usize>) -> bool {
        let mut slow = self.pool.lock();
        // While the lock is held, no granule is resolved or evicted.
        if let Some(changed) = self.arrived(granule, &sectors) {
            return changed;
        }
        slow.evicted_writes.push(granule, &sectors);
        true
    }

    /// About `count` dirty granules, starting at the position of `scan`. A complete scan finds every granule that was
    /// dirty when the scan began. The returned granules are not evicted until [`recorded`](Self::recorded) is called.
    pub(crate) fn take_dirty(&self, scan: &mut Scan, count: usize) -> Vec<Dirty> {
        self.pool.take_dirty(scan, count)
    }

    /// With `done`, the images record the granules as they were when [`take_dirty`](Self::take_dirty) returned them.
    /// Otherwise the granules are dirty again.
    pub(crate) fn recorded(&self, dirty: &[Dirty], done: bool) {
        let mut slow = None;
        for granule in dirty {
            let clean = self.pool.recorded(*granule, done);
            let unit = self.pool.unit(unit_of(granule.link)).filter(|_| clean && done);
            let Some(unit) = unit.filter(|unit| unit.not_in_top.load(Ordering::Acquire) == 0) else {
                continue;
            };
            // All of the granule is in the top file now: one word replaces the units.
            let slow = slow.get_or_insert_with(|| self.pool.lock());
            let base = Base { file: 0, offset: unit.top.load(Ordering::Acquire) };
            if !self.pool.retire(granule.link) {
                continue;
            }
            self.replace(granule.granule, place_word(base));
            self.release(slow, unit_of(granule.link));
        }
    }

    /// The granule's sectors that are in the top file, as a bitmap; empty if the granule is unknown.
    ///
    /// # Errors
    /// [`IoError::Damaged`] if the map is inconsistent. The caller must not record a bitmap then.
    pub(crate) fn presence(&self, granule: u64) -> Result<Presence, IoError> {
        let mut bits = [0; WORDS];
        let sectors = self.sectors(granule);
        match self.look_up(granule) {
            Known::Word(word) if is_top(word) => set_bits(&mut bits, 0..sectors),
            Known::Unknown | Known::Word(_) => {}
            Known::Mixed(unit, link) => {
                self.mixed(unit).presence(sectors, &mut bits)?;
                if !unit.is_current(link) {
                    return Err(IoError::Damaged("the map lost a granule that is being recorded"));
                }
            }
        }
        Ok(bits)
    }

    /// Granules with evicted writes.
    pub(crate) fn evicted_writes(&self) -> Vec<u64> {
        self.pool.lock().evicted_writes.granules()
    }
}
