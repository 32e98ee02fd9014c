//! The record of one queue: the order of its stores.

use std::sync::Arc;

use vm_memory::AtomicAccess;

use super::Mapping;

/// `QueueRegionSplit`: offsets of its fields.
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
pub(super) const DESC: usize = 16;
/// `DescStateSplit`: its size, and offsets of its fields.
pub(super) const DESC_SIZE: usize = 16;
const INFLIGHT: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// The record of one queue.
#[derive(Debug)]
pub(in super::super) struct InflightRecord {
    mapping: Arc<Mapping>,
    offset: usize,
    size: u16,
    /// Number of the next request.
    counter: u64,
}

/// The state that an earlier server left of a queue.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct Left {
    /// Heads of the requests in flight, first taken first.
    pub(in super::super) heads: Vec<u16>,
    /// Index of the next chain to be taken.
    pub(in super::super) next_avail: u16,
}

impl InflightRecord {
    /// The record of `size` entries at `offset`.
    pub(super) fn new(mapping: &Arc<Mapping>, offset: usize, size: u16) -> Self {
        Self { mapping: Arc::clone(mapping), offset, size, counter: 0 }
    }

    /// Start recording for a queue whose used index is `used`. Returns the state that an earlier server left; `None`: the record is new.
    pub(in super::super) fn open(&mut self, used: u16) -> Option<Left> {
        if self.load::<u16>(VERSION) == 0 {
            self.store(DESC_NUM, self.size);
            self.store(USED_IDX, used);
            self.store(VERSION, 1u16);
            return None;
        }
        // Number of completions that were posted, but not recorded when the server was killed. This server leaves at most one.
        let posted = used.wrapping_sub(self.load(USED_IDX));
        let mut head: u16 = self.load(LAST_BATCH_HEAD);
        for _ in 0..posted.min(self.size) {
            let Some(at) = self.desc(head) else { break };
            self.store(at + INFLIGHT, 0u8);
            head = self.load(at + NEXT);
        }
        self.store(USED_IDX, used);
        let in_flight = |head: &u16| self.desc(*head).is_some_and(|at| self.load::<u8>(at + INFLIGHT) == 1);
        let counter = |head: u16| self.desc(head).map_or(0, |at| self.load::<u64>(at + COUNTER));
        let mut numbered: Vec<_> =
            (0..self.size).filter(in_flight).map(|head| (counter(head), head)).collect();
        numbered.sort_unstable();
        self.counter = numbered.last().map_or(0, |(last, _)| last.wrapping_add(1));
        let heads: Vec<_> = numbered.into_iter().map(|(_, head)| head).collect();
        let next_avail = used.wrapping_add(heads.len() as u16);
        Some(Left { heads, next_avail })
    }

    /// The chain of this head is taken.
    #[inline]
    pub(in super::super) fn taken(&mut self, head: u16) {
        if let Some(at) = self.desc(head) {
            self.store(at + COUNTER, self.counter);
            self.counter = self.counter.wrapping_add(1);
            self.store(at + INFLIGHT, 1u8);
        }
    }

    /// The completion of this chain is about to be posted.
    #[inline]
    pub(in super::super) fn posting(&mut self, head: u16) {
        if let Some(at) = self.desc(head) {
            self.store(at + NEXT, self.load::<u16>(LAST_BATCH_HEAD));
            self.store(LAST_BATCH_HEAD, head);
        }
    }

    /// The completion is posted: the used index is `used` now.
    #[inline]
    pub(in super::super) fn posted(&mut self, head: u16, used: u16) {
        if let Some(at) = self.desc(head) {
            self.store(at + INFLIGHT, 0u8);
        }
        self.store(USED_IDX, used);
    }

    /// Offset of a descriptor's state.
    fn desc(&self, head: u16) -> Option<usize> {
        (head < self.size).then(|| DESC + DESC_SIZE * usize::from(head))
    }

    #[inline]
    fn load<T: AtomicAccess + Default>(&self, at: usize) -> T {
        self.mapping.load(self.offset + at)
    }

    #[inline]
    fn store<T: AtomicAccess>(&self, at: usize, value: T) {
        self.mapping.store(self.offset + at, value);
    }
}
