//! Reset and probe, in libata's order.

use super::ports::{Ports, channel_of, device_of};
use super::spec::*;
use super::{DRIVES, Drive, Ide, Options};
use crate::adapter::{Geometry, PAGE};
use crate::platform::Platform;
use crate::workload::Fault;

/// Configuration space: command.
const COMMAND: u16 = 0x04;
const IO_SPACE: u32 = 1;
const BUS_MASTER: u32 = 1 << 2;
const INTX_DISABLE: u32 = 1 << 10;
/// Signature of a disk after a reset: error, count, LBA low, mid and high.
const DISK: u64 = 0x01_01_01_00_00;

crate::steps! {
    /// The function was not found, or its channels are not in the same mode.
    Function = 1,
    /// Too little DMA memory, or it is not below 4 GiB.
    Memory = 2,
    /// A channel is not decoded.
    Decode = 3,
    /// A drive stays busy after a reset.
    Reset = 4,
    /// A drive that is there does not show a disk's signature.
    Signature = 5,
    /// IDENTIFY DEVICE failed, or what it says makes no sense.
    Identify = 6,
    /// A transfer mode was refused.
    Mode = 7,
}

impl Ide {
    /// Find the function and bring its drives up.
    pub fn start<P: Platform>(platform: &mut P, options: Options) -> Result<Self, Fault> {
        let class = platform.config_read(CLASS) >> 8;
        let found = platform.config_read(0) == u32::from(ID.1) << 16 | u32::from(ID.0);
        let control = match class & NATIVE {
            NATIVE => NATIVE_CONTROL,
            0 => 0,
            _ => return Err(failed(Step::Function)),
        };
        if !found || class >> 8 != IDE {
            return Err(failed(Step::Function));
        }
        let command = platform.config_read(COMMAND) & 0xffff & !INTX_DISABLE;
        platform.config_write(COMMAND, command | IO_SPACE | BUS_MASTER);
        // A table must not cross 64 KiB.
        let table = platform.dma(PAGE, PAGE).filter(|table| table.address() >> 32 == 0);
        let table = table.ok_or(failed(Step::Memory))?;
        let mut driver = Self {
            options,
            ports: Ports { control, ..Ports::default() },
            drives: [None; DRIVES],
            table,
            running: None,
            seen: None,
        };
        for channel in 0..2 {
            driver.probe(platform, channel)?;
        }
        Ok(driver)
    }

    /// Stop everything and come up again.
    pub(super) fn restart<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        (self.running, self.seen) = (None, None);
        for channel in 0..2 {
            self.ports.bm_write(platform, channel, BM_COMMAND, 1, 0);
            self.probe(platform, channel)?;
        }
        Ok(())
    }

    fn probe<P: Platform>(&mut self, platform: &mut P, channel: u8) -> Result<(), Fault> {
        if platform.config_read(IDETIM) >> (16 * channel) & DECODE == 0 {
            return Err(failed(Step::Decode));
        }
        let ports = &mut self.ports;
        ports.read(platform, channel, STATUS);
        ports.bm_write(platform, channel, BM_STATUS, 1, u32::from(BM_ERROR | BM_INTERRUPT));
        ports.control(platform, channel, CONTROL_IDLE);
        let targets = [0, 1].map(|drive| 2 * u32::from(channel) + drive);
        let there = targets.map(|target| self.is_there(platform, target));
        let ports = &mut self.ports;
        for value in [CONTROL_IDLE, CONTROL_IDLE | SRST, CONTROL_IDLE] {
            ports.control(platform, channel, value);
        }
        let status = ports.wait_ready(platform, channel).ok_or(failed(Step::Reset))?;
        if status == 0xff {
            return Ok(());
        }
        for (target, there) in targets.into_iter().zip(there) {
            self.drives[target as usize] = None;
            if there {
                self.ports.write(platform, channel, DEVICE, device_of(target));
                self.ports.wait_ready(platform, channel).ok_or(failed(Step::Reset))?;
                let mut signature = 0u64;
                for register in [ERROR, COUNT, LBA[0], LBA[1], LBA[2]] {
                    signature = signature << 8 | u64::from(self.ports.read(platform, channel, register));
                }
                if signature != DISK {
                    return Err(failed(Step::Signature));
                }
            }
        }
        for (target, _) in targets.into_iter().zip(there).filter(|(_, there)| *there).rev() {
            self.set_up(platform, target)?;
        }
        Ok(())
    }

    /// Registers hold what is written to them where there is a drive.
    fn is_there<P: Platform>(&mut self, platform: &mut P, target: u32) -> bool {
        let channel = channel_of(target);
        let ports = &mut self.ports;
        ports.write(platform, channel, DEVICE, device_of(target));
        for (count, low) in [(0x55, 0xaa), (0xaa, 0x55), (0x55, 0xaa)] {
            ports.write(platform, channel, COUNT, count);
            ports.write(platform, channel, LBA[0], low);
        }
        let count = ports.read(platform, channel, COUNT);
        (count, ports.read(platform, channel, LBA[0])) == (0x55, 0xaa)
    }

    fn set_up<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<(), Fault> {
        self.identify(platform, target).ok_or(failed(Step::Identify))?;
        let mode = if self.options.dma { ULTRA_2 } else { PIO_4 };
        let channel = channel_of(target);
        let ports = &mut self.ports;
        ports.control(platform, channel, CONTROL_IDLE | NIEN);
        ports.write(platform, channel, ERROR, TRANSFER_MODE);
        ports.write(platform, channel, COUNT, mode);
        ports.command(platform, channel, SET_FEATURES);
        let good = ports.wait_ready(platform, channel).is_some_and(|status| status & (ERR | DF | DRQ) == 0);
        ports.read(platform, channel, STATUS);
        ports.control(platform, channel, CONTROL_IDLE);
        if !good {
            return Err(failed(Step::Mode));
        }
        self.drives[target as usize] = self.identify(platform, target);
        self.drives[target as usize].map(|_| ()).ok_or(failed(Step::Identify))
    }

    /// IDENTIFY DEVICE, polled.
    pub(super) fn identify<P: Platform>(&mut self, platform: &mut P, target: u32) -> Option<Drive> {
        let channel = channel_of(target);
        let ports = &mut self.ports;
        ports.control(platform, channel, CONTROL_IDLE | NIEN);
        ports.write(platform, channel, DEVICE, device_of(target));
        ports.command(platform, channel, IDENTIFY);
        let status = ports.wait_ready(platform, channel)?;
        let mut words = [0u16; 256];
        if status & (DRQ | ERR) == DRQ {
            for pair in words.chunks_exact_mut(2) {
                let data = ports.data_read(platform, channel);
                (pair[0], pair[1]) = (data as u16, (data >> 16) as u16);
            }
        }
        // This read also clears the interrupt.
        let end = ports.read(platform, channel, STATUS);
        ports.control(platform, channel, CONTROL_IDLE);
        if status & (DRQ | ERR) != DRQ || end & (BSY | DRQ | ERR | DF) != 0 || end & DRDY == 0 {
            return None;
        }
        parse(&words)
    }
}

fn parse(words: &[u16; 256]) -> Option<Drive> {
    let wide = |at: usize, count: usize| {
        (0..count).fold(0, |value, index| value | u64::from(words[at + index]) << (16 * index))
    };
    let valid = |word: u16| word >> 14 == 1;
    // LBA, and no packet device.
    if words[0] & 0x8000 != 0 || words[49] & 0x200 == 0 {
        return None;
    }
    let large = valid(words[83]) && words[83] & 0x400 != 0;
    let blocks = if large { wide(100, 4) } else { wide(60, 2) };
    let long_sectors = valid(words[106]) && words[106] & 0x1000 != 0;
    let block_size = if long_sectors { 2 * wide(117, 2) as u32 } else { 512 };
    if blocks == 0 || !block_size.is_power_of_two() || block_size > PAGE as u32 {
        return None;
    }
    let multiple = if words[59] & 0x100 != 0 { u32::from(words[59] & 0xff) } else { 1 };
    let write_cache = words[85] & 0x20 != 0;
    Some(Drive { geometry: Geometry { blocks, block_size }, multiple: multiple.max(1), write_cache })
}
