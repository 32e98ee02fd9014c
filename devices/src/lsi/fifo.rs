//! Bounded lock-free FIFOs of 32-bit words between the virtual CPUs and the I/O thread.
//!
//! On one side of each FIFO there is only the I/O thread, which needs no locked instruction: it is the only reader of
//! [`Inbound`], and the only writer of [`Outbound`]. Positions count all words that were ever pushed, so a position is
//! never reused.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A position on its own cache line, so that writers and readers do not share a line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Position(AtomicU64);

/// A FIFO with any number of writing threads and one reading thread.
#[derive(Debug)]
pub(super) struct Inbound {
    /// The word, with the round in the upper half. The round is 1 for the first time that a slot is filled, and then
    /// increases by 1.
    slots: Box<[AtomicU64]>,
    tail: Position,
    head: Position,
    /// Words before this position are dropped. Only the reader accesses it.
    valid_from: AtomicU64,
}

impl Inbound {
    /// A FIFO of `capacity` words; a power of two.
    pub(super) fn new(capacity: usize) -> Self {
        debug_assert!(capacity.is_power_of_two());
        let slots = (0..capacity).map(|_| AtomicU64::new(0)).collect();
        let valid_from = AtomicU64::new(0);
        Self { slots, tail: Position::default(), head: Position::default(), valid_from }
    }

    #[inline]
    fn slot(&self, position: u64) -> Option<&AtomicU64> {
        self.slots.get(position as usize & (self.slots.len() - 1))
    }

    /// The round of the slot at this position.
    #[inline]
    const fn round(&self, position: u64) -> u64 {
        (position >> self.slots.len().trailing_zeros()).wrapping_add(1) & 0xffff_ffff
    }

    /// Push a word; `false` if the FIFO is full. The push is in the total order of sequentially consistent operations.
    #[inline]
    pub(super) fn push(&self, word: u32) -> bool {
        self.claim().is_some_and(|position| self.fill(position, word))
    }

    /// Reserve the next position; `None` if the FIFO is full.
    #[inline]
    fn claim(&self) -> Option<u64> {
        let mut tail = self.tail.0.load(Relaxed);
        loop {
            // The head is never ahead of the tail. If it seems to be, the tail was read before other threads moved
            // both.
            if tail.wrapping_sub(self.head.0.load(Acquire)) >= self.slots.len() as u64 {
                let now = self.tail.0.load(Relaxed);
                if now == tail {
                    return None;
                }
                tail = now;
                continue;
            }
            match self.tail.0.compare_exchange_weak(tail, tail + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(tail),
                Err(now) => tail = now,
            }
        }
    }

    #[inline]
    fn fill(&self, position: u64, word: u32) -> bool {
        let Some(slot) = self.slot(position) else { return false };
        slot.swap(self.round(position) << 32 | u64::from(word), SeqCst);
        true
    }

    /// Pop the next word. Only the reading thread may call this.
    #[inline]
    pub(super) fn pop(&self) -> Option<u32> {
        // Skips the words before `valid_from`, which are no more than the FIFO holds.
        loop {
            let head = self.head.0.load(Relaxed);
            let filled = self.slot(head)?.load(SeqCst);
            if filled >> 32 != self.round(head) {
                return None;
            }
            self.head.0.store(head + 1, Release);
            if head >= self.valid_from.load(Relaxed) {
                return Some(filled as u32);
            }
        }
    }

    /// Drop all words whose positions are claimed by now, including words whose slot is filled later. Only the reading
    /// thread may call this.
    pub(super) fn empty(&self) {
        let end = self.tail.0.load(Relaxed);
        self.valid_from.store(end, Relaxed);
        let filled = |at: u64| self.slot(at).is_some_and(|slot| slot.load(SeqCst) >> 32 == self.round(at));
        let mut head = self.head.0.load(Relaxed);
        while head < end && filled(head) {
            head += 1;
        }
        self.head.0.store(head, Release);
    }

    /// Whether there is no word to pop. Only the reading thread may call this.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let head = self.head.0.load(Relaxed);
        self.slot(head).is_none_or(|slot| slot.load(SeqCst) >> 32 != self.round(head))
    }

    /// Number of claimed positions, including words that are being written.
    #[inline]
    pub(super) fn len(&self) -> usize {
        let head = self.head.0.load(Relaxed);
        self.tail.0.load(Relaxed).saturating_sub(head) as usize
    }
}

/// A FIFO with one writing thread and any number of reading threads.
#[derive(Debug)]
pub(super) struct Outbound {
    slots: Box<[AtomicU32]>,
    tail: Position,
    head: Position,
}

impl Outbound {
    /// A FIFO of `capacity` words; a power of two.
    pub(super) fn new(capacity: usize) -> Self {
        debug_assert!(capacity.is_power_of_two());
        let slots = (0..capacity).map(|_| AtomicU32::new(0)).collect();
        Self { slots, tail: Position::default(), head: Position::default() }
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn slot(&self, position: u64) -> Option<&AtomicU32> {
        self.slots.get(position as usize & (self.slots.len() - 1))
    }

    /// Push a word; `false` if the FIFO is full. Only the writing thread may call this.
    #[inline]
    pub(super) fn push(&self, word: u32) -> bool {
        let tail = self.tail.0.load(Relaxed);
        // Acquire: the thread that moved the head has read the slot before.
        if tail.wrapping_sub(self.head.0.load(Acquire)) >= self.slots.len() as u64 {
            return false;
        }
        let Some(slot) = self.slot(tail) else { return false };
        slot.store(word, Relaxed);
        self.tail.0.store(tail + 1, Release);
        true
    }

    /// Pop the next word.
    #[inline]
    pub(super) fn pop(&self) -> Option<u32> {
        let mut head = self.head.0.load(Acquire);
        loop {
            if head >= self.tail.0.load(Acquire) {
                return None;
            }
            // The slot is overwritten only after the head has passed it, and then the exchange fails.
            let word = self.slot(head)?.load(Relaxed);
            match self.head.0.compare_exchange_weak(head, head + 1, AcqRel, Acquire) {
                Ok(_) => return Some(word),
                Err(now) => head = now,
            }
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of words.
    #[inline]
    pub(super) fn len(&self) -> usize {
        let head = self.head.0.load(Acquire);
        self.tail.0.load(Acquire).saturating_sub(head) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::testing::Random;

    /// With a single thread, both FIFOs behave as bounded queues.
    #[test]
    fn words_come_out_as_they_went_in() {
        let mut random = Random::new(0x1fd5_0b17);
        let (inbound, outbound) = (Inbound::new(8), Outbound::new(8));
        let mut model = VecDeque::new();
        let (mut full, mut empty) = (0, 0);
        for word in 0..20_000u32 {
            // Alternate between mostly pushing and mostly popping.
            let filling = word / 16 % 2 == 0;
            if random.below(4) < if filling { 3 } else { 1 } {
                let free = model.len() < 8;
                assert_eq!((inbound.push(word), outbound.push(word)), (free, free));
                if free {
                    model.push_back(word);
                }
                full += u32::from(!free);
            } else {
                let word = model.pop_front();
                assert_eq!((inbound.pop(), outbound.pop()), (word, word));
                empty += u32::from(word.is_none());
            }
            assert_eq!((inbound.len(), outbound.len()), (model.len(), model.len()));
            assert_eq!((inbound.is_empty(), outbound.is_empty()), (model.is_empty(), model.is_empty()));
        }
        assert!(full > 100 && empty > 100, "{full} times full, {empty} times empty");
    }

    /// A virtual CPU has claimed a slot before another one resets the controller: its word is dropped, too.
    #[test]
    fn a_word_whose_slot_was_claimed_before_is_dropped_with_the_others() {
        let fifo = Inbound::new(8);
        for round in 0..5 {
            fifo.push(1);
            let (first, second) = (fifo.claim().unwrap(), fifo.claim().unwrap());
            fifo.empty();
            assert_eq!(fifo.pop(), None, "round {round}");
            // This word is pushed after the reset.
            assert!(fifo.push(2));
            assert!(fifo.fill(second, 3));
            assert_eq!(fifo.pop(), None, "round {round}: words come out in their order");
            assert!(fifo.fill(first, 4));
            assert_eq!((fifo.pop(), fifo.pop()), (Some(2), None), "round {round}");
            assert_eq!(fifo.len(), 0);
        }
    }

    const WORDS: u32 = 100_000;
    const THREADS: u32 = 3;

    /// The reader gets the words of each writer in order.
    #[test]
    fn many_writers_and_one_reader() {
        let fifo = Inbound::new(16);
        let mut next = [0; THREADS as usize];
        thread::scope(|scope| {
            let write = |writer| {
                let fifo = &fifo;
                scope.spawn(move || {
                    for count in 0..WORDS {
                        while !fifo.push(writer << 24 | count) {
                            thread::yield_now();
                        }
                    }
                })
            };
            let writers: Vec<_> = (0..THREADS).map(write).collect();
            loop {
                let over = writers.iter().all(|writer| writer.is_finished());
                match fifo.pop() {
                    Some(word) => {
                        let next = &mut next[(word >> 24) as usize];
                        assert_eq!(word & 0xff_ffff, *next, "writer {}", word >> 24);
                        *next += 1;
                    }
                    None if over => break,
                    None => thread::yield_now(),
                }
            }
        });
        assert_eq!(next, [WORDS; THREADS as usize]);
        assert!(fifo.is_empty());
    }

    /// Each word goes to exactly one reader, and each reader gets its words in order.
    #[test]
    fn one_writer_and_many_readers() {
        let fifo = Outbound::new(16);
        let over = AtomicBool::new(false);
        let read = || {
            let mut words = Vec::new();
            loop {
                let last = over.load(Acquire);
                match fifo.pop() {
                    Some(word) => words.push(word),
                    None if last => return words,
                    None => thread::yield_now(),
                }
            }
        };
        let mut taken = vec![0; WORDS as usize];
        thread::scope(|scope| {
            let readers: Vec<_> = (0..THREADS).map(|_| scope.spawn(read)).collect();
            for word in 0..WORDS {
                while !fifo.push(word) {
                    thread::yield_now();
                }
            }
            over.store(true, Release);
            for reader in readers {
                let words = reader.join().unwrap();
                assert!(words.is_sorted());
                words.iter().for_each(|word| taken[*word as usize] += 1);
            }
        });
        assert!(taken.iter().all(|times| *times == 1));
    }
}
