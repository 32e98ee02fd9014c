//! Requests of an adapter that are in flight, by task number.
//!
//! The number is the slot in this table, in the bus's table (`scsi::tasks`: the state of the SCSI task), and the tag of the disk request: no
//! look-up, no lock. The two tables are not one, because the bus exists before its adapter and does not depend on its types.

use vm_memory::GuestAddressSpace;

use crate::dma::{Dma, Footprint};

/// The requests in flight, by number, and the free numbers. Allocated once.
#[derive(Debug)]
pub(crate) struct InFlight<P> {
    /// By number: the request, and the guest memory of its data.
    slots: Box<[Option<(P, Footprint)>]>,
    free: Vec<u32>,
}

impl<P> InFlight<P> {
    /// An empty table for at most this many requests (at least one).
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.max(1);
        Self { slots: (0..limit).map(|_| None).collect(), free: (0..limit).rev().collect() }
    }

    /// Maximum number of requests.
    pub(crate) fn limit(&self) -> usize {
        self.slots.len()
    }

    /// Number of free slots.
    #[inline]
    pub(crate) fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Number of requests that have a number.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Allocate a task number. Then [store](Self::store) the request, or [free](Self::release) the number.
    #[inline]
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Store a request, with the guest memory of its data.
    #[inline(always)]
    pub(crate) fn store(&mut self, number: u32, request: P, data: Footprint) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            *slot = Some((request, data));
        }
    }

    /// Guest memory that the requests use: the memory of their data, and the regions of the addresses that their completions write.
    /// `writes` returns that address for a request.
    pub(crate) fn footprint<A: GuestAddressSpace>(
        &self,
        dma: &mut Dma<A>,
        writes: impl Fn(&P) -> u64,
    ) -> Footprint {
        let used = self.slots.iter().flatten();
        used.fold(Footprint::NONE, |all, (request, data)| all | *data | dma.region_of(writes(request)))
    }

    /// Free a number whose request was not stored.
    #[inline]
    pub(crate) fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Complete a request: free its number, and return the stored request.
    #[inline]
    pub(crate) fn complete(&mut self, number: u32) -> Option<P> {
        let (request, _) = self.slots.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(request)
    }

    /// As [`complete`](Self::complete), without a move of the stored request: returns the result of `read`.
    #[inline]
    pub(crate) fn complete_with<T>(&mut self, number: u32, read: impl FnOnce(&P) -> T) -> Option<T> {
        let slot = self.slots.get_mut(number as usize)?;
        let result = read(&slot.as_ref()?.0);
        *slot = None;
        self.free.push(number);
        Some(result)
    }

    /// The stored request of a number.
    pub(crate) fn get(&self, number: u32) -> Option<&P> {
        Some(&self.slots.get(number as usize)?.as_ref()?.0)
    }

    /// The stored request of a number, mutable.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut P> {
        Some(&mut self.slots.get_mut(number as usize)?.as_mut()?.0)
    }

    /// All stored requests, mutable.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.slots.iter_mut().flatten().map(|(request, _)| request)
    }

    /// All stored requests, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &P)> {
        (0..).zip(&self.slots).filter_map(|(number, request)| Some((number, &request.as_ref()?.0)))
    }

    /// Drop all requests.
    pub(crate) fn clear(&mut self) {
        self.slots.fill_with(|| None);
        self.free.clear();
        self.free.extend((0..self.slots.len() as u32).rev());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vm_memory::{GuestAddress, GuestMemoryMmap};

    use super::*;

    #[test]
    fn a_number_is_free_again_when_its_request_is_complete() {
        let mut dma =
            Dma::new(Arc::new(GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 4096)]).unwrap()));
        let mut in_flight = InFlight::new(3);
        let numbers: Vec<u32> = std::iter::from_fn(|| in_flight.allocate()).collect();
        assert_eq!(numbers, [0, 1, 2]);
        in_flight.store(0, 'a', Footprint::OTHER);
        in_flight.store(2, 'c', Footprint::NONE);
        in_flight.release(1);
        assert_eq!((in_flight.count(), in_flight.free_slots()), (2, 1));
        assert_eq!(in_flight.iter().collect::<Vec<_>>(), [(0, &'a'), (2, &'c')]);
        assert_eq!(in_flight.complete(2), Some('c'));
        assert_eq!(in_flight.complete(2), None, "it is complete already");
        assert_eq!(in_flight.complete(3), None, "no such number");
        assert_eq!(in_flight.footprint(&mut dma, |_| u64::MAX), Footprint::OTHER);
        assert_ne!(in_flight.footprint(&mut dma, |_| 0), Footprint::OTHER, "where they write when they end");
        assert_eq!(in_flight.complete(0), Some('a'));
        assert_eq!(in_flight.footprint(&mut dma, |_| 0), Footprint::NONE, "nothing is kept");
        assert_eq!((in_flight.count(), in_flight.free_slots()), (0, 3));
        in_flight.clear();
        assert_eq!((in_flight.count(), in_flight.get(0)), (0, None));
        assert_eq!(std::iter::from_fn(|| in_flight.allocate()).count(), 3);
    }
}
