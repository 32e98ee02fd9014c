//! Interrupts for completions: MSI-X vectors, or the line with its ISR status (VIRTIO 1.2, 4.1.4.5 and 4.1.5).

use super::super::spec::Isr;
use super::Transport;
use crate::pci::InterruptMode;

impl Transport {
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
