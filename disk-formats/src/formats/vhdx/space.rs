//! Allocation of space in the file, in units of 1 MiB.

use super::region::Run;
use super::spec::MIB;

/// Largest file that is written: it has space for 64 TiB of payload, the bitmaps, and for moving blocks. The bitmap of
/// used space takes 16 MiB.
pub(super) const MAX_FILE: u64 = 128 << 40;

/// The used and free space of a file.
pub(super) struct Space {
    /// One bit for each MiB in use.
    used: Vec<u64>,
    /// Size of the file in MiB.
    end: u64,
    /// Number of free MiB.
    free: u64,
    /// There is no free MiB before this one.
    hint: u64,
}

/// Newly taken space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) run: Run,
    /// Whether the space was part of the file before, so that it may hold old data.
    pub(super) used_before: bool,
}

impl Space {
    /// A file of `len` bytes, at most [`MAX_FILE`], all of it free.
    pub(super) fn new(len: u64) -> Self {
        let end = len.min(MAX_FILE).div_ceil(MIB);
        Self { used: vec![0; end.div_ceil(64) as usize], end, free: end, hint: 0 }
    }

    /// Size of the file in bytes.
    pub(super) fn end(&self) -> u64 {
        self.end * MIB
    }

    /// Extend the file to at least `len` bytes.
    pub(super) fn grow(&mut self, len: u64) {
        let end = len.div_ceil(MIB).max(self.end);
        self.free += end - self.end;
        self.end = end;
        self.used.resize(end.div_ceil(64) as usize, 0);
    }

    fn bit(&self, at: u64) -> bool {
        self.used.get((at / 64) as usize).is_none_or(|word| word >> (at % 64) & 1 == 1)
    }

    fn set(&mut self, at: u64, used: bool) {
        if let Some(word) = self.used.get_mut((at / 64) as usize) {
            *word = *word & !(1 << (at % 64)) | u64::from(used) << (at % 64);
        }
    }

    /// Mark a range as used; `false` if part of it is used already, or is outside of the file.
    pub(super) fn mark(&mut self, run: Run) -> bool {
        let (first, last) = (run.offset / MIB, run.end().div_ceil(MIB));
        if last > self.end || (first..last).any(|at| self.bit(at)) {
            return false;
        }
        (first..last).for_each(|at| self.set(at, true));
        self.free -= last - first;
        true
    }

    /// Take `len` bytes, whole MiB: the first gap that fits, else space at the end of the file. `None` if the file
    /// would be too large.
    pub(super) fn take(&mut self, len: u64) -> Option<Taken> {
        match self.take_gap(len) {
            Some(run) => Some(Taken { run, used_before: true }),
            None => self.append(len).map(|run| Taken { run, used_before: false }),
        }
    }

    /// Take the first `len` bytes, whole MiB, that are free inside the file.
    pub(super) fn take_gap(&mut self, len: u64) -> Option<Run> {
        self.take_below(len, u64::MAX)
    }

    /// Take `len` bytes, whole MiB, at the end of the file. `None` if the file would be too large.
    pub(super) fn append(&mut self, len: u64) -> Option<Run> {
        let (first, count) = (self.end, len / MIB);
        let end = first.checked_add(count).filter(|end| *end <= MAX_FILE / MIB)?;
        self.end = end;
        self.used.resize(end.div_ceil(64) as usize, 0);
        (first..end).for_each(|at| self.set(at, true));
        Some(Run { offset: first * MIB, len })
    }

    fn find(&mut self, count: u64) -> Option<u64> {
        if self.free < count {
            return None;
        }
        let (mut at, mut first_free) = (self.hint, None);
        let (mut run, mut found) = (0, None);
        while at < self.end && found.is_none() {
            if run == 0 && at.is_multiple_of(64) && self.used.get((at / 64) as usize) == Some(&u64::MAX) {
                at += 64;
                continue;
            }
            run = if self.bit(at) { 0 } else { run + 1 };
            if run == 1 {
                first_free = first_free.or(Some(at));
            }
            at += 1;
            found = (run == count).then(|| at - count);
        }
        // No MiB before this one is free.
        self.hint = first_free.or(found).unwrap_or(self.end);
        found
    }

    /// Take `len` bytes that end at or before `limit`, if there are any.
    pub(super) fn take_below(&mut self, len: u64, limit: u64) -> Option<Run> {
        let count = len / MIB;
        let first = self.find(count).filter(|first| (first + count) * MIB <= limit)?;
        (first..first + count).for_each(|at| self.set(at, true));
        self.free -= count;
        Some(Run { offset: first * MIB, len })
    }

    /// Mark a range as free.
    pub(super) fn free(&mut self, run: Run) {
        let (first, last) = (run.offset / MIB, run.end() / MIB);
        for at in first..last.min(self.end) {
            if self.bit(at) {
                self.set(at, false);
                self.free += 1;
            }
        }
        self.hint = self.hint.min(first);
    }

    /// Truncate the file to `to`, because it could not be extended.
    pub(super) fn shorten(&mut self, to: u64) {
        let run = Run { offset: to, len: self.end().saturating_sub(to) };
        self.free(run);
        let end = to / MIB;
        self.free -= self.end.saturating_sub(end);
        self.end = self.end.min(end);
        self.hint = self.hint.min(self.end);
        self.used.truncate(self.end.div_ceil(64) as usize);
    }

    /// The free ranges before the last used MiB.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Run> {
        let (mut at, end) = (0, self.used_end() / MIB);
        std::iter::from_fn(move || {
            let first = (at..end).find(|at| !self.bit(*at))?;
            at = (first..end).find(|at| self.bit(*at))?;
            Some(Run { offset: first * MIB, len: (at - first) * MIB })
        })
    }

    /// Number of free bytes.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free * MIB
    }

    /// End of the last used MiB, in bytes.
    pub(super) fn used_end(&self) -> u64 {
        let last = self.used.iter().rposition(|word| *word != 0);
        last.map_or(0, |at| {
            at as u64 * 64 + 64 - u64::from(self.used.get(at).map_or(0, |word| word.leading_zeros()))
        }) * MIB
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::conformance::Random;

    fn run(first: u64, count: u64) -> Run {
        Run { offset: first * MIB, len: count * MIB }
    }

    #[test]
    fn the_first_gap_that_is_large_enough() {
        let mut space = Space::new(100 * MIB);
        assert!(space.mark(run(0, 10)) && space.mark(run(12, 80)) && !space.mark(run(91, 2)));
        assert!(!space.mark(run(99, 2)));
        assert_eq!(space.take(2 * MIB), Some(Taken { run: run(10, 2), used_before: true }));
        assert_eq!(space.take(9 * MIB), Some(Taken { run: run(100, 9), used_before: false }));
        assert_eq!(space.take(8 * MIB), Some(Taken { run: run(92, 8), used_before: true }));
        assert_eq!((space.end(), space.free_bytes(), space.used_end()), (109 * MIB, 0, 109 * MIB));
        assert_eq!(space.gaps().next(), None);
        space.shorten(100 * MIB);
        assert_eq!((space.end(), space.used_end()), (100 * MIB, 100 * MIB));
        space.free(run(98, 2));
        space.free(run(5, 1));
        assert_eq!(space.gaps().collect::<Vec<_>>(), [run(5, 1)]);
        assert_eq!(space.take(MIB), Some(Taken { run: run(5, 1), used_before: true }));
    }

    #[test]
    fn no_space_is_allocated_twice() {
        let mut random = Random(7);
        let mut space = Space::new(64 * MIB);
        let mut taken: Vec<Run> = Vec::new();
        for _ in 0..20_000 {
            if random.below(2) == 0 || taken.is_empty() {
                let count = 1 << random.below(5);
                let best = (0..).find(|first| {
                    let wanted = run(*first, count);
                    wanted.end() > space.end()
                        || taken
                            .iter()
                            .all(|other| other.end() <= wanted.offset || wanted.end() <= other.offset)
                });
                let new = space.take(count * MIB).expect("space");
                assert!(
                    taken
                        .iter()
                        .all(|other| { other.end() <= new.run.offset || new.run.end() <= other.offset })
                );
                let best = best.expect("a place") * MIB;
                assert!(new.run.offset == best || !new.used_before, "{} instead of {best}", new.run.offset);
                assert!(
                    new.used_before || best + count * MIB > new.run.offset,
                    "a gap at {best} is not found"
                );
                taken.push(new.run);
            } else {
                let given = taken.swap_remove(random.below(taken.len() as u64) as usize);
                space.free(given);
            }
            let used: u64 = taken.iter().map(|run| run.len).sum();
            assert_eq!(space.free_bytes(), space.end() - used);
        }
    }
}
