//! Which requests the guest notifies of while the device sleeps (VIRTIO 1.2, 2.7.10).

use super::super::queue::Armed;
use super::Transport;
use crate::Time;
use crate::dma::Spans;

impl Transport {
    /// The device looks at its queues, having slept or not.
    pub(in super::super) fn look<M: Spans>(&mut self, memory: &M, now: Time) {
        let look_at = self.look_at.take();
        self.late = look_at.is_some_and(|time| now >= time);
        if look_at.is_some() {
            for queue in &mut self.queues {
                queue.look(memory, now);
            }
        }
    }

    /// Before the device sleeps, have the guest notify for a queue. True: requests are there already.
    pub(in super::super) fn arm<M: Spans>(&mut self, index: usize, memory: &M, now: Time) -> bool {
        let Some(queue) = self.queues.get_mut(index).filter(|queue| queue.active()) else { return false };
        match queue.arm(memory, self.late, now) {
            Ok(Armed::ChainsWait) => return true,
            Ok(Armed::Notifies) => {}
            Ok(Armed::LookAfter(wait)) => {
                let time = now.after(wait);
                self.look_at = Some(self.look_at.map_or(time, |other| other.min(time)));
            }
            Err(_) => self.needs_reset(),
        }
        false
    }
}
