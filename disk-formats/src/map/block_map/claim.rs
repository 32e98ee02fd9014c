//! Resolving one granule: the images of a chain claim its sectors, from the top down.

use super::entry::{Base, place_word};
use super::word::{NO_BASE, ZEROS};
use crate::error::IoError;

/// Entries of a claim's sectors. An image further down may still claim a sector that is `NOWHERE`.
const NOWHERE: u16 = 0;
/// Zeros, whatever is below.
const ZERO: u16 = 1;
const FIRST_BASE: u16 = 2;

/// A granule that is being resolved.
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

/// A granule as the map enters it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// One word says all: zeros, or all of it in one file.
    Word(u64),
    /// Each sector has a place of its own.
    Mixed(Sectors),
}

/// The places of a granule's sectors.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sectors {
    /// Byte offset in the top file; 0 while it has no block.
    pub(super) top: u64,
    /// The places that are not the top file's, as words.
    pub(super) places: Vec<u64>,
    /// For each sector 0 for the top file, else the number of its place, from 1.
    pub(super) values: Vec<u16>,
}

impl Claim {
    pub(crate) fn new(sectors: usize) -> Self {
        Self { sectors, top: None, bases: Vec::new(), entries: Vec::new(), unclaimed: sectors }
    }

    /// The top file has a block for it, here.
    pub(crate) fn set_top(&mut self, offset: u64) {
        self.top = Some(offset);
    }

    /// Whether all sectors are claimed.
    pub(crate) fn complete(&self) -> bool {
        self.unclaimed == 0
    }

    /// Give the sectors of `[start, end)` for which `has` is true, and which are not claimed yet, to `base`.
    pub(crate) fn claim(&mut self, base: Base, start: usize, end: usize, has: impl Fn(usize) -> bool) {
        let end = end.min(self.sectors);
        // Each base has a sector at the least, and a granule 4,096 sectors at the most.
        let entry = FIRST_BASE + self.bases.len() as u16;
        if self.take(entry, start, end, has) > 0 {
            self.bases.push(base);
        }
    }

    /// Give all unclaimed sectors of `[start, end)` to `base`.
    pub(crate) fn claim_run(&mut self, base: Base, start: usize, end: usize) {
        if start == 0 && end >= self.sectors && self.unclaimed == self.sectors {
            // An image above may have looked for sectors of its own, and found none.
            self.entries.clear();
            self.bases.push(base);
            self.unclaimed = 0;
            return;
        }
        self.claim(base, start, end, |_| true);
    }

    /// Claim the unclaimed sectors of `[start, end)` as zeros, whatever the images further down hold.
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

    /// How the map enters it.
    ///
    /// # Errors
    /// [`IoError::Damaged`] where a sector names a base that does not exist.
    pub(super) fn found(&self) -> Result<Found, IoError> {
        match (self.single(), self.top, self.bases.is_empty()) {
            (Some(base), None, _) => Ok(Found::Word(place_word(base))),
            (Some(base), Some(_), _) if base.file == 0 => Ok(Found::Word(place_word(base))),
            (_, None, true) => Ok(Found::Word(ZEROS)),
            _ => self.sectors().map(Found::Mixed),
        }
    }

    fn sectors(&self) -> Result<Sectors, IoError> {
        let mut found = Sectors { top: self.top.unwrap_or(0), places: Vec::new(), values: Vec::new() };
        // For each entry its value, once it was met: what the top has is not among the places.
        let mut met: Vec<Option<u16>> = vec![None; self.bases.len() + usize::from(FIRST_BASE)];
        let mut zeros = None;
        let mut value = |entry: u16| -> Result<u16, IoError> {
            let slot = met.get_mut(usize::from(entry)).ok_or(NO_BASE)?;
            if let Some(value) = *slot {
                return Ok(value);
            }
            let mut number = |word: u64| {
                found.places.push(word);
                found.places.len() as u16
            };
            let value = match entry.checked_sub(FIRST_BASE) {
                None => *zeros.get_or_insert_with(|| number(ZEROS)),
                Some(at) => match self.bases.get(usize::from(at)).ok_or(NO_BASE)? {
                    base if base.file == 0 => 0,
                    base => number(place_word(*base)),
                },
            };
            *slot = Some(value);
            Ok(value)
        };
        let values = match self.entries.is_empty() {
            true => vec![value(if self.bases.is_empty() { NOWHERE } else { FIRST_BASE })?; self.sectors],
            false => self.entries.iter().map(|entry| value(*entry)).collect::<Result<_, _>>()?,
        };
        found.values = values;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a bug of ours could make such a claim. It must be an error and not read as zeros.
    #[test]
    fn an_entry_without_a_base_is_an_error() {
        let mut claim = Claim::new(4);
        claim.set_top(1 << 20);
        claim.claim(Base { file: 1, offset: 0 }, 0, 2, |_| true);
        assert!(matches!(claim.found(), Ok(Found::Mixed(_))));
        if let Some(entry) = claim.entries.get_mut(3) {
            *entry = FIRST_BASE + 1;
        }
        assert_eq!(claim.found(), Err(NO_BASE));
    }
}
