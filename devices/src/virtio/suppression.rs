//! Interrupt suppression: which completions the guest wants a signal for, by the event index (VIRTIO 1.2, 2.7.7).

/// Which of the posted completions the guest wants a signal for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requested {
    /// None of them.
    None,
    /// The first one after the last decision.
    Next,
    /// A later one: the guest moderates interrupts by itself.
    Later,
}

/// Whether going from index `old` to `new` passes the index `event` (`vring_need_event`).
pub(super) const fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// State between two reads of the guest's event index.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InterruptSuppression {
    /// Completions before this used index were signalled, or the guest wanted no signal for them.
    decided: u16,
    /// The used index at the last check.
    checked: u16,
    /// The guest's event index at the last check, if it was beyond the next completion then.
    ahead: Option<u16>,
}

impl InterruptSuppression {
    /// Whether completions up to `used` include one that no decision covers.
    pub(super) const fn is_undecided(&self, used: u16) -> bool {
        self.decided != used
    }

    /// Compare with the guest's event index, after completions up to `used` were posted. If the guest wants a signal for none of
    /// them, they are decided.
    pub(super) fn check(&mut self, used: u16, event: u16) -> Requested {
        if !need_event(event, used, self.decided) {
            let distance = event.wrapping_sub(used);
            // The next completion has index `used`. A distance of half the range or more is that of a past index. An index that was
            // ahead at the last check, and is that of the next completion now, still counts as ahead: the guest has not changed it.
            let ahead = distance > 0 && distance < 0x8000 || distance == 0 && self.ahead == Some(event);
            self.decide_up_to(used);
            self.ahead = ahead.then_some(event);
            return Requested::None;
        }
        let past = event.wrapping_sub(self.checked);
        let later = self.ahead == Some(event) || past > 0 && past < used.wrapping_sub(self.checked);
        self.checked = used;
        if later { Requested::Later } else { Requested::Next }
    }

    /// Completions up to `used` are signalled, or need no signal.
    pub(super) const fn decide_up_to(&mut self, used: u16) {
        *self = Self { decided: used, checked: used, ahead: None };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the plain definition: the index `event` is one of those from `old` to `new` - 1.
        #[test]
        fn an_event_is_needed_where_its_entry_was_written(old: u16, count in 0u16..2000, event: u16) {
            let new = old.wrapping_add(count);
            let written = (0..count).any(|n| old.wrapping_add(n) == event);
            prop_assert_eq!(need_event(event, new, old), written);
        }

        /// A guest whose index stays where it is gets one request when it is passed, however the completions come,
        /// and none is lost while the signal is held back.
        #[test]
        fn a_request_stays_until_it_is_decided(
            start: u16,
            ahead in 0u16..300,
            batches in prop::collection::vec(1u16..40, 1..30),
        ) {
            let mut suppression = InterruptSuppression::default();
            suppression.decide_up_to(start);
            let event = start.wrapping_add(ahead);
            let mut used = start;
            let mut posted = 0;
            for batch in batches {
                used = used.wrapping_add(batch);
                posted += batch;
                let requested = suppression.check(used, event);
                prop_assert_eq!(requested != Requested::None, posted > ahead);
                prop_assert_eq!(requested != Requested::None, suppression.is_undecided(used));
                // A guest that asks for the next completion never seems to ask for a later one.
                if ahead == 0 {
                    prop_assert_ne!(requested, Requested::Later);
                }
            }
            suppression.decide_up_to(used);
            prop_assert!(!suppression.is_undecided(used));
            prop_assert_eq!(suppression.check(used, event), Requested::None);
        }

        /// If the guest asked for a later completion, the check after that completion returns `Later`. The exception: the first check
        /// comes right before that completion. Then the guest may have read all completions and asked for the next one.
        #[test]
        fn asking_ahead_is_seen(start: u16, ahead in 1u16..300, batches in prop::collection::vec(1u16..40, 1..30)) {
            prop_assume!(batches[0] != ahead);
            let mut suppression = InterruptSuppression::default();
            suppression.decide_up_to(start);
            let mut used = start;
            for batch in batches {
                used = used.wrapping_add(batch);
                match suppression.check(used, start.wrapping_add(ahead)) {
                    Requested::None => {}
                    requested => {
                        prop_assert_eq!(requested, Requested::Later);
                        break;
                    }
                }
            }
        }
    }
}
