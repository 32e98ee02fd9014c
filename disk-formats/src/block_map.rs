//! The flat map of a chain: for each run of a disk, which file has it and where, whatever the chain's length.
//!
//! Filled on the slow path, read without a lock. A granule is unknown until somebody asks for it, then all in one place,
//! or mixed: then each sector has its own entry. What changes afterwards is only that sectors come to the top file, and
//! that is seen by readers sector by sector. File 0 is the top of the chain, the only one that is written.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::{Extents, Mapping, Place};

/// Sectors have 512 bytes.
const SECTOR_SHIFT: u32 = 9;
/// Granules of a page: pages are made when they are first needed.
const PAGE: usize = 512;
const PAGE_SHIFT: u32 = PAGE.trailing_zeros();

const UNKNOWN: u64 = 0;
const ZEROS: u64 = 1;
const WHOLE: u64 = 2;
const MIXED: u64 = 3;
const TAG_BITS: u32 = 2;
const FILE_BITS: u32 = 12;

/// Sector entries of a mixed granule. That of the top is 0: a sector comes there by losing all bits.
const TOP: u16 = 0;
const NOWHERE: u16 = 1;
/// Zeros whatever is below.
const ZERO: u16 = 2;
const FIRST_BASE: u16 = 3;

/// Where the start of a granule would be in a file, if all of it were there (so it may lie before the file's start).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// Index of the file.
    pub(crate) file: u32,
    /// Byte offset, modulo 2^64.
    pub(crate) offset: u64,
}

/// What a granule is found to be, on the way through the chain.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Sectors of the granule inside the disk.
    sectors: usize,
    /// Where the top file has the granule; `None` while it has no block for it.
    top: Option<u64>,
    bases: Vec<Base>,
    /// Entry of each sector; `NOWHERE` while unclaimed. Empty where all are the same: of `bases[0]`, or nowhere without one.
    entries: Vec<u16>,
    unclaimed: usize,
}

impl Claim {
    pub(crate) fn new(sectors: usize) -> Self {
        Self { sectors, top: None, bases: Vec::new(), entries: Vec::new(), unclaimed: sectors }
    }

    /// The top file has a block for it, here.
    pub(crate) fn set_top(&mut self, offset: u64) {
        self.top = Some(offset);
    }

    /// Whether nothing below can have a say.
    pub(crate) fn complete(&self) -> bool {
        self.unclaimed == 0
    }

    /// Give the sectors of `[start, end)` for which `has` is true, and which are nobody's yet, to `base`.
    pub(crate) fn claim(&mut self, base: Base, start: usize, end: usize, has: impl Fn(usize) -> bool) {
        let end = end.min(self.sectors);
        if self.unclaimed == 0
            || start >= end
            || self.bases.len() + usize::from(FIRST_BASE) >= usize::from(u16::MAX)
        {
            return;
        }
        let entry = FIRST_BASE + self.bases.len() as u16;
        let taken = self.take(entry, start, end, has);
        if taken > 0 {
            self.bases.push(base);
        }
    }

    /// Give all sectors of `[start, end)` that are nobody's yet to `base`.
    pub(crate) fn claim_run(&mut self, base: Base, start: usize, end: usize) {
        if start == 0 && end >= self.sectors && self.unclaimed == self.sectors {
            // Somebody may have looked in vain.
            self.entries.clear();
            self.bases.push(base);
            // An image above may have looked for sectors of its own, and found none.
            self.entries.clear();
            self.unclaimed = 0;
            return;
        }
        self.claim(base, start, end, |_| true);
    }

    /// Say of the sectors of `[start, end)` that are nobody's yet that they are zeros, whatever is below.
    pub(crate) fn claim_zeros(&mut self, start: usize, end: usize) {
        if start == 0 && end >= self.sectors && self.unclaimed == self.sectors {
            self.entries.clear();
            self.unclaimed = 0;
            return;
        }
        self.take(ZERO, start, end.min(self.sectors), |_| true);
    }

    fn take(&mut self, entry: u16, start: usize, end: usize, has: impl Fn(usize) -> bool) -> usize {
        if self.unclaimed == 0 || start >= end {
            return 0;
        }
        let mut taken = 0;
        if self.entries.is_empty() {
            self.entries.resize(self.sectors, NOWHERE);
        }
        for (sector, slot) in self.entries.iter_mut().enumerate().take(end).skip(start) {
            if *slot == NOWHERE && has(sector) {
                *slot = entry;
                taken += 1;
            }
        }
        self.unclaimed -= taken;
        taken
    }

    /// All of it in one file, if so.
    fn single(&self) -> Option<Base> {
        match self.bases.as_slice() {
            [base] if self.unclaimed == 0 && !self.entries.contains(&ZERO) => Some(*base),
            _ => None,
        }
    }
}

/// Sectors whose entries are in one word: a look-up of 4 KiB reads two.
const LANES: usize = 4;
const LANE_BITS: u32 = 16;
/// A word with the same entry in each lane is the entry times this.
const SPLAT: u64 = 0x0001_0001_0001_0001;

/// A granule with sectors in several places.
#[derive(Debug)]
struct Mixed {
    /// Byte offset in the top file; 0 while it has no block here.
    top: AtomicU64,
    /// The entries of its sectors, four to a word, the first in the low bits.
    entries: Box<[AtomicU64]>,
    bases: Box<[Base]>,
    /// Sectors that are not in the top file.
    elsewhere: AtomicU32,
}

/// Room for the words of one page, which may go to another.
struct Slot {
    /// Number of the page, from 1; 0 while it changes.
    owner: AtomicU64,
    words: [AtomicU64; PAGE],
}

impl Slot {
    fn new() -> Box<Self> {
        Box::new(Self { owner: AtomicU64::new(0), words: [const { AtomicU64::new(UNKNOWN) }; PAGE] })
    }
}

/// What a page with mixed granules has beside its words. Such a page keeps its slot.
struct MixedPage {
    mixed: [OnceLock<Box<Mixed>>; PAGE],
    /// Granules with sectors that have come to the top file since the last [`BlockMap::take_dirty`].
    dirty: [AtomicU64; PAGE / 64],
}

impl MixedPage {
    fn new() -> Box<Self> {
        Box::new(Self {
            mixed: [const { OnceLock::new() }; PAGE],
            dirty: [const { AtomicU64::new(0) }; PAGE / 64],
        })
    }
}

/// Which sectors of a granule are in the top file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Presence {
    /// The granule.
    pub(crate) granule: u64,
    /// For each sector of it that is inside the disk.
    pub(crate) sectors: Vec<bool>,
}

/// The map of a disk.
pub(crate) struct BlockMap {
    size: u64,
    shift: u32,
    /// For each page the number of its slot, from 1; 0 for none.
    directory: Box<[AtomicU32]>,
    slots: Box<[OnceLock<Box<Slot>>]>,
    mixed: Box<[OnceLock<Box<MixedPage>>]>,
    /// Whether there is any of these.
    any_mixed: AtomicBool,
    /// Slots that are made before one is taken from another page.
    limit: u32,
    /// Slots so far, and the one that is looked at next for another page. Slow path, one at a time.
    made: AtomicU32,
    hand: AtomicU32,
}

fn whole(base: Base) -> u64 {
    WHOLE | u64::from(base.file) << TAG_BITS | (base.offset >> SECTOR_SHIFT) << (TAG_BITS + FILE_BITS)
}

/// The base of a word tagged `WHOLE`.
fn base_of(word: u64) -> Base {
    let file = (word >> TAG_BITS) & ((1 << FILE_BITS) - 1);
    Base { file: file as u32, offset: word >> (TAG_BITS + FILE_BITS) << SECTOR_SHIFT }
}

/// What the top file has of a granule.
enum Top {
    Unknown,
    No,
    At(u64),
}

impl BlockMap {
    /// A map of `size` bytes in granules of `1 << shift` bytes, all unknown.
    pub(crate) fn new(size: u64, shift: u32) -> Self {
        let pages = size.div_ceil(1 << shift).div_ceil(PAGE as u64) as usize;
        Self {
            size,
            shift,
            directory: std::iter::repeat_with(|| AtomicU32::new(0)).take(pages).collect(),
            slots: std::iter::repeat_with(OnceLock::new).take(pages).collect(),
            mixed: std::iter::repeat_with(OnceLock::new).take(pages).collect(),
            any_mixed: AtomicBool::new(false),
            limit: u32::MAX,
            made: AtomicU32::new(0),
            hand: AtomicU32::new(0),
        }
    }

    /// The same, that forgets pages when it has `granules` of them: what was forgotten is found again in the images. Granules that
    /// are mixed, and those beside them, are kept. Only for formats whose images say at every moment what the map has said.
    pub(crate) fn forgetful(mut self, granules: u64) -> Self {
        self.limit = u32::try_from(granules / PAGE as u64).unwrap_or(u32::MAX).max(1);
        self
    }

    /// Forget nothing, after all.
    pub(crate) fn keep_all(&mut self) {
        self.limit = u32::MAX;
    }

    /// Power of two of a granule's bytes.
    pub(crate) fn shift(&self) -> u32 {
        self.shift
    }

    /// Sectors of a granule that are inside the disk.
    pub(crate) fn sectors(&self, granule: u64) -> usize {
        let start = granule << self.shift;
        (self.size.saturating_sub(start).min(1 << self.shift) >> SECTOR_SHIFT) as usize
    }

    /// The slot of a granule's page, with the number by which it must still be owned after it was read.
    #[inline]
    fn slot(&self, granule: u64) -> Option<(&Slot, usize, u64)> {
        let page = granule >> PAGE_SHIFT;
        let number = self.directory.get(page as usize)?.load(Ordering::Acquire);
        let slot = self.slots.get((number as usize).checked_sub(1)?)?.get()?;
        Some((slot, granule as usize & (PAGE - 1), page + 1))
    }

    fn mixed_page(&self, granule: u64) -> Option<(&MixedPage, usize)> {
        let page = self.mixed.get((granule >> PAGE_SHIFT) as usize)?.get()?;
        Some((page, granule as usize & (PAGE - 1)))
    }

    #[inline]
    fn word(&self, granule: u64) -> (u64, Option<&Mixed>) {
        let Some((slot, at, owner)) = self.slot(granule) else { return (UNKNOWN, None) };
        let word = slot.words.get(at).map_or(UNKNOWN, |word| word.load(Ordering::Acquire));
        // A word of another page is seen only after the change of the owner.
        fence(Ordering::Acquire);
        if slot.owner.load(Ordering::Relaxed) != owner {
            return (UNKNOWN, None);
        }
        match word {
            MIXED => {
                let mixed = self.mixed_page(granule).and_then(|(page, at)| page.mixed.get(at)?.get());
                (word, mixed.map(|mixed| &**mixed))
            }
            _ => (word, None),
        }
    }

    /// Whether the granule is known.
    pub(crate) fn known(&self, granule: u64) -> bool {
        self.word(granule).0 != UNKNOWN
    }

    /// Walk over the granules of a range: granule, byte in it, bytes of it.
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
    pub(crate) fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Mapping {
        for (granule, within, part) in self.parts(offset, len) {
            match self.word(granule) {
                (ZEROS, _) => extents.push(part, Place::Zeros),
                (MIXED, Some(mixed)) => mixed.map_read(within, part, extents),
                (UNKNOWN | MIXED, _) => return Mapping::Blocked,
                (word, _) => {
                    let base = base_of(word);
                    extents.push(part, Place::File { file: base.file, offset: base.offset + within });
                }
            }
        }
        Mapping::Ready
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
        match self.word(granule) {
            (UNKNOWN, _) => Top::Unknown,
            (MIXED, Some(mixed)) => match mixed.top.load(Ordering::Acquire) {
                0 => Top::No,
                base => Top::At(base),
            },
            (word, _) if word & 3 == WHOLE && base_of(word).file == 0 => Top::At(base_of(word).offset),
            _ => Top::No,
        }
    }

    /// Enter what was found. Slow path, one at a time.
    pub(crate) fn set(&self, granule: u64, claim: Claim) {
        let word = match (claim.single(), claim.top, claim.bases.is_empty()) {
            (Some(base), None, _) => whole(base),
            (Some(base), Some(_), _) if base.file == 0 => whole(base),
            (_, None, true) => ZEROS,
            _ => MIXED,
        };
        let page = (granule >> PAGE_SHIFT) as usize;
        if word == MIXED {
            let Some(mixed) = self.mixed.get(page) else { return };
            self.any_mixed.store(true, Ordering::Release);
            let mixed = mixed.get_or_init(MixedPage::new).mixed.get(granule as usize & (PAGE - 1));
            let _ = mixed.map(|mixed| mixed.set(Box::new(Mixed::new(claim))));
        }
        self.make_slot(page);
        if let Some((slot, at, _)) = self.slot(granule)
            && let Some(slot) = slot.words.get(at)
        {
            slot.store(word, Ordering::Release);
        }
    }

    /// Give a page a slot, where it has none. Slow path, one at a time.
    fn make_slot(&self, page: usize) {
        let Some(entry) = self.directory.get(page).filter(|entry| entry.load(Ordering::Relaxed) == 0) else {
            return;
        };
        let made = self.made.load(Ordering::Relaxed);
        let number = match made < self.limit {
            true => None,
            false => self.evict(made),
        };
        let number = number.unwrap_or_else(|| {
            self.made.store(made + 1, Ordering::Relaxed);
            made
        });
        let Some(slot) = self.slots.get(number as usize) else { return };
        slot.get_or_init(Slot::new).owner.store(page as u64 + 1, Ordering::Release);
        entry.store(number + 1, Ordering::Release);
    }

    /// Empty the slot of a page without mixed granules; `None` where there is none.
    fn evict(&self, made: u32) -> Option<u32> {
        for _ in 0..made {
            let number = self.hand.load(Ordering::Relaxed) % made;
            self.hand.store(number + 1, Ordering::Relaxed);
            let slot = self.slots.get(number as usize)?.get()?;
            let page = (slot.owner.load(Ordering::Relaxed) as usize).checked_sub(1)?;
            if self.mixed.get(page)?.get().is_some() {
                continue;
            }
            self.directory.get(page)?.store(0, Ordering::Release);
            slot.owner.store(0, Ordering::Relaxed);
            // Who reads a word from now on sees that.
            fence(Ordering::Release);
            slot.words.iter().for_each(|word| word.store(UNKNOWN, Ordering::Relaxed));
            return Some(number);
        }
        None
    }

    /// The top file has got a block for the granule at `offset`. With `all`, its sectors (zeros) count as being there; else
    /// they stay where they are until they are written. Slow path, one at a time; unknown granules stay so.
    pub(crate) fn allocated(&self, granule: u64, offset: u64, all: bool) {
        let (word, mixed) = self.word(granule);
        if word == UNKNOWN && !all {
            return;
        }
        if let Some(mixed) = mixed {
            return mixed.top.store(offset, Ordering::Release);
        }
        let sectors = self.sectors(granule);
        let mut claim = Claim::new(sectors);
        claim.set_top(offset);
        if all {
            claim.claim_run(Base { file: 0, offset }, 0, sectors);
        } else if word & 3 == WHOLE {
            claim.claim_run(base_of(word), 0, sectors);
        }
        self.set(granule, claim);
    }

    /// The granule reads as zeros, and the top file has no block for it any more. Slow path, one at a time; unknown granules
    /// stay so. It must not become mixed again.
    pub(crate) fn given_up(&self, granule: u64) {
        if let Some((slot, at, _)) = self.slot(granule)
            && let Some(word) = slot.words.get(at)
            && word.load(Ordering::Acquire) != UNKNOWN
        {
            word.store(ZEROS, Ordering::Release);
        }
    }

    /// Whether the top file has all of the granule.
    pub(crate) fn in_top(&self, granule: u64) -> bool {
        let (word, _) = self.word(granule);
        word & 3 == WHOLE && base_of(word).file == 0
    }

    /// The range has been written to the top file. `changes` counts what the next flush has to record: it is raised after
    /// the granule is marked, and before anybody can take it for settled.
    #[inline]
    pub(crate) fn written(&self, offset: u64, len: u64, changes: &AtomicU64) {
        for (granule, within, part) in self.parts(offset, len) {
            let (MIXED, Some(mixed)) = self.word(granule) else { continue };
            let complete = mixed.written(within, part);
            self.mark_dirty(granule);
            changes.fetch_add(1, Ordering::AcqRel);
            if complete
                && let Some((slot, at, _)) = self.slot(granule)
                && let Some(word) = slot.words.get(at)
            {
                let base = Base { file: 0, offset: mixed.top.load(Ordering::Acquire) };
                // Unless the granule was given up meanwhile.
                let _ = word.compare_exchange(MIXED, whole(base), Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// The granules that [`written`](Self::written) has changed since the last call, with what the top file has of each.
    pub(crate) fn take_dirty(&self) -> Vec<Presence> {
        let mut taken = Vec::new();
        if !self.any_mixed.load(Ordering::Acquire) {
            return taken;
        }
        for (number, page) in self.mixed.iter().enumerate() {
            let Some(page) = page.get() else { continue };
            for (group, dirty) in page.dirty.iter().enumerate() {
                let mut bits = dirty.swap(0, Ordering::AcqRel);
                while bits != 0 {
                    let granule = (number * PAGE + group * 64) as u64 + u64::from(bits.trailing_zeros());
                    bits &= bits - 1;
                    taken.push(self.presence(granule));
                }
            }
        }
        taken
    }

    /// Have [`take_dirty`](Self::take_dirty) give the granule again.
    pub(crate) fn mark_dirty(&self, granule: u64) {
        let Some((page, at)) = self.mixed_page(granule) else { return };
        if let Some(dirty) = page.dirty.get(at / 64) {
            dirty.fetch_or(1 << (at % 64), Ordering::AcqRel);
        }
    }

    /// What the top file has of a granule: nothing where it is unknown.
    pub(crate) fn presence(&self, granule: u64) -> Presence {
        let sectors = self.sectors(granule);
        let sectors = match self.word(granule) {
            (MIXED, Some(mixed)) => (0..sectors).map(|sector| mixed.entry(sector) == TOP).collect(),
            (word, _) => vec![word & 3 == WHOLE && base_of(word).file == 0; sectors],
        };
        Presence { granule, sectors }
    }
}

impl Mixed {
    fn new(claim: Claim) -> Self {
        let top_bases: Vec<bool> = claim.bases.iter().map(|base| base.file == 0).collect();
        let entry = |entry: &u16| {
            let base = usize::from(entry.wrapping_sub(FIRST_BASE));
            if *entry >= FIRST_BASE && top_bases.get(base) == Some(&true) { TOP } else { *entry }
        };
        let mut entries: Vec<u16> = claim.entries.iter().map(entry).collect();
        let all = if claim.bases.is_empty() { NOWHERE } else { entry(&FIRST_BASE) };
        entries.resize(claim.sectors, all);
        let elsewhere = entries.iter().filter(|entry| **entry != TOP).count();
        let word = |lanes: &[u16]| {
            let lanes = lanes.iter().enumerate();
            AtomicU64::new(
                lanes.fold(0, |word, (lane, entry)| word | u64::from(*entry) << (lane as u32 * LANE_BITS)),
            )
        };
        Self {
            top: AtomicU64::new(claim.top.unwrap_or(0)),
            entries: entries.chunks(LANES).map(word).collect(),
            bases: claim.bases.into(),
            elsewhere: AtomicU32::new(elsewhere as u32),
        }
    }

    /// The words that hold the sectors `[first, end)`.
    #[inline]
    fn words(&self, first: usize, end: usize) -> &[AtomicU64] {
        self.entries.get(first / LANES..end.div_ceil(LANES)).unwrap_or_default()
    }

    fn entry(&self, sector: usize) -> u16 {
        let word = self.entries.get(sector / LANES).map_or(0, |word| word.load(Ordering::Acquire));
        (word >> ((sector % LANES) as u32 * LANE_BITS)) as u16
    }

    #[inline]
    fn map_read(&self, within: u64, part: u64, extents: &mut Extents) {
        let first = (within >> SECTOR_SHIFT) as usize;
        let end = ((within + part) >> SECTOR_SHIFT) as usize;
        if first.is_multiple_of(LANES) && end.is_multiple_of(LANES) {
            // Mostly a request lies in one place.
            let mut words = self.words(first, end).iter().map(|word| word.load(Ordering::Acquire));
            let word = words.next().unwrap_or(0);
            if word == (word & 0xFFFF) * SPLAT && words.all(|other| other == word) {
                return self.push(word as u16, first, end, extents);
            }
        }
        let mut run = first;
        while run < end {
            let entry = self.entry(run);
            let mut next = run + 1;
            while next < end && self.entry(next) == entry {
                next += 1;
            }
            self.push(entry, run, next, extents);
            run = next;
        }
    }

    #[inline]
    fn push(&self, entry: u16, first: usize, end: usize, extents: &mut Extents) {
        let place = match entry {
            NOWHERE | ZERO => Place::Zeros,
            TOP => self.place(Base { file: 0, offset: self.top.load(Ordering::Acquire) }, first),
            other => match self.bases.get(usize::from(other - FIRST_BASE)) {
                Some(base) => self.place(*base, first),
                None => Place::Zeros,
            },
        };
        extents.push(((end - first) as u64) << SECTOR_SHIFT, place);
    }

    fn place(&self, base: Base, sector: usize) -> Place {
        Place::File { file: base.file, offset: base.offset.wrapping_add((sector as u64) << SECTOR_SHIFT) }
    }

    /// Whether all sectors are in the top file now.
    fn written(&self, within: u64, part: u64) -> bool {
        let first = (within >> SECTOR_SHIFT) as usize;
        let end = ((within + part) >> SECTOR_SHIFT) as usize;
        let mut came = 0;
        for (number, word) in self.words(first, end).iter().enumerate() {
            let start = first / LANES * LANES + number * LANES;
            let lanes = (0..LANES).filter(|lane| (first..end).contains(&(start + lane)));
            let mask = lanes.fold(0, |mask, lane| mask | 0xFFFF << (lane as u32 * LANE_BITS));
            // The entry of the top is 0: to come there is to lose all bits.
            let old = word.fetch_and(!mask, Ordering::AcqRel) & mask;
            came += (0..LANES as u32).filter(|lane| old >> (lane * LANE_BITS) & 0xFFFF != 0).count() as u32;
        }
        self.elsewhere.fetch_sub(came, Ordering::AcqRel) == came
    }
}

#[cfg(test)]
mod tests;
