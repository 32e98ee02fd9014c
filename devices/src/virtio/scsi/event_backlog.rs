//! Events that wait for buffers.

use std::collections::VecDeque;

use zerocopy::little_endian::U32;

use super::spec::*;

/// Maximum number of events that wait for buffers. Further events are lost, which the last one reports.
const MAX_EVENTS: usize = 64;

/// Events that wait for buffers.
#[derive(Debug, Default)]
pub(super) struct EventBacklog {
    waiting: VecDeque<EventInfo>,
    /// Events were lost.
    missed: bool,
}

impl EventBacklog {
    /// Whether a buffer could be used.
    pub(super) fn wants(&self) -> bool {
        self.missed || !self.waiting.is_empty()
    }

    /// An event was lost.
    pub(super) const fn set_missed(&mut self) {
        self.missed = true;
    }

    pub(super) fn push(&mut self, event: EventInfo) {
        if self.waiting.len() < MAX_EVENTS {
            self.waiting.push_back(event);
        } else {
            self.set_missed();
        }
    }

    /// Remove and return the next event to post. The last event that waits also reports that later ones were lost.
    pub(super) fn pop(&mut self) -> EventInfo {
        let mut event = self.waiting.pop_front().unwrap_or_default();
        if self.waiting.is_empty() && std::mem::take(&mut self.missed) {
            event.event |= U32::new(VIRTIO_SCSI_T_EVENTS_MISSED);
        }
        event
    }
}
