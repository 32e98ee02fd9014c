//! IDE: task files, commands, and the bus master's tables.

use guest_driver::adapter::Adapter as _;
use guest_driver::ide::Options;
use guest_driver::loadgen::Rng;
use guest_driver::{Ide, Mode, Platform, Workload};
use guest_tests::{Harness, HarnessConfig, Machine};
use paradisk_devices::ide as device;

use super::{COMMAND, Hostile, PORTS_AND_BUS_MASTER, config_space, disk, value, withstands, write};
use crate::common::{JOB, ide_harness, run_clean};

#[test]
fn no_guest_can_break_the_function() {
    withstands::<Ide>();
}

impl Hostile for Ide {
    const STREAM: u32 = 2;
    const RECOVERY: usize = 20;
    /// Of the table of memory regions.
    type Places = u64;

    fn set_up(config: &HarnessConfig, seed: u32, _: &mut Rng) -> (Harness<Self>, Options) {
        let options = Options { dma: seed % 4 < 2, ..Default::default() };
        let mode = if seed % 8 < 4 { device::Mode::Native } else { device::Mode::Compatibility };
        (ide_harness(config, options, mode, &[disk(seed); 3]), options)
    }

    fn fill(harness: &mut Harness<Self>) {
        for mode in [Mode::Fill, Mode::Check] {
            run_clean(harness, &Workload { mode, span: 64 << 10, ..JOB });
        }
    }

    fn places(&self, machine: &mut Machine) -> u64 {
        machine.dma(0x1_0000, 4096).unwrap().address()
    }

    fn attack(&mut self, machine: &mut Machine, rng: &mut Rng, &table: &u64) {
        match rng.below(64) {
            0 => config_space(machine, rng, 256),
            1..20 => register(machine, rng),
            20..36 => regions(machine, rng, table),
            _ => command(machine, rng),
        }
    }

    fn recover(&mut self, machine: &mut Machine) {
        machine.config_write(COMMAND, PORTS_AND_BUS_MASTER);
        // The driver polls, and this machine calls the device only while the guest waits for an interrupt.
        let now = machine.now();
        machine.device().quiesce(now);
        let _ = self.reset(machine);
    }
}

/// A write to a register of an IDE function, or to none.
fn register(machine: &mut Machine, rng: &mut Rng) {
    let len = [1, 1, 2, 4][rng.below(4) as usize];
    let (bar, offset) = match rng.below(4) {
        0 => (rng.below(6) as u8, rng.below(20)),
        1 => (4, rng.below(16)),
        _ => (2 * rng.below(2) as u8, rng.below(8)),
    };
    machine.write(bar, offset, len, value(rng) as u32);
    machine.read(rng.below(6) as u8, rng.below(16), len);
}

/// A command with parameters that may make sense, and the bus master started before or after, or not at all.
fn command(machine: &mut Machine, rng: &mut Rng) {
    const CODES: [u8; 24] = [
        0xc8, 0xca, 0x25, 0x35, 0x20, 0x30, 0x24, 0x34, 0xc4, 0xc5, 0x29, 0x39, 0x40, 0x42, 0xe7, 0xea, 0x06,
        0xec, 0xef, 0xc6, 0xb0, 0x27, 0x90, 0xe0,
    ];
    let channel = rng.below(2) as u8;
    let direction = 8 * rng.below(2) as u32;
    let start = |machine: &mut Machine, rng: &mut Rng| {
        if rng.below(2) == 0 {
            machine.write(4, 8 * u64::from(channel), 1, direction);
            machine.write(4, 8 * u64::from(channel), 1, direction | 1);
        }
    };
    start(machine, rng);
    machine.write(2 * channel, 6, 1, 0xa0 | [0x40, 0x50, 0x00, 0x45][rng.below(4) as usize]);
    for offset in 1..6 {
        for _ in 0..1 + rng.below(2) {
            let small = if offset < 4 { rng.below(20) } else { rng.below(9) };
            let parameter = if rng.below(8) == 0 { value(rng) } else { small };
            machine.write(2 * channel, offset, 1, parameter as u32 & 0xff);
        }
    }
    let any = rng.next() as u8;
    machine.write(2 * channel, 7, 1, CODES.get(rng.below(26) as usize).copied().unwrap_or(any).into());
    start(machine, rng);
    for _ in 0..rng.below(40) {
        machine.read(2 * channel, 0, 4);
        machine.write(2 * channel, 0, 4, any.into());
    }
}

/// A table of the bus master with regions that may lie in memory, and what reads it.
fn regions(machine: &mut Machine, rng: &mut Rng, table: u64) {
    let entries = 1 + rng.below(8);
    for index in 0..entries {
        let address = if rng.below(8) == 0 { value(rng) } else { table + 0x1000 + rng.below(0x8000) };
        let last = u64::from(index + 1 == entries) << 63;
        write(machine, table + 8 * index, address & 0xffff_ffff | rng.below(0x8000) << 32 | last);
    }
    let pointer = if rng.below(8) == 0 { value(rng) } else { table };
    machine.write(4, 8 * rng.below(2) + 4, 4, pointer as u32);
}
