//! How a guest turns its machine off or resets it: ACPI fixed hardware (ACPI 6.5, section 4.8), reset control as Intel's chip
//! sets have it (ICH9 datasheet, section 13.7.5), and the keyboard controller's reset line.

use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use crate::bus::{BusHandler, Flow};
use crate::layout::{KEYBOARD_CONTROLLER, POWER_CONTROL, POWER_EVENTS, POWER_OFF, RESET_COMMAND};

/// ACPI mode is on, and always was (`SCI_EN`).
const SCI_EN: u16 = 1 << 0;
const SLP_TYP: u16 = 0b111 << 10;
const SLP_EN: u16 = 1 << 13;
/// Resets the CPUs (`RST_CPU`).
const RST_CPU: u8 = 1 << 2;

/// PM1 event and control blocks.
#[derive(Default)]
pub(crate) struct PowerManagement {
    enable: AtomicU16,
    control: AtomicU16,
}

impl BusHandler for PowerManagement {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let [enable, control] = [&self.enable, &self.control].map(|word| word.load(Ordering::Relaxed));
        let [enable, control] = [enable, control | SCI_EN].map(u16::to_le_bytes);
        // No event ever happens: the status word is zero.
        let registers = [0, 0, enable[0], enable[1], control[0], control[1]];
        let from = registers.iter().skip(offset as usize).chain(std::iter::repeat(&0xff));
        data.iter_mut().zip(from).for_each(|(byte, from)| *byte = *from);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Flow {
        const ENABLE: u64 = 2;
        const CONTROL: u64 = (POWER_CONTROL.start - POWER_EVENTS.start) as u64;
        let Ok(word) = data.try_into().map(u16::from_le_bytes) else { return Flow::Continue };
        match offset {
            ENABLE => self.enable.store(word, Ordering::Relaxed),
            CONTROL if word & (SLP_TYP | SLP_EN) == POWER_OFF => return Flow::PowerOff,
            // Sleep enable reads as zero.
            CONTROL => self.control.store(word & !SLP_EN, Ordering::Relaxed),
            _ => {}
        }
        Flow::Continue
    }
}

/// A keyboard controller without a keyboard: always ready, nothing to read.
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
        let power = PowerManagement::default();
        let control = |word: u16| power.write(4, &word.to_le_bytes());
        assert_eq!(control(1), Flow::Continue);
        assert_eq!(control(SLP_EN | 1 << 10), Flow::Continue, "S1 is not offered");
        assert_eq!(read(&power, 4), SCI_EN | 1 << 10);
        assert_eq!(power.write(4, &[0]), Flow::Continue, "half a register");
        assert_eq!(power.write(2, &POWER_OFF.to_le_bytes()), Flow::Continue, "the enable register");
        assert_eq!((read(&power, 0), read(&power, 2)), (0, POWER_OFF));
        assert_eq!(control(POWER_OFF), Flow::PowerOff);
        assert_eq!(control(POWER_OFF | SCI_EN), Flow::PowerOff);
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
