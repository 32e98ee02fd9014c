//! The doorbell, which a guest rings for each request.
//!
//! It is a value of the data register, which takes operation codes and parameters, too. It is a doorbell while no command is in
//! progress, and then answered on the thread of the virtual CPU that writes it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::spec::{opcode, reg};
use crate::device::{FastRegisters, FastWrite};

/// What virtual CPUs and the device's thread share.
#[derive(Debug)]
pub(super) struct Port {
    /// The doorbell was rung since the device last looked.
    rung: AtomicBool,
    /// No command is in progress.
    idle: AtomicBool,
    /// The device's thread sleeps, and is to be woken.
    asleep: AtomicBool,
    /// With no request in flight.
    unused: AtomicBool,
}

impl Default for Port {
    fn default() -> Self {
        Self {
            rung: AtomicBool::new(false),
            idle: AtomicBool::new(true),
            asleep: AtomicBool::new(false),
            unused: AtomicBool::new(false),
        }
    }
}

impl Port {
    /// The doorbell is rung.
    #[inline]
    pub(super) fn ring(&self) {
        // In one total order with the load of `asleep`.
        self.rung.store(true, Ordering::SeqCst);
    }

    /// Whether the doorbell was rung since the last call.
    #[inline]
    pub(super) fn take(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::Acquire)
    }

    pub(super) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::SeqCst)
    }

    /// Whether a byte written to the data register may be the doorbell.
    pub(super) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Release);
    }

    /// The device's thread is about to sleep, with nothing in flight or not; then it looks at the doorbell once more.
    pub(super) fn set_asleep(&self, unused: bool) {
        self.unused.store(unused, Ordering::Relaxed);
        // In one total order with the doorbell, and with the look at it that follows: either it is seen there, or the flag in `write`.
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The device's thread is awake.
    #[inline]
    pub(super) fn set_awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

impl FastRegisters for Port {
    fn read(&self, _bar: u8, _offset: u64, _data: &mut [u8]) -> bool {
        false
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) -> FastWrite {
        let register = bar <= 1 && offset % reg::COUNT == reg::DATA;
        if !register || data != [opcode::EXECUTE_MAILBOX] || !self.idle.load(Ordering::Acquire) {
            return FastWrite::Forward;
        }
        self.ring();
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::Relaxed) {
            return FastWrite::Wake { idle: self.unused.load(Ordering::Relaxed) };
        }
        FastWrite::Taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doorbell_wakes_a_device_that_sleeps() {
        let port = Port::default();
        assert!(!port.take());
        assert_eq!(port.write(0, 1, &[2]), FastWrite::Taken);
        assert_eq!(port.write(1, 29, &[2]), FastWrite::Taken);
        assert!(port.is_rung() && port.take() && !port.take());
        port.set_asleep(true);
        assert_eq!(port.write(0, 5, &[2]), FastWrite::Wake { idle: true });
        assert_eq!(port.write(0, 5, &[2]), FastWrite::Taken, "once");
        port.set_asleep(false);
        port.set_awake();
        assert_eq!(port.write(0, 5, &[2]), FastWrite::Taken);
    }

    #[test]
    fn a_parameter_is_no_doorbell() {
        let port = Port::default();
        port.set_idle(false);
        assert_eq!(port.write(0, 1, &[2]), FastWrite::Forward);
        port.set_idle(true);
        for (bar, offset, data) in
            [(0, 0, &[2][..]), (0, 1, &[4]), (2, 1, &[2]), (0, 1, &[2, 0]), (0, 1, &[])]
        {
            assert_eq!(port.write(bar, offset, data), FastWrite::Forward);
        }
        assert!(!port.take());
    }
}
