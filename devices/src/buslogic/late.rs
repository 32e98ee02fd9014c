//! Ends that wait for an incoming mailbox. The guest does not tell when it frees one, so the adapter polls.

use std::collections::VecDeque;
use std::time::Duration;

use super::mailbox::Incoming;
use crate::time::Time;

/// Interval of polls whether the guest has freed incoming mailboxes.
const INTERVAL: Duration = Duration::from_millis(1);

/// Ends, oldest first, and the time of the next poll. That time is fixed when it is set: events in between, as a guest's accesses to
/// registers, do not move it.
#[derive(Debug)]
pub(super) struct Late {
    ends: VecDeque<Incoming>,
    poll_at: Option<Time>,
}

impl Late {
    /// None, with memory for so many.
    pub(super) fn new(capacity: usize) -> Self {
        Self { ends: VecDeque::with_capacity(capacity), poll_at: None }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// When to poll next, if an end waits.
    pub(super) const fn poll_at(&self) -> Option<Time> {
        self.poll_at
    }

    /// Keep an end.
    pub(super) fn push(&mut self, incoming: Incoming, now: Time) {
        self.ends.push_back(incoming);
        self.poll_at.get_or_insert(now.after(INTERVAL));
    }

    /// A poll: ends are posted in their order until `post` says that there is no free mailbox. How many were posted.
    pub(super) fn poll(&mut self, now: Time, mut post: impl FnMut(Incoming) -> bool) -> u64 {
        let mut posted = 0;
        while self.ends.front().is_some_and(|end| post(*end)) {
            self.ends.pop_front();
            posted += 1;
        }
        self.poll_at = (!self.ends.is_empty()).then(|| now.after(INTERVAL));
        posted
    }

    pub(super) fn clear(&mut self) {
        self.ends.clear();
        self.poll_at = None;
    }
}
