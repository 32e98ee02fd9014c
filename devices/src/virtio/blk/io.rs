//! The way of a batch: out of the rings, to the disk, into the used rings, one decision to interrupt for each vector.

use vm_memory::GuestAddressSpace;

use super::VirtioBlk;
use super::spec::Status;
use crate::Time;
use crate::dma::View;

/// Requests taken from a queue before it is another's turn.
const BATCH: usize = 128;

/// Rounds over all queues before the owner gets its thread back.
const MAX_ROUNDS: usize = 16;

impl<A: GuestAddressSpace> VirtioBlk<A> {
    /// Do all that there is to do: end what has ended, take what waits.
    pub(super) fn service(&mut self, now: Time) {
        self.more = false;
        let memory = self.dma.view();
        self.transport.look(&memory, now);
        self.complete(&memory, now);
        for _ in 0..MAX_ROUNDS {
            if !self.fetch(&memory) {
                return;
            }
            self.requests.submit();
            self.complete(&memory, now);
        }
        self.more = true;
    }

    /// Take a batch from each queue. False: nothing was taken.
    fn fetch(&mut self, memory: &View<A::T>) -> bool {
        let count = self.transport.queues().len();
        let mut any = false;
        let first = self.first_queue;
        for index in (0..count).map(|n| (first + n) % count) {
            any |= self.fetch_queue(index, memory);
        }
        // Where there is not room for all, each queue is first at some time.
        self.first_queue = (self.first_queue + 1) % count;
        any
    }

    fn fetch_queue(&mut self, index: usize, memory: &View<A::T>) -> bool {
        let room = self.requests.room().min(BATCH);
        if room == 0 || !self.transport.live() {
            return false;
        }
        let write_through = self.write_through();
        let Some(queue) = self.transport.queues().get_mut(index).filter(|queue| queue.ready()) else {
            return false;
        };
        let mut count = 0;
        let taken = queue.take(memory).and_then(|mut chains| {
            while count < room as u32
                && let Some(chain) = chains.next()
            {
                self.requests.start(index, chain, write_through, &mut self.dma)?;
                count += 1;
            }
            Ok(())
        });
        self.stats.requests += u64::from(count);
        self.transport.taken(index, count);
        if taken.is_err() {
            self.transport.needs_reset();
        }
        count > 0
    }

    /// Show the guest what has ended, and decide whether to interrupt.
    pub(super) fn complete(&mut self, memory: &View<A::T>, now: Time) {
        self.requests.reap();
        if !self.transport.bus_master() {
            return;
        }
        if self.requests.has_ended() {
            // Requests that wait are outstanding, too: more completions will come.
            let waiting = self.transport.queues().iter().filter(|queue| queue.ready());
            let waiting = waiting.map(|queue| queue.waiting(memory)).sum();
            while let Some(ended) = self.requests.next_ended() {
                self.stats.completions += 1;
                self.stats.errors += u64::from(ended.status != Status::Ok);
                if self.dma.write_bytes(ended.status_at, &[ended.status as u8]).is_err() {
                    // Nowhere to answer to.
                    self.transport.needs_reset();
                    continue;
                }
                self.transport.complete(ended.queue, (ended.head, ended.written), waiting, memory, now);
            }
        }
        self.transport.end_batch(memory, now);
    }

    /// Wait for everything in flight, and show it.
    pub(super) fn finish(&mut self, now: Time) {
        self.requests.drain();
        let memory = self.dma.view();
        self.transport.flush();
        self.complete(&memory, now);
    }

    /// Wait for everything in flight, and forget what `queue` had, or all.
    pub(super) fn forget(&mut self, queue: Option<usize>, now: Time) {
        self.requests.drain();
        let memory = self.dma.view();
        while let Some(ended) = self.requests.next_ended() {
            if queue.is_some_and(|queue| queue != ended.queue) {
                let _ = self.dma.write_bytes(ended.status_at, &[ended.status as u8]);
                self.transport.complete(ended.queue, (ended.head, ended.written), 0, &memory, now);
            }
        }
    }
}
