//! Direct I/O in units that are larger than 512 bytes: on devices with 4,096-byte sectors, and in files that share space
//! with others (XFS reflink).
//!
//! A write that does not fill its units reads them, replaces its part, and writes them back. It is *partial*: until it has
//! ended, no other write may change its units, or the data that it wrote back would replace the other's. So every write is
//! registered here. A partial write waits until no other write of its units is registered; a write of whole units waits for
//! partial ones alone. All queues and threads of this process that use the [`BackingFile`](super::BackingFile) take part; writers in other
//! processes are excluded by the lock of the file.

use std::ops::Range;
#[expect(
    clippy::disallowed_types,
    reason = "only for disks whose sectors are smaller than the units of direct I/O"
)]
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The units of a file, and the writes that are in flight.
#[derive(Debug)]
pub(crate) struct Units {
    /// Bytes of a unit, a power of two.
    bytes: u64,
    #[expect(clippy::disallowed_types, reason = "as above")]
    writes: Mutex<Vec<Write>>,
    ended: Condvar,
}

/// A registered write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Write {
    /// Whole units.
    range: Range<u64>,
    partial: bool,
}

impl Write {
    fn excludes(&self, other: &Self) -> bool {
        (self.partial || other.partial)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

impl Units {
    pub(super) fn new(bytes: u32) -> Self {
        Self { bytes: u64::from(bytes), writes: Default::default(), ended: Condvar::new() }
    }

    /// Whether a range fills its units.
    pub(crate) fn filled_by(&self, offset: u64, len: u64) -> bool {
        (offset | len) & (self.bytes - 1) == 0
    }

    /// Bytes of a unit.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn registered(&self) -> MutexGuard<'_, Vec<Write>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Register a write of whole units, which [`end`](Self::end)s later; `false` if a partial write excludes it.
    pub(crate) fn try_begin(&self, range: &Range<u64>) -> bool {
        let write = Write { range: range.clone(), partial: false };
        let mut registered = self.registered();
        let free = !registered.iter().any(|other| write.excludes(other));
        if free {
            registered.push(write);
        }
        free
    }

    /// A write of whole units has ended.
    pub(crate) fn end(&self, range: &Range<u64>) {
        self.remove(&Write { range: range.clone(), partial: false });
    }

    fn remove(&self, write: &Write) {
        let mut registered = self.registered();
        if let Some(at) = registered.iter().position(|other| other == write) {
            registered.swap_remove(at);
        }
        drop(registered);
        self.ended.notify_all();
    }

    /// Register a write of `[offset, offset + len)` until the result is dropped. Waits for the writes that exclude it.
    pub(super) fn register(&self, offset: u64, len: u64) -> Registered<'_> {
        let start = offset - offset % self.bytes;
        let end = offset.saturating_add(len);
        let end = end.checked_next_multiple_of(self.bytes).unwrap_or(end);
        let write = Write { range: start..end, partial: !self.filled_by(offset, len) };
        let mut registered = self.registered();
        while registered.iter().any(|other| write.excludes(other)) {
            registered = self.ended.wait(registered).unwrap_or_else(PoisonError::into_inner);
        }
        registered.push(write.clone());
        drop(registered);
        Registered { units: self, write }
    }
}

/// A registered write of a thread that may block.
#[derive(Debug)]
pub(super) struct Registered<'a> {
    units: &'a Units,
    write: Write,
}

impl Registered<'_> {
    /// Its units.
    pub(super) fn range(&self) -> Range<u64> {
        self.write.range.clone()
    }

    /// Whether it does not fill them.
    pub(super) fn is_partial(&self) -> bool {
        self.write.partial
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.units.remove(&self.write);
    }
}

/// The parts of `[offset, offset + len)` before, in, and after whole units of `unit` bytes; the middle may be empty.
pub(super) fn split(offset: u64, len: u64, unit: u64) -> [Range<u64>; 3] {
    let end = offset + len;
    let first = offset.checked_next_multiple_of(unit).map_or(end, |first| first.min(end));
    let last = (end - end % unit).max(first);
    [offset..first, first..last, last..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_at_whole_units() {
        assert_eq!(split(0, 8192, 4096), [0..0, 0..8192, 8192..8192]);
        assert_eq!(split(512, 512, 4096), [512..1024, 1024..1024, 1024..1024]);
        assert_eq!(split(512, 8192, 4096), [512..4096, 4096..8192, 8192..8704]);
        assert_eq!(split(3584, 1024, 4096), [3584..4096, 4096..4096, 4096..4608]);
    }

    #[test]
    fn a_partial_write_excludes_all_others_of_its_units() {
        let units = Units::new(4096);
        assert!(units.try_begin(&(0..8192)) && units.try_begin(&(4096..12288)), "whole ones may overlap");
        units.end(&(0..8192));
        units.end(&(4096..12288));
        let partial = units.register(4096 + 512, 512);
        assert!(units.try_begin(&(0..4096)) && units.try_begin(&(8192..12288)), "neighbours");
        assert!(!units.try_begin(&(0..8192)));
        drop(partial);
        assert!(units.try_begin(&(0..8192)));
    }

    #[test]
    fn a_partial_write_waits_for_those_before_it() {
        let units = Units::new(4096);
        let (order, ended) = std::sync::mpsc::channel();
        let partial = order.clone();
        assert!(units.try_begin(&(0..4096)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _registered = units.register(0, 512);
                partial.send("partial").unwrap();
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            order.send("whole").unwrap();
            units.end(&(0..4096));
        });
        assert_eq!(ended.try_iter().collect::<Vec<_>>(), ["whole", "partial"]);
        assert!(units.registered().is_empty());
    }
}
