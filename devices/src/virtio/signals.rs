//! When an interrupt is sent: moderation together with the guest's suppression (rules: [`virtio`](super)).

use super::suppression::Requested;
use crate::moderation::{Coalescing, ModerationState, Moderator};
use crate::time::Time;

/// The decisions for one queue.
pub(super) struct Signal {
    moderator: Moderator,
    /// Requests that wait in the ring. Moderation counts them as in flight, because their completions will follow.
    pub(super) waiting: u32,
    /// The next signal that the guest wants is sent at once, without moderation: moderation has decided for a signal that the guest did not
    /// want, or the signal is [forced](Self::force).
    at_once: bool,
}

impl Signal {
    pub(super) fn new(options: Coalescing) -> Self {
        Self { moderator: Moderator::new(options), waiting: 0, at_once: false }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.options());
    }

    /// The moderation options.
    pub(super) const fn options(&self) -> Coalescing {
        *self.moderator.options()
    }

    /// Change the moderation options. If a signal is held back, the next [`decide`](Self::decide) sends it, if the guest wants it.
    pub(super) fn set_options(&mut self, options: Coalescing) {
        self.at_once |= self.moderator.set_options(options);
    }

    /// The state of the moderation.
    pub(super) const fn moderation(&self) -> ModerationState {
        self.moderator.state()
    }

    /// A completion was put into the used ring, and `in_flight` requests of the queue are in flight without it. True: publish it, and
    /// decide before the next completion.
    #[inline]
    pub(super) fn completed(&mut self, in_flight: u32, now: Time) -> bool {
        self.moderator.completed(in_flight + self.waiting, now)
    }

    /// The next [`decide`](Self::decide) signals if the guest wants a signal, whatever moderation says.
    pub(super) fn force(&mut self) {
        self.at_once = true;
    }

    /// Decide, with what the guest requests for the posted completions. True: send a signal, which covers every completion so far.
    pub(super) fn decide(&mut self, requested: Requested, now: Time) -> bool {
        let due = self.moderator.end_batch(now);
        match requested {
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
