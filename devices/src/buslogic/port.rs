//! The registers that a guest accesses for each request or interrupt: the doorbell, and the interrupt register with its acknowledgement.
//!
//! They are answered on the virtual CPU's thread. The doorbell is one value of the data register, to which operation codes and parameters
//! are written, too: that value is the doorbell only while no command is in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::line::Line;
use super::spec::{Control, opcode, reg};
use crate::asleep::Asleep;
use crate::device::{FastRegisters, FastWrite};
use crate::interrupt::InterruptLine;

/// State that virtual CPUs and the device's thread share.
pub(super) struct Port {
    /// The doorbell was rung since the device last polled it.
    rung: AtomicBool,
    /// No command is in progress.
    idle: AtomicBool,
    pub(super) asleep: Asleep,
    /// The interrupt register.
    pub(super) line: Line,
}

impl Port {
    /// `line`: the INTx line, where virtual CPUs may lower it.
    pub(super) fn new(line: Option<Arc<dyn InterruptLine>>) -> Self {
        Self {
            rung: AtomicBool::new(false),
            idle: AtomicBool::new(true),
            asleep: Asleep::default(),
            line: Line::new(line),
        }
    }

    /// Ring the doorbell.
    #[inline]
    pub(super) fn ring(&self) {
        // In one total order with `asleep`.
        self.rung.store(true, Ordering::SeqCst);
    }

    /// Whether the doorbell was rung since the last call of this function.
    #[inline]
    pub(super) fn take_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::Acquire)
    }

    pub(super) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::SeqCst)
    }

    /// Set whether no command is in progress, so that a byte written to the data register may be the doorbell.
    pub(super) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Release);
    }
}

impl FastRegisters for Port {
    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        let [value] = data else { return false };
        if bar > 1 || offset % reg::COUNT != reg::INTERRUPT {
            return false;
        }
        *value = self.line.read();
        true
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) -> FastWrite {
        const ACKNOWLEDGE: u8 = Control::RESET_INTERRUPT.bits();
        match (bar, offset % reg::COUNT, data) {
            (0 | 1, reg::STATUS_CONTROL, [ACKNOWLEDGE]) if self.line.try_acknowledge() => {
                return FastWrite::Taken;
            }
            (0 | 1, reg::DATA, [opcode::EXECUTE_MAILBOX]) if self.idle.load(Ordering::Acquire) => {}
            _ => return FastWrite::Forward,
        }
        self.ring();
        self.asleep.take().map_or(FastWrite::Taken, |idle| FastWrite::Wake { idle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doorbell_wakes_a_device_that_sleeps() {
        let port = Port::new(None);
        assert!(!port.take_rung());
        assert_eq!(port.write(0, 1, &[2]), FastWrite::Taken);
        assert_eq!(port.write(1, 29, &[2]), FastWrite::Taken);
        assert!(port.is_rung() && port.take_rung() && !port.take_rung());
        port.asleep.set(true);
        assert_eq!(port.write(0, 5, &[2]), FastWrite::Wake { idle: true });
        assert_eq!(port.write(0, 5, &[2]), FastWrite::Taken, "once");
        port.asleep.set(false);
        port.asleep.clear();
        assert_eq!(port.write(0, 5, &[2]), FastWrite::Taken);
    }

    #[test]
    fn a_parameter_is_no_doorbell() {
        let port = Port::new(None);
        port.set_idle(false);
        assert_eq!(port.write(0, 1, &[2]), FastWrite::Forward);
        port.set_idle(true);
        for (bar, offset, data) in
            [(0, 0, &[2][..]), (0, 1, &[4]), (2, 1, &[2]), (0, 1, &[2, 0]), (0, 1, &[])]
        {
            assert_eq!(port.write(bar, offset, data), FastWrite::Forward);
        }
        assert!(!port.take_rung());
    }
}
