//! Messages to the guest. The message slot of a virtual processor holds one; further messages wait in order.

use std::collections::VecDeque;

use super::spec::HV_MESSAGE_PAYLOAD_BYTE_COUNT;
use super::synic::{Posted, Synic};

/// Maximum number of messages that wait. Beyond that, messages of the guest are refused, because they may need an answer.
pub(super) const MAX_WAITING: usize = 64;

/// Messages for one virtual processor, which INITIATE_CONTACT names.
#[derive(Default)]
pub(super) struct Outbox {
    vp: u32,
    /// Oldest first. If not empty, the slot was occupied when the first one was sent. The guest's end of message follows, unless the guest
    /// has moved its message page meanwhile.
    waiting: VecDeque<Vec<u8>>,
}

impl Outbox {
    /// Drop waiting messages. `vp`: send to this virtual processor from here on, if given.
    pub(super) fn reset(&mut self, vp: Option<u32>) {
        self.vp = vp.unwrap_or(self.vp);
        self.waiting.clear();
    }

    /// Whether there is space for the answer to another message.
    pub(super) fn has_space(&self) -> bool {
        self.waiting.len() < MAX_WAITING
    }

    /// Send a message, or queue it until the slot is free.
    pub(super) fn send(&mut self, synic: &mut dyn Synic, message: Vec<u8>) {
        debug_assert!(message.len() <= HV_MESSAGE_PAYLOAD_BYTE_COUNT, "a message of {} bytes", message.len());
        self.waiting.push_back(message);
        // Also if others wait: if the guest has moved the slot, no end of message comes for the old one.
        self.send_waiting(synic);
    }

    /// A virtual processor has ended a message while another one waited.
    pub(super) fn on_end_of_message(&mut self, synic: &mut dyn Synic, vp: u32) {
        if vp == self.vp {
            self.send_waiting(synic);
        }
    }

    fn send_waiting(&mut self, synic: &mut dyn Synic) {
        while let Some(message) = self.waiting.front() {
            match synic.post_message(self.vp, message) {
                Posted::Done => drop(self.waiting.pop_front()),
                Posted::Busy => return,
                // No slot is enabled, and no event reports when one is.
                Posted::Off => {
                    tracing::debug!(vp = self.vp, messages = self.waiting.len(), "VMBus messages dropped");
                    self.waiting.clear();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot of each of two virtual processors, and what was taken from it.
    #[derive(Default)]
    struct Slots {
        slots: [Option<Vec<u8>>; 2],
        off: bool,
    }

    impl Synic for Slots {
        fn post_message(&mut self, vp: u32, payload: &[u8]) -> Posted {
            let slot = &mut self.slots[vp as usize];
            match slot {
                _ if self.off => Posted::Off,
                Some(_) => Posted::Busy,
                None => {
                    *slot = Some(payload.to_vec());
                    Posted::Done
                }
            }
        }
        fn signal_event(&mut self, _vp: u32, _flag: u16) {}
    }

    #[test]
    fn messages_keep_their_order_behind_a_slot_that_is_taken() {
        let (mut slots, mut outbox) = (Slots::default(), Outbox::default());
        outbox.reset(Some(1));
        (0..5).for_each(|n| outbox.send(&mut slots, vec![n]));
        outbox.on_end_of_message(&mut slots, 0);
        for n in 0..5 {
            assert_eq!(slots.slots[1].take(), Some(vec![n]));
            outbox.on_end_of_message(&mut slots, 1);
        }
        assert_eq!(slots.slots, [None, None]);
        // The guest took one without an end of message: the next message goes to the free slot.
        outbox.send(&mut slots, vec![9]);
        assert_eq!(slots.slots[1].take(), Some(vec![9]));
    }

    #[test]
    fn messages_go_on_in_a_slot_that_has_moved() {
        let (mut slots, mut outbox) = (Slots::default(), Outbox::default());
        (0..3).for_each(|n| outbox.send(&mut slots, vec![n]));
        // Another page, whose slot is free: the guest never ends the message in the old one.
        assert_eq!(slots.slots[0].take(), Some(vec![0]));
        outbox.send(&mut slots, vec![3]);
        for n in 1..4 {
            assert_eq!(slots.slots[0].take(), Some(vec![n]));
            outbox.on_end_of_message(&mut slots, 0);
        }
        assert_eq!(slots.slots, [None, None]);
    }

    #[test]
    fn a_reset_forgets_what_waits_and_what_nobody_takes_is_dropped() {
        let (mut slots, mut outbox) = (Slots::default(), Outbox::default());
        (0..MAX_WAITING as u8 + 1).for_each(|n| outbox.send(&mut slots, vec![n]));
        assert!(!outbox.has_space());
        outbox.reset(Some(1));
        outbox.send(&mut slots, vec![77]);
        assert_eq!(slots.slots, [Some(vec![0]), Some(vec![77])]);
        slots.off = true;
        outbox.send(&mut slots, vec![78]);
        assert!(outbox.has_space() && outbox.waiting.is_empty());
    }
}
