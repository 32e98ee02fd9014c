//! Interrupts for completions: MSI-X vectors, or the line with its ISR status (VIRTIO 1.2, 4.1.4.5 and 4.1.5).

use super::super::queue::Virtqueue;
use super::super::spec::Isr;
use super::Transport;
use crate::dma::Spans;
use crate::moderation::{Coalescing, ModerationState};
use crate::pci::InterruptMode;
use crate::time::Time;

impl Transport {
    /// Requests were taken from a queue.
    pub(in super::super) fn taken(&mut self, queue: usize, count: u32) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.in_flight += count;
        }
    }

    /// Put a completion into a queue's used ring: the chain's head, and the number of bytes written. The guest sees it at the end of
    /// the batch, or when a signal is sent before. Always inlined: called for each request, at one place.
    #[inline(always)]
    pub(in super::super) fn complete<M: Spans>(
        &mut self,
        queue: usize,
        answer: (u16, u32),
        memory: &M,
        now: Time,
    ) {
        let Some(virtqueue) = self.queues.get_mut(queue) else { return };
        match virtqueue.complete(memory, answer, now) {
            Ok(false) => {}
            Ok(true) => self.signal_queue(queue),
            Err(_) => self.needs_reset(),
        }
    }

    /// Publish the completions that are in the used rings, and decide for each queue whether to signal.
    pub(in super::super) fn end_batch<M: Spans>(&mut self, memory: &M, now: Time) {
        for index in 0..self.queues.len() {
            match self.queues[index].end_batch(memory, now) {
                Ok(false) => {}
                Ok(true) => self.signal_queue(index),
                Err(_) => self.needs_reset(),
            }
        }
    }

    /// When the next delayed signal must be sent, or a poll of the queues is due.
    pub(in super::super) fn deadline(&self) -> Option<Time> {
        // Without bus mastering, and during a reset, nothing is signalled or read: no reason to wake.
        let works = self.function.bus_master() && !self.resetting;
        self.queues.iter().filter_map(Virtqueue::deadline).min().filter(|_| works)
    }

    /// Change the moderation. Signals that are held back are sent at the end of the batch.
    pub(in super::super) fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.queues.iter_mut().for_each(|queue| queue.signal.set_options(coalescing));
    }

    /// The state of the moderation of each queue.
    pub(in super::super) fn moderation(&self) -> Vec<ModerationState> {
        self.queues.iter().map(|queue| queue.signal.moderation()).collect()
    }

    /// Signals that moderation holds back are sent at the end of the batch.
    pub(in super::super) fn flush(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.signal.force());
    }

    /// Interrupts signalled so far.
    pub(in super::super) const fn interrupts(&self) -> u64 {
        self.interrupts
    }

    /// Notify the guest of a change of configuration or status.
    pub(super) fn notify_config(&mut self) {
        self.send(self.config_vector, Isr::CONFIG);
    }

    /// Interrupt for completions of a queue.
    pub(in super::super) fn signal_queue(&mut self, queue: usize) {
        if let Some(queue) = self.queues.get(queue).filter(|_| !self.resetting) {
            self.send(queue.vector, Isr::QUEUE);
        }
    }

    fn send(&mut self, vector: u16, cause: Isr) {
        if self.function.mode() == InterruptMode::Msix {
            self.interrupts += u64::from(self.function.signal(vector));
        } else {
            self.isr |= cause;
            self.update_line();
        }
    }

    pub(super) fn update_line(&mut self) {
        self.interrupts += u64::from(self.function.set_line(!self.isr.is_empty()));
    }
}
