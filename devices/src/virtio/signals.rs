//! When an interrupt is sent: moderation together with the guest's suppression (rules: [`virtio`](super)).

use super::suppression::Requested;
use crate::moderation::{Coalescing, ModerationState, Moderator};
use crate::time::Time;

/// The decisions for one vector or for the interrupt line; in a [`Ring`](super::blk::Ring), for one queue.
pub(super) struct Signal {
    moderator: Moderator,
    /// Requests in flight whose completions signal here.
    pub(super) in_flight: u32,
    /// Requests that wait in the rings. Moderation counts them as in flight, because their completions will follow.
    pub(super) waiting: u32,
    /// The next signal that the guest wants is sent at once, without moderation: moderation has decided for a signal that the guest did not
    /// want, or the signal is [forced](Self::force).
    at_once: bool,
    /// The strongest request for a signal among the queues checked so far.
    requested: Requested,
}

impl Signal {
    pub(super) fn new(options: Coalescing) -> Self {
        Self {
            moderator: Moderator::new(options),
            in_flight: 0,
            waiting: 0,
            at_once: false,
            requested: Requested::None,
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(*self.moderator.options());
    }

    /// Change the moderation options. If a signal is held back, the next [`decide`](Self::decide) sends it, if the guest wants it.
    pub(super) fn set_options(&mut self, options: Coalescing) {
        self.at_once |= self.moderator.set_options(options);
    }

    /// The state of the moderation.
    pub(super) const fn moderation(&self) -> ModerationState {
        self.moderator.state()
    }

    /// A completion was put into a used ring. True: publish it, and decide before the next completion.
    #[inline]
    pub(super) fn completed(&mut self, now: Time) -> bool {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.moderator.completed(self.in_flight + self.waiting, now)
    }

    /// The next [`decide`](Self::decide) signals if the guest wants a signal, whatever moderation says.
    pub(super) fn force(&mut self) {
        self.at_once = true;
    }

    /// Record what the guest requests for one of the queues.
    pub(super) fn note(&mut self, requested: Requested) {
        self.requested = self.requested.max(requested);
    }

    /// Decide, after [`note`](Self::note) for every queue. True: send a signal, which covers every completion so far.
    pub(super) fn decide(&mut self, now: Time) -> bool {
        let due = self.moderator.end_batch(now);
        match std::mem::take(&mut self.requested) {
            Requested::None => {
                self.at_once |= due;
                let _ = self.moderator.flush();
                false
            }
            Requested::Next if !due && !self.at_once => false,
            Requested::Next | Requested::Later => {
                self.at_once = false;
                let _ = self.moderator.flush();
                true
            }
        }
    }

    /// When the completion held back longest must be signalled.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.moderator.deadline()
    }
}
