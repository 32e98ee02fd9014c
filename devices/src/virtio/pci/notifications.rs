//! Notification suppression: for which requests the guest notifies the device while it sleeps (VIRTIO 1.2, 2.7.10).

use super::super::queue::Armed;
use super::Transport;
use crate::dma::Spans;
use crate::time::Time;

impl Transport {
    /// Before the queues are served: tell the kick suppression of each how many requests wait.
    pub(in super::super) fn note_waiting<M: Spans>(&mut self, memory: &M, now: Time) {
        let poll_at = self.poll_at.take();
        self.late = poll_at.is_some_and(|time| now >= time);
        if poll_at.is_some() {
            for queue in &mut self.queues {
                queue.note_waiting(memory, now);
            }
        }
    }

    /// Before the device sleeps, have the guest notify for a queue. True: requests are there already.
    pub(in super::super) fn arm<M: Spans>(&mut self, index: usize, memory: &M, now: Time) -> bool {
        let Some(queue) = self.queues.get_mut(index).filter(|queue| queue.active()) else { return false };
        match queue.arm(memory, self.late, now) {
            Ok(Armed::ChainsWait) => return true,
            Ok(Armed::Notifies) => {}
            Ok(Armed::PollAfter(wait)) => {
                let time = now.after(wait);
                self.poll_at = Some(self.poll_at.map_or(time, |other| other.min(time)));
            }
            Err(_) => self.needs_reset(),
        }
        false
    }
}
