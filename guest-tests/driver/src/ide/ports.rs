//! Registers of the channels. In native mode, base address registers say where they are; in compatibility mode, the platform knows.

use super::spec::*;
use crate::adapter::Counters;
use crate::platform::Platform;

const BUS_MASTER: u8 = 4;

/// The registers, and how often they were touched.
#[derive(Debug, Default)]
pub(super) struct Ports {
    pub(super) counters: Counters,
    /// Offset of the control register in its block.
    pub(super) control: u64,
}

/// The channel of a target.
pub(super) const fn channel_of(target: u32) -> u8 {
    (target / 2) as u8
}

/// The device register of a target.
pub(super) const fn device_of(target: u32) -> u8 {
    DEVICE_ONES | if target % 2 == 1 { DEVICE_SLAVE } else { 0 }
}

impl Ports {
    pub(super) fn read<P: Platform>(&mut self, platform: &mut P, channel: u8, register: u64) -> u8 {
        self.counters.registers += 1;
        platform.read(2 * channel, register, 1) as u8
    }

    pub(super) fn write<P: Platform>(&mut self, platform: &mut P, channel: u8, register: u64, value: u8) {
        self.counters.registers += 1;
        platform.write(2 * channel, register, 1, value.into());
    }

    /// Start a command.
    pub(super) fn command<P: Platform>(&mut self, platform: &mut P, channel: u8, code: u8) {
        self.counters.doorbells += 1;
        platform.write(2 * channel, STATUS, 1, code.into());
    }

    pub(super) fn data_read<P: Platform>(&mut self, platform: &mut P, channel: u8) -> u32 {
        self.counters.registers += 1;
        platform.read32(2 * channel, DATA)
    }

    pub(super) fn data_write<P: Platform>(&mut self, platform: &mut P, channel: u8, value: u32) {
        self.counters.registers += 1;
        platform.write32(2 * channel, DATA, value);
    }

    pub(super) fn alternate_status<P: Platform>(&mut self, platform: &mut P, channel: u8) -> u8 {
        self.counters.registers += 1;
        platform.read(2 * channel + 1, self.control, 1) as u8
    }

    pub(super) fn control<P: Platform>(&mut self, platform: &mut P, channel: u8, value: u8) {
        self.counters.registers += 1;
        platform.write(2 * channel + 1, self.control, 1, value.into());
    }

    pub(super) fn bm_read<P: Platform>(&mut self, platform: &mut P, channel: u8, register: u64) -> u8 {
        self.counters.registers += 1;
        platform.read(BUS_MASTER, 8 * u64::from(channel) + register, 1) as u8
    }

    pub(super) fn bm_write<P: Platform>(
        &mut self,
        platform: &mut P,
        channel: u8,
        register: u64,
        len: usize,
        value: u32,
    ) {
        self.counters.registers += 1;
        platform.write(BUS_MASTER, 8 * u64::from(channel) + register, len, value);
    }

    /// Wait until the selected drive is not busy; its status, `None` where it stays busy.
    pub(super) fn wait_ready<P: Platform>(&mut self, platform: &mut P, channel: u8) -> Option<u8> {
        let start = platform.ticks();
        loop {
            let status = self.alternate_status(platform, channel);
            if status & BSY == 0 || status == 0xff {
                return Some(status);
            }
            if platform.ticks().wrapping_sub(start) > platform.timeout_ticks() {
                return None;
            }
            let seen = platform.interrupts();
            platform.wait_interrupt(seen);
        }
    }
}
