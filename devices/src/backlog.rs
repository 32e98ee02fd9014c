//! The backlog: requests that an adapter has taken from the guest, and that wait for a task number.
//!
//! All units share the adapter's task numbers and the guest's queue. A request whose unit may not start it yet
//! ([`Bus::admits`](crate::scsi::Bus)) is taken out of the guest's queue and put into the backlog. So a stalled disk stops neither the
//! other units nor task management. The requests of a unit start in order. The adapter limits the backlog to the number of requests that
//! its guest may have outstanding.

use std::collections::VecDeque;

use crate::scsi::{Address, Bus};

/// Requests by unit, oldest first.
#[derive(Debug)]
pub(crate) struct Backlog<P> {
    /// Units with requests.
    units: Vec<(Address, VecDeque<P>)>,
    len: usize,
    /// The unit whose turn is next.
    first: usize,
}

impl<P> Backlog<P> {
    pub(crate) const fn new() -> Self {
        Self { units: Vec::new(), len: 0, first: 0 }
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether a request for this unit may start now that `free` task numbers are left. It must not overtake others of the unit.
    #[inline]
    pub(crate) fn admits(&self, bus: &Bus, address: Address, free: usize) -> bool {
        self.is_empty() && free > bus.reserved() || self.admits_scarce(bus, address, free)
    }

    #[cold]
    fn admits_scarce(&self, bus: &Bus, address: Address, free: usize) -> bool {
        bus.admits(address, free) && !self.units.iter().any(|(unit, _)| *unit == address)
    }

    /// Append a request.
    pub(crate) fn push(&mut self, address: Address, request: P) {
        self.len += 1;
        match self.units.iter_mut().find(|(unit, _)| *unit == address) {
            Some((_, requests)) => requests.push_back(request),
            None => self.units.push((address, VecDeque::from([request]))),
        }
    }

    /// The next request of a unit that may start one now that `free` task numbers are left. The units take turns.
    pub(crate) fn next(&mut self, bus: &Bus, free: usize) -> Option<P> {
        self.next_where(|address| bus.admits(address, free))
    }

    fn next_where(&mut self, mut admits: impl FnMut(Address) -> bool) -> Option<P> {
        let count = self.units.len();
        for index in (0..count).map(|n| (self.first + n) % count) {
            let Some((address, requests)) = self.units.get_mut(index) else { continue };
            if !admits(*address) {
                continue;
            }
            let request = requests.pop_front()?;
            self.len -= 1;
            self.first = index + 1;
            if requests.is_empty() {
                self.units.swap_remove(index);
            }
            return Some(request);
        }
        None
    }

    /// Remove and return all requests for which the predicate holds, in order.
    pub(crate) fn take(&mut self, mut wanted: impl FnMut(Address, &P) -> bool) -> Vec<P> {
        let mut taken = Vec::new();
        for (address, requests) in &mut self.units {
            for _ in 0..requests.len() {
                let Some(request) = requests.pop_front() else { break };
                if wanted(*address, &request) {
                    taken.push(request);
                } else {
                    requests.push_back(request);
                }
            }
        }
        self.units.retain(|(_, requests)| !requests.is_empty());
        self.len -= taken.len();
        taken
    }

    /// All requests, with their units.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Address, &P)> {
        self.units.iter().flat_map(|(address, requests)| requests.iter().map(|request| (*address, request)))
    }

    /// Drop all requests.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn unit(target: u8) -> Address {
        Address { target, lun: 0 }
    }

    #[test]
    fn units_take_turns_and_keep_their_order() {
        let mut backlog = Backlog::new();
        for request in 0..9u8 {
            backlog.push(unit(request % 3), request);
        }
        assert_eq!(backlog.len(), 9);
        assert_eq!(backlog.next_where(|_| false), None);
        let all = |backlog: &mut Backlog<u8>, target: Option<u8>| -> Vec<u8> {
            std::iter::from_fn(|| backlog.next_where(|at| target.is_none_or(|target| at == unit(target))))
                .collect()
        };
        assert_eq!([backlog.next_where(|_| true), backlog.next_where(|_| true)], [Some(0), Some(1)]);
        assert_eq!(all(&mut backlog, Some(2)), [2, 5, 8]);
        let has = |address| backlog.units.iter().any(|(unit, _)| *unit == address);
        assert!(!has(unit(2)) && has(unit(1)));
        assert_eq!(backlog.take(|at, request| at == unit(0) && *request > 3), [6]);
        assert_eq!(backlog.iter().map(|(_, request)| *request).collect::<Vec<_>>(), [3, 4, 7]);
        let rest = all(&mut backlog, None);
        assert_eq!((rest.len(), backlog.len()), (3, 0));
        assert!(backlog.is_empty());
        backlog.push(unit(1), 1);
        backlog.clear();
        assert_eq!(backlog.next_where(|_| true), None);
    }
}
