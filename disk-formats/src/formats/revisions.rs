//! The [`DiskInfo`] of a disk whose capacity may change while the disk is open. Readers get a reference without a lock.
//! References to earlier revisions stay valid.

use std::sync::OnceLock;

use crate::contract::info::DiskInfo;

/// Maximum number of changes while the disk is open: revisions are freed only when it is closed.
const MOST: usize = 1000;

/// A linked list of revisions, from the first to the current one.
#[derive(Debug)]
pub(crate) struct Revisions {
    info: DiskInfo,
    next: OnceLock<Box<Revisions>>,
}

impl Revisions {
    pub(crate) const fn new(info: DiskInfo) -> Self {
        Self { info, next: OnceLock::new() }
    }

    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |revision| revision.next.get().map(Box::as_ref))
    }

    /// The current revision.
    #[inline]
    pub(crate) fn current(&self) -> &DiskInfo {
        let mut revision = self;
        while let Some(next) = revision.next.get() {
            revision = next;
        }
        &revision.info
    }

    /// Append a revision with another capacity. False if there were too many changes.
    pub(crate) fn set_capacity(&self, capacity: u64) -> bool {
        let new = |info: &DiskInfo| Box::new(Self::new(DiskInfo { capacity, ..info.clone() }));
        if self.current().capacity == capacity {
            return true;
        }
        // If another thread appends first, this revision follows that one.
        self.all().take(MOST).any(|last| last.next.get().is_none() && last.next.set(new(&last.info)).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::info::SectorSize;
    use crate::disk::null::memory_info;

    #[test]
    fn changes_are_seen_and_counted() {
        let revisions = Revisions::new(memory_info("null", 512, SectorSize::B512).unwrap());
        let first = revisions.current();
        assert!(revisions.set_capacity(512) && revisions.next.get().is_none());
        for n in 1..=MOST as u64 {
            assert!(revisions.set_capacity(512 * (n + 1)));
            assert_eq!(revisions.current().capacity, 512 * (n + 1));
        }
        assert!(!revisions.set_capacity(512 * 5000));
        assert_eq!((first.capacity, revisions.current().kind), (512, first.kind));
    }
}
