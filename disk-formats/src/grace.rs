//! Grace periods: when nobody can use any more what a disk's map no longer shows.
//!
//! A format that gives up a block may not use its room for another while a request is on the way that was mapped before: it
//! would read or overwrite foreign data. Each queue tells, for two generations of requests, whether it has any; room that was
//! given up in one generation is free when both have been seen without requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

#[allow(clippy::disallowed_types, reason = "taken when a queue is made and when room is reclaimed")]
type Mutex<T> = std::sync::Mutex<T>;

/// Whether a queue has requests, by generation.
#[derive(Debug, Default)]
struct Busy([AtomicBool; 2]);

/// All queues of a disk. Clones are one and the same: a disk inside another one shares that of the disk around it, as a request
/// on the way may mean room of both.
#[derive(Clone, Debug, Default)]
pub struct Grace(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    generation: AtomicU64,
    queues: Mutex<Vec<Arc<Busy>>>,
}

impl Grace {
    /// Take part.
    #[must_use]
    pub(crate) fn enter(&self) -> Pass {
        let busy = Arc::new(Busy::default());
        if let Ok(mut queues) = self.0.queues.lock() {
            queues.push(Arc::clone(&busy));
        }
        Pass { busy, counts: [0; 2] }
    }

    /// A moment: what is off the map now is free when this is [`over`](Self::over).
    pub(crate) fn ticket(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.0.generation.load(Ordering::SeqCst)
    }

    /// Whether every request that was mapped before the ticket has ended. Does not wait: ask again later.
    pub(crate) fn over(&self, ticket: u64) -> bool {
        let Ok(mut queues) = self.0.queues.lock() else { return false };
        // A queue that is gone has no requests.
        queues.retain(|busy| Arc::strong_count(busy) > 1);
        fence(Ordering::SeqCst);
        loop {
            let now = self.0.generation.load(Ordering::SeqCst);
            if now >= ticket + 2 {
                return true;
            }
            // Requests of the generation before the present one: nobody joins it now.
            let old = (now as usize + 1) % 2;
            if queues.iter().any(|busy| busy.0.get(old).is_none_or(|busy| busy.load(Ordering::SeqCst))) {
                return false;
            }
            self.0.generation.store(now + 1, Ordering::SeqCst);
        }
    }
}

/// A queue's part.
#[derive(Debug)]
pub(crate) struct Pass {
    busy: Arc<Busy>,
    counts: [u32; 2],
}

impl Pass {
    /// A request begins, before it is mapped. The generation that it belongs to.
    #[inline]
    pub(crate) fn begin(&mut self, grace: &Grace) -> u8 {
        let generation = (grace.0.generation.load(Ordering::Relaxed) % 2) as usize;
        if let (Some(count), Some(busy)) = (self.counts.get_mut(generation), self.busy.0.get(generation)) {
            *count += 1;
            if *count == 1 {
                busy.store(true, Ordering::SeqCst);
                // Before the map is read.
                fence(Ordering::SeqCst);
            }
        }
        generation as u8
    }

    /// A request of this generation has ended.
    #[inline]
    pub(crate) fn end(&mut self, generation: u8) {
        let generation = usize::from(generation);
        if let (Some(count), Some(busy)) = (self.counts.get_mut(generation), self.busy.0.get(generation)) {
            *count -= 1;
            if *count == 0 {
                busy.store(false, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_requests_it_is_over_at_once() {
        let grace = Grace::default();
        assert!(grace.over(grace.ticket()));
        let pass = grace.enter();
        assert!(grace.over(grace.ticket()));
        drop(pass);
        assert!(grace.over(grace.ticket()));
    }

    #[test]
    fn a_request_that_was_there_before_is_waited_for_and_later_ones_are_not() {
        let grace = Grace::default();
        let (mut one, mut other) = (grace.enter(), grace.enter());
        let early = one.begin(&grace);
        let ticket = grace.ticket();
        let mut late = vec![other.begin(&grace)];
        for _ in 0..10 {
            assert!(!grace.over(ticket));
            late.push(other.begin(&grace));
            other.end(late.remove(0));
        }
        one.end(early);
        // The other never rests, but its requests change.
        let mut rounds = 0;
        while !grace.over(ticket) {
            late.push(other.begin(&grace));
            other.end(late.remove(0));
            rounds += 1;
            assert!(rounds < 10);
        }
    }

    #[test]
    fn a_queue_that_is_gone_holds_nothing_up() {
        let grace = Grace::default();
        let mut pass = grace.enter();
        pass.begin(&grace);
        let ticket = grace.ticket();
        assert!(!grace.over(ticket));
        drop(pass);
        assert!(grace.over(ticket));
    }
}
