//! Power-off and reset: ACPI fixed hardware (ACPI 6.5, section 4.8), the reset control register of Intel's chip sets
//! (ICH9 datasheet, section 13.7.5), and the keyboard controller's reset line.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::bus::{BusHandler, Flow};
use crate::layout::{KEYBOARD_CONTROLLER, POWER_CONTROL, POWER_EVENTS, POWER_OFF, RESET_COMMAND};

/// In the low byte of control.
const SCI_EN: u8 = 1 << 0;
/// In control; zero for soft off.
const SLP_TYP: u16 = 0b111 << 10;
/// In the high byte of control.
const SLP_EN: u8 = 1 << (13 - 8);
/// Resets the CPUs (`RST_CPU`).
const RST_CPU: u8 = 1 << 2;

/// PM1 event and control blocks: status, enable and control, little-endian words with byte access.
#[derive(Default)]
pub(crate) struct PowerManagement {
    registers: [AtomicU8; REGISTERS],
}

const REGISTERS: usize = (POWER_CONTROL.end - POWER_EVENTS.start) as usize;
const ENABLE: usize = 2;
const CONTROL: usize = (POWER_CONTROL.start - POWER_EVENTS.start) as usize;

impl PowerManagement {
    fn control(&self) -> u16 {
        let [.., low, high] = &self.registers;
        u16::from_le_bytes([low, high].map(|byte| byte.load(Ordering::Relaxed)))
    }
}

impl BusHandler for PowerManagement {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        for (byte, register) in data.iter_mut().zip(self.registers.iter().skip(offset as usize)) {
            *byte = register.load(Ordering::Relaxed);
        }
        // ACPI mode is always on.
        if let Some(byte) = CONTROL.checked_sub(offset as usize).and_then(|at| data.get_mut(at)) {
            *byte |= SCI_EN;
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Flow {
        // No event ever occurs, so there is no status to clear.
        let registers = self.registers.iter().enumerate().skip(offset as usize);
        for ((_, register), byte) in registers.zip(data).filter(|((at, _), _)| *at >= ENABLE) {
            register.store(*byte, Ordering::Relaxed);
        }
        let slept = self.control();
        // Sleep enable takes effect when written, and reads as zero.
        let [.., high] = &self.registers;
        high.fetch_and(!SLP_EN, Ordering::Relaxed);
        if slept & (SLP_TYP | POWER_OFF) == POWER_OFF { Flow::PowerOff } else { Flow::Continue }
    }
}

/// A keyboard controller without a keyboard: always ready, without data.
pub(crate) struct KeyboardController;

impl BusHandler for KeyboardController {
    fn read(&self, _: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Flow {
        const COMMAND: u64 = (KEYBOARD_CONTROLLER.end - KEYBOARD_CONTROLLER.start - 1) as u64;
        if offset == COMMAND && data == [RESET_COMMAND] { Flow::Reset } else { Flow::Continue }
    }
}

/// Reset control.
#[derive(Default)]
pub(crate) struct ResetControl(AtomicU8);

impl BusHandler for ResetControl {
    fn read(&self, _: u64, data: &mut [u8]) {
        data.fill(self.0.load(Ordering::Relaxed));
    }

    fn write(&self, _: u64, data: &[u8]) -> Flow {
        let &[byte] = data else { return Flow::Continue };
        self.0.store(byte, Ordering::Relaxed);
        if byte & RST_CPU == 0 { Flow::Continue } else { Flow::Reset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(handler: &dyn BusHandler, offset: u64) -> u16 {
        let mut data = [0; 2];
        handler.read(offset, &mut data);
        u16::from_le_bytes(data)
    }

    #[test]
    fn only_soft_off_powers_off() {
        const SLEEP: u16 = 1 << 13;
        let power = PowerManagement::default();
        let control = |word: u16| power.write(4, &word.to_le_bytes());
        assert_eq!(control(1), Flow::Continue);
        assert_eq!(control(SLEEP | 1 << 10), Flow::Continue, "S1 is not offered");
        assert_eq!(read(&power, 4), 1 | 1 << 10, "ACPI mode, sleep enable reads as zero");
        assert_eq!(power.write(5, &[0x24]), Flow::Continue, "S1 by bytes");
        assert_eq!(power.write(2, &POWER_OFF.to_le_bytes()), Flow::Continue, "the enable register");
        assert_eq!(power.write(0, &POWER_OFF.to_le_bytes()), Flow::Continue, "the status register");
        assert_eq!((read(&power, 0), read(&power, 2)), (0, POWER_OFF));
        assert_eq!(control(POWER_OFF), Flow::PowerOff);
        assert_eq!(control(POWER_OFF | 1), Flow::PowerOff);
        assert_eq!(control(0), Flow::Continue, "sleep enable does not stay");
        assert_eq!(power.write(4, &[0]), Flow::Continue);
        assert_eq!(power.write(5, &[0x20]), Flow::PowerOff, "by bytes");
        let mut wide = [0; 8];
        power.read(4, &mut wide);
        assert_eq!(wide[2..], [0xff; 6], "beyond the registers");
    }

    #[test]
    fn a_reset_needs_its_value() {
        assert_eq!(KeyboardController.write(4, &[0xfe]), Flow::Reset);
        assert_eq!(KeyboardController.write(4, &[0xd1]), Flow::Continue);
        assert_eq!(KeyboardController.write(0, &[0xfe]), Flow::Continue);
        assert_eq!(read(&KeyboardController, 4), 0, "input buffer empty");
        let reset = ResetControl::default();
        assert_eq!(reset.write(0, &[2]), Flow::Continue);
        assert_eq!(read(&reset, 0) & 0xff, 2);
        assert_eq!(reset.write(0, &[6]), Flow::Reset);
    }
}
