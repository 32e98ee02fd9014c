//! Requests of an adapter that are in flight, by number.

use crate::dma::Footprint;

/// What is kept of each request, and the numbers that are free. Allocated once.
#[derive(Debug)]
pub(crate) struct InFlight<P> {
    kept: Box<[Option<P>]>,
    /// By number: guest memory that the request uses. Means nothing where nothing is kept.
    footprints: Box<[Footprint]>,
    free: Vec<u32>,
}

impl<P> InFlight<P> {
    /// None yet, of so many at the most (one at least).
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.max(1);
        Self {
            kept: (0..limit).map(|_| None).collect(),
            footprints: (0..limit).map(|_| Footprint::NONE).collect(),
            free: (0..limit).rev().collect(),
        }
    }

    /// So many at the most.
    pub(crate) fn limit(&self) -> usize {
        self.kept.len()
    }

    /// Numbers that are free.
    #[inline]
    pub(crate) fn room(&self) -> usize {
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

    /// Keep a request that uses such memory.
    #[inline]
    pub(crate) fn keep(&mut self, number: u32, request: P, footprint: Footprint) {
        if let (Some(place), Some(used)) =
            (self.kept.get_mut(number as usize), self.footprints.get_mut(number as usize))
        {
            *place = Some(request);
            *used = footprint;
        }
    }

    /// Guest memory that all requests use together.
    pub(crate) fn footprint(&self) -> Footprint {
        let used = self.kept.iter().zip(&self.footprints).filter(|(request, _)| request.is_some());
        used.fold(Footprint::NONE, |all, (_, footprint)| all | *footprint)
    }

    /// The number of a request that was never kept is free again.
    #[inline]
    pub(crate) fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    /// A request is over: what was kept of it. Its number is free.
    #[inline]
    pub(crate) fn end(&mut self, number: u32) -> Option<P> {
        let request = self.kept.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(request)
    }

    /// What is kept of a request.
    pub(crate) fn get(&self, number: u32) -> Option<&P> {
        self.kept.get(number as usize)?.as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut P> {
        self.kept.get_mut(number as usize)?.as_mut()
    }

    /// All that are kept, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.kept.iter_mut().flatten()
    }

    /// All that are kept, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &P)> {
        (0..).zip(&self.kept).filter_map(|(number, request)| Some((number, request.as_ref()?)))
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
    use super::*;

    #[test]
    fn a_number_is_given_out_again_when_its_request_is_over() {
        let mut in_flight = InFlight::new(3);
        let numbers: Vec<u32> = std::iter::from_fn(|| in_flight.number()).collect();
        assert_eq!(numbers, [0, 1, 2]);
        in_flight.keep(0, 'a', Footprint::OTHER);
        in_flight.keep(2, 'c', Footprint::NONE);
        in_flight.give_back(1);
        assert_eq!((in_flight.count(), in_flight.room()), (2, 1));
        assert_eq!(in_flight.iter().collect::<Vec<_>>(), [(0, &'a'), (2, &'c')]);
        assert_eq!(in_flight.end(2), Some('c'));
        assert_eq!(in_flight.end(2), None, "it is over already");
        assert_eq!(in_flight.end(3), None, "no such number");
        assert_eq!(in_flight.footprint(), Footprint::OTHER);
        assert_eq!(in_flight.end(0), Some('a'));
        assert_eq!(in_flight.footprint(), Footprint::NONE, "nothing is kept");
        assert_eq!((in_flight.count(), in_flight.room()), (0, 3));
        in_flight.clear();
        assert_eq!((in_flight.count(), in_flight.get(0)), (0, None));
        assert_eq!(std::iter::from_fn(|| in_flight.number()).count(), 3);
    }
}
