//! Resolving one granule: the images of a chain claim sectors, from the top image down.

use super::entry::{Base, NO_BASE, ZEROS, place_word};
use crate::contract::error::IoError;

/// Values of a claim's entries. A sector that is `NOWHERE` may still be claimed by a lower image.
const NOWHERE: u16 = 0;
/// The sector reads as zeros, whatever the lower images have.
const ZERO: u16 = 1;
const FIRST_BASE: u16 = 2;

/// A granule that is being resolved.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Sectors of the granule inside the disk.
    sectors: usize,
    /// Offset of the granule's block in the top file; `None` if the top file has no block for the granule.
    top: Option<u64>,
    bases: Vec<Base>,
    /// Entry of each sector; `NOWHERE` if unclaimed. Empty if all sectors are the same: in `bases[0]`, or, if `bases` is
    /// empty, unclaimed or claimed as zeros.
    entries: Vec<u16>,
    unclaimed: usize,
}

/// The map's representation of a granule.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The same for all sectors: zeros, or one file.
    Word(u64),
    /// Different places.
    Mixed(Sectors),
}

/// The places of a granule's sectors.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sectors {
    /// Byte offset of the block in the top file; 0 if there is none.
    pub(super) top: u64,
    /// Places outside of the top file, as words.
    pub(super) places: Vec<u64>,
    /// For each sector 0 if it is in the top file, else the number of its place, from 1.
    pub(super) values: Vec<u16>,
}

impl Claim {
    pub(crate) fn new(sectors: usize) -> Self {
        Self { sectors, top: None, bases: Vec::new(), entries: Vec::new(), unclaimed: sectors }
    }

    /// The top file has a block for the granule at `offset`.
    pub(crate) fn set_top(&mut self, offset: u64) {
        self.top = Some(offset);
    }

    /// Whether all sectors are claimed.
    pub(crate) fn complete(&self) -> bool {
        self.unclaimed == 0
    }

    /// Assign those unclaimed sectors of `[start, end)` to `base` for which `has` is true.
    pub(crate) fn claim(&mut self, base: Base, start: usize, end: usize, has: impl Fn(usize) -> bool) {
        let end = end.min(self.sectors);
        // The cast does not truncate: each base has at least one sector. A granule with several bases has at most 4,096.
        let entry = FIRST_BASE + self.bases.len() as u16;
        if self.take(entry, start, end, has) > 0 {
            self.bases.push(base);
        }
    }

    /// Assign all unclaimed sectors of `[start, end)` to `base`.
    pub(crate) fn claim_run(&mut self, base: Base, start: usize, end: usize) {
        if start == 0 && end >= self.sectors && self.unclaimed == self.sectors {
            // An image above may have created the entries without claiming a sector.
            self.entries.clear();
            self.bases.push(base);
            self.unclaimed = 0;
            return;
        }
        self.claim(base, start, end, |_| true);
    }

    /// Claim the unclaimed sectors of `[start, end)` as zeros, whatever the lower images have.
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

    /// The base of all sectors, if there is only one.
    fn single(&self) -> Option<Base> {
        match self.bases.as_slice() {
            [base] if self.unclaimed == 0 && !self.entries.contains(&ZERO) => Some(*base),
            _ => None,
        }
    }

    /// Convert the claim to the map's representation.
    ///
    /// # Errors
    /// [`IoError::Damaged`] if a sector refers to a base that does not exist.
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
        // For each entry the value assigned to it. Entries in the top file have the value 0 and no place.
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

    /// Only a bug can produce such a claim. It must be an error, and not read as zeros.
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
