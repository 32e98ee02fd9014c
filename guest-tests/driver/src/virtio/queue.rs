//! A split ring from its driver's side (VIRTIO 1.2, 2.7).

use core::sync::atomic::{Ordering, fence};

use super::spec::*;
use crate::platform::DmaRegion;
use crate::platform::Platform;

/// Alignment that suits every part of a ring.
const ALIGN: usize = 16;
/// In the driver's own memory: an entry of the ring that is no head of a request in flight.
const IDLE: u32 = u32::MAX;

/// A piece of a request's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bus address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// The device writes it, else it reads it.
    pub write: bool,
}

/// A request that the device has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The request's number; `None`: the device named none that was in flight.
    pub number: Option<u32>,
    /// Bytes that the device says it has written.
    pub len: u32,
}

/// How a ring is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Entries, a power of two.
    pub size: u16,
    /// Requests have numbers below this.
    pub requests: u32,
    /// Pieces of a request at the most.
    pub pieces: u16,
    /// Each request is a table of its own.
    pub indirect: bool,
    /// Each side names by an index the entry for which it requests a notification. Otherwise a flag turns all notifications on or off.
    pub event_index: bool,
}

/// A split ring.
#[derive(Debug)]
pub struct Virtqueue {
    shape: Shape,
    descriptors: DmaRegion,
    driver: DmaRegion,
    device: DmaRegion,
    /// A table for each request.
    tables: Option<DmaRegion>,
    /// Not the device's: the request of each head.
    numbers: DmaRegion,
    /// Descriptors that are free are a chain, too.
    free_head: u16,
    free: u16,
    /// Entries made available, and how many of them the device knows.
    available: u16,
    published: u16,
    /// Entries taken from the used ring.
    used: u16,
    /// A notification for the next entry has been requested from the device.
    asked: bool,
    /// Where its doorbell is in the register space of notifications.
    pub(super) doorbell: u64,
}

impl Virtqueue {
    /// A ring in memory of the platform; `None`: there is too little, or the shape makes no sense.
    #[must_use]
    pub fn new<P: Platform>(platform: &mut P, shape: Shape) -> Option<Self> {
        let size = usize::from(shape.size);
        if !shape.size.is_power_of_two() || shape.pieces == 0 {
            return None;
        }
        let table = usize::from(shape.pieces) * DESC_SIZE;
        let mut queue = Self {
            descriptors: platform.dma(size * DESC_SIZE, ALIGN)?,
            driver: platform.dma(AVAIL_RING + 2 * size + 2, ALIGN)?,
            device: platform.dma(USED_RING + 8 * size + 2, ALIGN)?,
            tables: match shape.indirect {
                true => Some(platform.dma(shape.requests as usize * table, ALIGN)?),
                false => None,
            },
            numbers: platform.dma(4 * size, ALIGN)?,
            shape,
            free_head: 0,
            free: 0,
            available: 0,
            published: 0,
            used: 0,
            asked: false,
            doorbell: 0,
        };
        queue.reset();
        Some(queue)
    }

    /// As new: nothing is in flight, and the device is told of every entry.
    pub fn reset(&mut self) {
        let size = self.shape.size;
        for index in 0..size {
            let next = index.wrapping_add(1) & (size - 1);
            self.descriptors.write(usize::from(index) * DESC_SIZE, 0u64);
            self.put_descriptor_end(usize::from(index) * DESC_SIZE, 0, 0, next);
            self.numbers.write(4 * usize::from(index), IDLE);
        }
        for region in [&self.driver, &self.device] {
            for offset in (0..region.len()).step_by(2) {
                region.write(offset, 0u16);
            }
        }
        self.free_head = 0;
        self.free = size;
        self.available = 0;
        self.published = 0;
        self.used = 0;
        self.asked = true;
    }

    /// How it is used.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bus addresses of descriptor table, available ring and used ring.
    #[must_use]
    pub const fn addresses(&self) -> [u64; 3] {
        [self.descriptors.address(), self.driver.address(), self.device.address()]
    }

    /// Whether an interrupt may come that [`take`](Self::take) has asked for.
    #[must_use]
    pub const fn asked(&self) -> bool {
        self.asked
    }

    /// Put a request in. `false`: the queue is full, nothing was done. The device does not see it before
    /// [`publish`](Self::publish).
    #[inline(always)]
    pub fn add(&mut self, number: u32, pieces: impl Iterator<Item = Piece> + Clone) -> bool {
        let head = self.free_head;
        let put = if self.tables.is_some() { self.add_table(number, pieces) } else { self.add_chain(pieces) };
        if !put {
            return false;
        }
        self.numbers.write(4 * usize::from(head), number);
        let slot = usize::from(self.available & (self.shape.size - 1));
        self.driver.write(AVAIL_RING + 2 * slot, head);
        self.available = self.available.wrapping_add(1);
        true
    }

    /// A request as a table: one descriptor of the ring.
    #[inline(always)]
    fn add_table(&mut self, number: u32, mut pieces: impl Iterator<Item = Piece>) -> bool {
        let Some(tables) = self.tables.as_ref().filter(|_| self.free > 0 && number < self.shape.requests)
        else {
            return false;
        };
        let table = number as usize * usize::from(self.shape.pieces) * DESC_SIZE;
        let mut count = 0;
        let mut piece = pieces.next();
        while let Some(Piece { address, len, write }) = piece {
            if count == self.shape.pieces {
                return false;
            }
            piece = pieces.next();
            let flags = flags(write) | if piece.is_some() { DESC_NEXT } else { 0 };
            let descriptor = tables.fields::<DESC_SIZE>(table + usize::from(count) * DESC_SIZE);
            count += 1;
            descriptor.write::<0, _>(address);
            descriptor.write::<8, _>(end(len, flags, count));
        }
        if count == 0 {
            return false;
        }
        let descriptor = self.descriptors.fields::<DESC_SIZE>(usize::from(self.free_head) * DESC_SIZE);
        // Descriptors are memory that a broken device could write to.
        let next = descriptor.read::<14, u16>() & (self.shape.size - 1);
        descriptor.write::<0, _>(tables.address() + table as u64);
        descriptor.write::<8, _>(end(u32::from(count) * DESC_SIZE as u32, DESC_INDIRECT, next));
        self.free_head = next;
        self.free -= 1;
        true
    }

    /// A request as a chain of the ring's own descriptors, which are chained already.
    fn add_chain(&mut self, pieces: impl Iterator<Item = Piece> + Clone) -> bool {
        let count = pieces.clone().count();
        if count == 0 || count > usize::from(self.free.min(self.shape.pieces)) {
            return false;
        }
        let mut index = self.free_head;
        for (left, Piece { address, len, write }) in (0..count).rev().zip(pieces) {
            let at = usize::from(index) * DESC_SIZE;
            let next = self.next(index);
            self.descriptors.write(at, address);
            self.put_descriptor_end(at, len, flags(write) | if left > 0 { DESC_NEXT } else { 0 }, next);
            index = next;
        }
        self.free_head = index;
        self.free -= count as u16;
        true
    }

    #[inline]
    fn next(&self, index: u16) -> u16 {
        // Descriptors are memory that a broken device could write to.
        self.descriptors.read::<u16>(usize::from(index) * DESC_SIZE + 14) & (self.shape.size - 1)
    }

    /// The second half of a descriptor.
    #[inline]
    fn put_descriptor_end(&self, at: usize, len: u32, flags: u16, next: u16) {
        self.descriptors.write(at + 8, end(len, flags, next));
    }

    /// Whether requests were put in that the device does not know of.
    #[must_use]
    pub const fn pending(&self) -> bool {
        self.available != self.published
    }

    /// Show the device what was put in. `true`: ring the doorbell.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.available);
        fence(Ordering::Release);
        self.driver.write(AVAIL_INDEX, new);
        self.published = new;
        // The device requests notifications and then reads the index. The driver writes the index and then reads the request.
        fence(Ordering::SeqCst);
        if self.shape.event_index {
            let event: u16 = self.device.read(USED_RING + 8 * usize::from(self.shape.size));
            // `vring_need_event` (2.7.10).
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.device.read::<u16>(USED_FLAGS) & USED_NO_NOTIFY == 0
        }
    }

    /// No interrupts until [`take`](Self::take) finds nothing. With the event index nothing has to be written: the device interrupts once,
    /// for the entry that the index names.
    #[inline]
    pub fn hold(&mut self) {
        if !self.shape.event_index && self.asked {
            self.driver.write(AVAIL_FLAGS, AVAIL_NO_INTERRUPT);
        }
        self.asked = false;
    }

    /// The next request that the device has completed. `None`: there is none, and a notification for the next one has been requested.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Used> {
        // Before `asked` is stored: a load of both, as the compiler makes it, would wait for that store.
        let used = self.used;
        while self.device.read::<u16>(USED_INDEX) == used {
            if self.asked {
                return None;
            }
            self.asked = true;
            if self.shape.event_index {
                self.driver.write(AVAIL_RING + 2 * usize::from(self.shape.size), used);
            } else {
                self.driver.write(AVAIL_FLAGS, 0u16);
            }
            // An entry that the device added before it could see this request is found by the second check.
            fence(Ordering::SeqCst);
        }
        fence(Ordering::Acquire);
        if self.shape.event_index {
            // What was asked for has come.
            self.asked = false;
        }
        let entry = USED_RING + 8 * usize::from(used & (self.shape.size - 1));
        let (head, len) = (self.device.read::<u32>(entry), self.device.read::<u32>(entry + 4));
        self.used = used.wrapping_add(1);
        Some(Used { number: self.give_back(head), len })
    }

    /// Free a request's descriptors; its number.
    #[inline(always)]
    fn give_back(&mut self, head: u32) -> Option<u32> {
        let head = u16::try_from(head).ok().filter(|head| *head < self.shape.size)?;
        let number = self.numbers.read::<u32>(4 * usize::from(head));
        if number == IDLE {
            return None;
        }
        self.numbers.write(4 * usize::from(head), IDLE);
        let mut last = head;
        let mut count = 1;
        while count < self.shape.size
            && self.descriptors.read::<u16>(usize::from(last) * DESC_SIZE + 12) & DESC_NEXT != 0
        {
            last = self.next(last);
            count += 1;
        }
        self.descriptors.write(usize::from(last) * DESC_SIZE + 14, self.free_head);
        self.free_head = head;
        self.free = (self.free + count).min(self.shape.size);
        Some(number)
    }
}

const fn flags(write: bool) -> u16 {
    if write { DESC_WRITE } else { 0 }
}

/// Length, flags and next of a descriptor, as they lie.
const fn end(len: u32, flags: u16, next: u16) -> u64 {
    len as u64 | (flags as u64) << 32 | (next as u64) << 48
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::loadgen::tests::Host;

    fn queue(indirect: bool, event_index: bool) -> Virtqueue {
        let shape = Shape { size: 8, requests: 8, pieces: 3, indirect, event_index };
        Virtqueue::new(&mut Host::new(), shape).unwrap()
    }

    fn pieces(count: u32) -> impl Iterator<Item = Piece> + Clone {
        (0..count).map(move |n| Piece { address: u64::from(n) << 12, len: 512, write: n + 1 == count })
    }

    /// The device's part: give `head` back.
    fn give_back(queue: &Virtqueue, head: u32) {
        let index: u16 = queue.device.read(USED_INDEX);
        queue.device.write(USED_RING + 8 * usize::from(index % 8), head);
        queue.device.write(USED_RING + 8 * usize::from(index % 8) + 4, 7u32);
        queue.device.write(USED_INDEX, index.wrapping_add(1));
    }

    /// The heads that the device sees.
    fn heads(queue: &Virtqueue, from: u16) -> Vec<u32> {
        let slots = (from..queue.driver.read(AVAIL_INDEX)).map(|slot| AVAIL_RING + 2 * usize::from(slot % 8));
        slots.map(|slot| queue.driver.read::<u16>(slot).into()).collect()
    }

    #[test]
    fn a_ring_is_full_and_descriptors_come_back_in_any_order() {
        for (indirect, capacity) in [(true, 8), (false, 2)] {
            let mut queue = queue(indirect, true);
            for round in 0..100 {
                let from = queue.driver.read(AVAIL_INDEX);
                let added = (0..8).filter(|&number| queue.add(number, pieces(3))).count();
                assert_eq!(added, capacity, "round {round}");
                assert_eq!(queue.driver.read::<u16>(AVAIL_INDEX), from, "not shown yet");
                queue.publish();
                let mut heads = heads(&queue, from);
                heads.rotate_left(round % capacity);
                for head in heads {
                    give_back(&queue, head);
                }
                let mut numbers: Vec<_> =
                    core::iter::from_fn(|| queue.take()).map(|used| used.number).collect();
                numbers.sort_unstable();
                assert_eq!(numbers, (0..capacity as u32).map(Some).collect::<Vec<_>>());
            }
            assert!(!queue.add(0, pieces(4)) && !queue.add(0, pieces(0)), "too many pieces, or none");
        }
    }

    #[test]
    fn what_was_not_in_flight_is_not_believed() {
        let mut queue = queue(true, true);
        queue.add(5, pieces(2));
        queue.publish();
        let head = heads(&queue, 0)[0];
        for (given, number) in [(head ^ 1, None), (8, None), (u32::MAX, None), (head, Some(5)), (head, None)]
        {
            give_back(&queue, given);
            assert_eq!(queue.take(), Some(Used { number, len: 7 }));
        }
        assert_eq!(
            (0..20).filter(|&number| queue.add(number % 8, pieces(3))).count(),
            8,
            "and nothing is lost"
        );
    }

    #[test]
    fn doorbells_and_interrupts_as_either_side_wants_them() {
        let mut queue = super::tests::queue(true, true);
        let event = USED_RING + 8 * 8;
        queue.device.write(event, 2u16);
        let wanted: Vec<bool> = (0..4)
            .map(|number| {
                queue.add(number, pieces(2));
                queue.publish()
            })
            .collect();
        assert_eq!(wanted, [false, false, true, false]);
        for head in heads(&queue, 0) {
            give_back(&queue, head);
            queue.take();
        }
        assert_eq!(queue.take(), None);
        assert_eq!(queue.driver.read::<u16>(AVAIL_RING + 2 * 8), 4, "tell of the next");

        let mut queue = super::tests::queue(true, false);
        queue.device.write(USED_FLAGS, USED_NO_NOTIFY);
        assert!(queue.add(0, pieces(2)) && !queue.publish());
        queue.device.write(USED_FLAGS, 0u16);
        assert!(queue.add(1, pieces(2)) && queue.publish());
        queue.hold();
        assert_eq!(queue.driver.read::<u16>(AVAIL_FLAGS), AVAIL_NO_INTERRUPT);
        assert_eq!(queue.take(), None);
        assert_eq!(queue.driver.read::<u16>(AVAIL_FLAGS), 0);
    }
}
