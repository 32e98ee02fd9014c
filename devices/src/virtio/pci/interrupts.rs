//! Interrupts for completions: MSI-X vectors, or the line with its ISR status (VIRTIO 1.2, 4.1.4.5 and 4.1.5).

use super::super::signals::Signal;
use super::super::spec::Isr;
use super::Transport;
use crate::dma::Spans;
use crate::moderation::{Coalescing, ModerationState};
use crate::pci::InterruptMode;
use crate::time::Time;

impl Transport {
    /// Requests were taken from a queue.
    pub(in super::super) fn taken(&mut self, queue: usize, count: u32) {
        let signal = self.signal_of(queue);
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.in_flight += count;
        }
        if let Some(signal) = signal.and_then(|signal| self.signals.get_mut(signal)) {
            signal.in_flight += count;
        }
    }

    /// Before completions are posted: count the requests that wait in the rings, from queue `first` on.
    pub(in super::super) fn count_waiting<M: Spans>(&mut self, first: usize, memory: &M) {
        for signal in &mut self.signals {
            signal.waiting = 0;
        }
        for index in first..self.queues.len() {
            let signal = self.signal_of(index);
            let Some(queue) = self.queues.get(index).filter(|queue| queue.active()) else { continue };
            if let Some(signal) = signal.and_then(|signal| self.signals.get_mut(signal)) {
                signal.waiting += queue.waiting(memory);
            }
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
        let index = self.signal_of(queue);
        let Some(virtqueue) = self.queues.get_mut(queue) else { return };
        if virtqueue.put(memory, answer, now).is_err() {
            self.needs_reset();
            return;
        }
        let signal = index.and_then(|index| Some((index, self.signals.get_mut(index)?)));
        if let Some((index, signal)) = signal
            && signal.completed(now)
        {
            self.signal_at_once(queue, index, memory, now);
        }
    }

    /// Moderation wants a completion to be signalled before the next one.
    #[inline(never)]
    fn signal_at_once<M: Spans>(&mut self, queue: usize, index: usize, memory: &M, now: Time) {
        let (Some(virtqueue), Some(signal)) = (self.queues.get_mut(queue), self.signals.get_mut(index))
        else {
            return;
        };
        if virtqueue.publish(memory).is_err() {
            return self.needs_reset();
        }
        signal.force();
        signal.note(virtqueue.requested_signal(memory));
        if signal.decide(now) {
            virtqueue.decide_all();
            self.send(index);
        }
    }

    /// Interrupt for completions of a queue that is served elsewhere ([`ThreadedBlk`](super::super::blk::ThreadedBlk)).
    pub(in super::super) fn signal_queue(&mut self, queue: usize) {
        if let Some(signal) = self.signal_of(queue).filter(|_| !self.resetting) {
            self.send(signal);
        }
    }

    /// Publish the completions that are in the used rings, and decide for each vector whether to signal.
    pub(in super::super) fn end_batch<M: Spans>(&mut self, memory: &M, now: Time) {
        let mut posted = Ok(());
        for index in 0..self.queues.len() {
            let signal = self.signal_of(index);
            let Some(queue) = self.queues.get_mut(index).filter(|queue| queue.has_undecided()) else {
                continue;
            };
            posted = posted.and(queue.publish(memory));
            match signal.and_then(|signal| self.signals.get_mut(signal)) {
                Some(signal) => signal.note(queue.requested_signal(memory)),
                None => queue.decide_all(),
            }
        }
        if posted.is_err() {
            self.needs_reset();
        }
        for index in 0..self.signals.len() {
            if self.signals[index].decide(now) {
                for queue in 0..self.queues.len() {
                    if self.signal_of(queue) == Some(index) {
                        self.queues[queue].decide_all();
                    }
                }
                self.send(index);
            }
        }
    }

    /// When the next delayed signal must be sent, or a poll of the queues is due.
    pub(in super::super) fn deadline(&self) -> Option<Time> {
        let deadlines = self.signals.iter().filter_map(Signal::deadline).chain(self.poll_at);
        // Without bus mastering nothing can be signalled or read: no reason to wake.
        deadlines.min().filter(|_| self.function.bus_master())
    }

    /// Change the moderation. Signals that are held back are sent at the end of the batch.
    pub(in super::super) fn set_coalescing(&mut self, coalescing: Coalescing) {
        for signal in &mut self.signals {
            signal.set_options(coalescing);
        }
    }

    /// The state of the moderation of each vector.
    pub(in super::super) fn moderation(&self) -> Vec<ModerationState> {
        self.signals.iter().map(Signal::moderation).collect()
    }

    /// The next completion of a queue signals with its batch, whatever moderation says.
    pub(in super::super) fn force_signal(&mut self, queue: usize) {
        let signal = self.signal_of(queue);
        if let Some(signal) = signal.and_then(|signal| self.signals.get_mut(signal)) {
            signal.force();
        }
    }

    /// Signals that moderation holds back are sent at the end of the batch.
    pub(in super::super) fn flush(&mut self) {
        for signal in &mut self.signals {
            signal.force();
        }
    }

    /// Interrupts signalled so far.
    pub(in super::super) const fn interrupts(&self) -> u64 {
        self.interrupts
    }

    /// Index in `signals` for a queue's completions.
    #[inline]
    fn signal_of(&self, queue: usize) -> Option<usize> {
        if self.function.mode() != InterruptMode::Msix {
            return Some(0);
        }
        let vector = usize::from(self.queues.get(queue)?.vector);
        (vector < self.signals.len()).then_some(vector)
    }

    /// The vectors of queues have changed. The device serves its queues at once. Then it sends the signals that were held back for the old
    /// vectors on the new vectors.
    pub(super) fn rerouted(&mut self) {
        for signal in &mut self.signals {
            signal.reset();
        }
        for index in 0..self.queues.len() {
            let Some(signal) = self.signal_of(index) else { continue };
            self.signals[signal].in_flight += self.queues[index].in_flight;
            if self.queues[index].has_undecided() {
                self.signals[signal].force();
                self.poll_at = Some(Time::default());
            }
        }
    }

    /// Notify the guest of a change of configuration or status.
    pub(super) fn notify_config(&mut self) {
        if self.function.mode() == InterruptMode::Msix {
            self.interrupts += u64::from(self.function.signal(self.config_vector));
        } else {
            self.isr |= Isr::CONFIG;
            self.update_line();
        }
    }

    fn send(&mut self, signal: usize) {
        if self.function.mode() == InterruptMode::Msix {
            self.interrupts += u64::from(self.function.signal(signal as u16));
        } else {
            self.isr |= Isr::QUEUE;
            self.update_line();
        }
    }

    pub(super) fn update_line(&mut self) {
        self.interrupts += u64::from(self.function.set_line(!self.isr.is_empty()));
    }
}
