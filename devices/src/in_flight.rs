//! Requests of an adapter that are in flight, by number.

use vm_memory::GuestAddressSpace;

use crate::dma::{Dma, Footprint};

/// The record of each request in flight, and the free numbers. Allocated once.
#[derive(Debug)]
pub(crate) struct InFlight<P> {
    /// By number: the request, and the guest memory of its data.
    kept: Box<[Option<(P, Footprint)>]>,
    free: Vec<u32>,
}

impl<P> InFlight<P> {
    /// None yet, of so many at the most (one at least).
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.max(1);
        Self { kept: (0..limit).map(|_| None).collect(), free: (0..limit).rev().collect() }
    }

    /// So many at the most.
    pub(crate) fn limit(&self) -> usize {
        self.kept.len()
    }

    /// Number of free slots.
    #[inline]
    pub(crate) fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Requests that have a number.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        (self.kept.len() - self.free.len()) as u32
    }

    /// A number for a request. It is to be [kept](Self::keep), or [given back](Self::give_back).
    #[inline]
    pub(crate) fn number(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Keep a request whose data are in such memory.
    #[inline(always)]
    pub(crate) fn keep(&mut self, number: u32, request: P, data: Footprint) {
        if let Some(place) = self.kept.get_mut(number as usize) {
            *place = Some((request, data));
        }
    }

    /// Guest memory that all requests use together: that of their data, and where each of them `writes` when it ends.
    pub(crate) fn footprint<A: GuestAddressSpace>(
        &self,
        dma: &mut Dma<A>,
        writes: impl Fn(&P) -> u64,
    ) -> Footprint {
        let used = self.kept.iter().flatten();
        used.fold(Footprint::NONE, |all, (request, data)| all | *data | dma.region_of(writes(request)))
    }

    /// The number of a request that was never kept is free again.
    #[inline]
    pub(crate) fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    /// A request is over: what was kept of it. Its number is free.
    #[inline]
    pub(crate) fn end(&mut self, number: u32) -> Option<P> {
        let (request, _) = self.kept.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(request)
    }

    /// The same without moving what was kept, which costs more the larger it is: what `read` returns of it.
    #[inline]
    pub(crate) fn end_with<T>(&mut self, number: u32, read: impl FnOnce(&P) -> T) -> Option<T> {
        let place = self.kept.get_mut(number as usize)?;
        let result = read(&place.as_ref()?.0);
        *place = None;
        self.free.push(number);
        Some(result)
    }

    /// What is kept of a request.
    pub(crate) fn get(&self, number: u32) -> Option<&P> {
        Some(&self.kept.get(number as usize)?.as_ref()?.0)
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut P> {
        Some(&mut self.kept.get_mut(number as usize)?.as_mut()?.0)
    }

    /// All that are kept, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.kept.iter_mut().flatten().map(|(request, _)| request)
    }

    /// All that are kept, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &P)> {
        (0..).zip(&self.kept).filter_map(|(number, request)| Some((number, &request.as_ref()?.0)))
    }

    /// Forget them all.
    pub(crate) fn clear(&mut self) {
        self.kept.fill_with(|| None);
        self.free.clear();
        self.free.extend((0..self.kept.len() as u32).rev());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vm_memory::{GuestAddress, GuestMemoryMmap};

    use super::*;

    #[test]
    fn a_number_is_given_out_again_when_its_request_is_over() {
        let mut dma =
            Dma::new(Arc::new(GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 4096)]).unwrap()));
        let mut in_flight = InFlight::new(3);
        let numbers: Vec<u32> = std::iter::from_fn(|| in_flight.number()).collect();
        assert_eq!(numbers, [0, 1, 2]);
        in_flight.keep(0, 'a', Footprint::OTHER);
        in_flight.keep(2, 'c', Footprint::NONE);
        in_flight.give_back(1);
        assert_eq!((in_flight.count(), in_flight.free_slots()), (2, 1));
        assert_eq!(in_flight.iter().collect::<Vec<_>>(), [(0, &'a'), (2, &'c')]);
        assert_eq!(in_flight.end(2), Some('c'));
        assert_eq!(in_flight.end(2), None, "it is over already");
        assert_eq!(in_flight.end(3), None, "no such number");
        assert_eq!(in_flight.footprint(&mut dma, |_| u64::MAX), Footprint::OTHER);
        assert_ne!(in_flight.footprint(&mut dma, |_| 0), Footprint::OTHER, "where they write when they end");
        assert_eq!(in_flight.end(0), Some('a'));
        assert_eq!(in_flight.footprint(&mut dma, |_| 0), Footprint::NONE, "nothing is kept");
        assert_eq!((in_flight.count(), in_flight.free_slots()), (0, 3));
        in_flight.clear();
        assert_eq!((in_flight.count(), in_flight.get(0)), (0, None));
        assert_eq!(std::iter::from_fn(|| in_flight.number()).count(), 3);
    }
}
