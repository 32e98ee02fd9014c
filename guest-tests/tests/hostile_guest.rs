//! A guest that writes anything anywhere: registers, configuration space, ring indices, descriptors, segment lists. The
//! device neither panics nor hangs, and works for a sane driver afterwards.

mod common;

use common::{DiskSpec, JOB, blk_harness, fill_and_check, harness, ide_harness, run_clean, scsi_harness};
use guest_driver::adapter::{Adapter, Buffer, Op, Request};
use guest_driver::driver::Start;
use guest_driver::loadgen::Rng;
use guest_driver::pvscsi::spec;
use guest_driver::virtio::queue::Virtqueue;
use guest_driver::{
    Ide, Layout, Mode, Platform, Pvscsi, VirtioBlk, VirtioScsi, Workload, ide, pvscsi, virtio,
};
use guest_tests::{Harness, HarnessConfig, Machine};
use paradisk_devices::Sleep;
use vm_memory::{Bytes, GuestAddress};

const MEMORY: usize = 16 << 20;
const STEPS: usize = 3000;
/// Command register of configuration space.
const COMMAND: u16 = 4;
const MEMORY_AND_BUS_MASTER: u32 = 6;

/// A number that is likely to matter: small, at a limit, an address, or any.
fn value(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => rng.below(4),
        1 => rng.below(300),
        2 => 1 << rng.below(64),
        3 => (1u64 << rng.below(64)).wrapping_sub(1),
        4 => rng.below(MEMORY as u64),
        5 => rng.below(MEMORY as u64) & !0xfff,
        6 => MEMORY as u64 - rng.below(64),
        _ => rng.next(),
    }
}

fn write(machine: &Machine, address: u64, value: u64) {
    // Outside memory nothing is there to be written.
    let _ = machine.memory().write_obj(value, GuestAddress(address));
}

/// A register write that the device knows, or any.
fn register(machine: &mut Machine, rng: &mut Rng) {
    const REGISTERS: [u64; 8] = [
        spec::COMMAND,
        spec::COMMAND_DATA,
        spec::COMMAND_DATA,
        spec::INTR_STATUS,
        spec::INTR_MASK,
        spec::KICK_NON_RW_IO,
        spec::KICK_RW_IO,
        0x6000,
    ];
    let any = rng.below(0x8000) & !3;
    let offset = REGISTERS.get(rng.below(12) as usize).copied().unwrap_or(any);
    let value = if offset == spec::COMMAND { rng.below(12) } else { value(rng) } as u32;
    machine.write32(0, offset, value);
    machine.read32(0, any);
}

/// A whole command with a descriptor of any content.
fn command(machine: &mut Machine, rng: &mut Rng) {
    machine.write32(0, spec::COMMAND, rng.below(12) as u32);
    for _ in 0..rng.below(140) {
        // Page numbers mostly inside memory.
        let dword = if rng.below(2) == 0 { rng.below(MEMORY as u64 >> 12) as u32 } else { value(rng) as u32 };
        machine.write32(0, spec::COMMAND_DATA, if rng.below(3) == 0 { 0 } else { dword });
    }
}

/// Spoil what the device reads next: the state page's indices and the entries of the request ring.
fn rings(machine: &Machine, rng: &mut Rng, state: u64, requests: u64) {
    for _ in 0..rng.below(4) {
        let entry = requests + rng.below(64) * spec::REQUEST_SIZE as u64;
        let spoiled = rng.below(16) * 8;
        write(machine, entry + spoiled, value(rng));
        if rng.below(4) == 0 {
            const OPERATION_CODES: [u64; 16] = [
                0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x1a, 0x28, 0x2a, 0x41, 0x42, 0x5e, 0x88, 0x89, 0x93,
                0xa0,
            ];
            let code = OPERATION_CODES[rng.below(16) as usize];
            write(machine, entry + spec::REQ_CDB as u64, code | value(rng) << 16);
            write(machine, entry + spec::REQ_CDB_LEN_LUN as u64, rng.below(20));
            let len = rng.next() >> (40 + rng.below(24));
            write(machine, entry + spec::REQ_DATA_LEN as u64, len);
        }
    }
    if rng.below(2) == 0 {
        let _ = machine.memory().read_obj::<u32>(GuestAddress(state)).map(|producer| {
            let next = producer.wrapping_add(rng.below(40) as u32);
            let _ = machine.memory().write_obj(next, GuestAddress(state));
        });
    } else if rng.below(8) == 0 {
        let field = [
            spec::REQ_PROD_IDX,
            spec::REQ_CONS_IDX,
            spec::CMP_PROD_IDX,
            spec::CMP_CONS_IDX,
            spec::MSG_CONS_IDX,
        ];
        let at = state + field[rng.below(5) as usize] as u64;
        let _ = machine.memory().write_obj(value(rng) as u32, GuestAddress(at));
    }
}

/// The I/O thread's turn, without sleeping.
fn turn(machine: &mut Machine, rng: &mut Rng) {
    let now = machine.now();
    machine.device().on_doorbell(rng.below(2) as usize, now);
    for _ in 0..4 {
        let now = machine.now();
        machine.device().on_completions(now);
        if machine.device().before_sleep(now) != Sleep::No {
            return;
        }
    }
}

#[test]
fn no_guest_can_break_the_device() {
    let (mut fetched, mut failed) = (0, 0);
    for seed in 0..8 {
        let rng = &mut Rng::new(seed, 0);
        let config = HarnessConfig { memory: MEMORY, ..Default::default() };
        let layout = if seed % 2 == 0 { Layout::Contiguous } else { Layout::Scattered };
        let options = pvscsi::Options { ring_pages: 1 << rng.below(3), layout, ..Default::default() };
        let mut harness = harness(&config, options, &[DiskSpec::Ram(1 << 20)]);
        for round in 0..4 {
            // Rings full of requests that made sense once.
            fill_and_check(&mut harness, &Workload { span: 256 << 10, ..JOB });
            let (machine, driver) = harness.parts();
            let (state, requests) = driver.ring_addresses();
            let before = machine.device_stats();
            for step in 0..STEPS {
                match rng.below(64) {
                    0 => command(machine, rng),
                    1 => machine.config_write((rng.below(1024) * 4) as u16, value(rng) as u32),
                    2..10 => register(machine, rng),
                    _ => rings(machine, rng, state, requests),
                }
                if rng.below(3) == 0 {
                    turn(machine, rng);
                }
                // Most of the above needs rings where they are spoiled, and bus mastering.
                if step % 100 == 99 {
                    machine.config_write(COMMAND, MEMORY_AND_BUS_MASTER);
                    let _ = driver.reset_adapter(machine);
                }
            }
            let after = machine.device_stats();
            fetched += after.requests - before.requests;
            failed += after.errors - before.errors;
            machine.reset();
            *driver = Pvscsi::start(machine, options).unwrap_or_else(|fault| {
                panic!("seed {seed}, round {round}: does not come up again: {fault:?}")
            });
        }
        run_clean(&mut harness, &JOB);
    }
    // The device really looked at what was thrown at it.
    assert!(fetched > 10_000 && failed > 1_000, "{fetched} requests fetched, {failed} failed");
}

/// Spoil what a virtio device reads next: descriptors, their tables and headers (which lie behind each other in this
/// guest's memory), and the rings' indices.
fn virtio_rings(machine: &Machine, rng: &mut Rng, [descriptors, driver, _]: [u64; 3], size: u64) {
    for _ in 0..rng.below(4) {
        let at = match rng.below(4) {
            0 => descriptors + rng.below(2 * size) * 8,
            1 => (driver + rng.below(4 + 2 * size)) & !7,
            // Tables, headers and data.
            _ => (driver + rng.below(0x8000)) & !7,
        };
        // Mostly something like what was there.
        let before = machine.memory().read_obj::<u64>(GuestAddress(at)).unwrap_or_default();
        let spoiled = match rng.below(4) {
            0 => value(rng),
            1 => before ^ 1 << rng.below(64),
            2 => before & !0xffff_ffff | rng.below(0x4000),
            _ => before & 0xffff_ffff | (rng.below(8) | rng.below(size) << 16) << 32,
        };
        write(machine, at, spoiled);
    }
    if rng.below(100) == 0 {
        let index = GuestAddress(driver + virtio::spec::AVAIL_INDEX as u64);
        let _ = machine.memory().write_obj(value(rng) as u16, index);
    }
}

/// What the driver of any virtio device can do.
trait VirtioDriver: Start<Options = virtio::Options> {
    /// A ring of the device.
    fn ring(&self, rng: &mut Rng) -> &Virtqueue;
    /// What is no request for data.
    fn other(&mut self, _machine: &mut Machine, _rng: &mut Rng) {}
}

impl VirtioDriver for VirtioBlk {
    fn ring(&self, rng: &mut Rng) -> &Virtqueue {
        self.queues().ring(rng.below(2) as usize).unwrap()
    }
}

impl VirtioDriver for VirtioScsi {
    fn ring(&self, rng: &mut Rng) -> &Virtqueue {
        let (control, events, requests) = self.rings();
        match rng.below(6) {
            0 => control,
            1 => events,
            n => requests.ring((n % 2) as usize).unwrap(),
        }
    }
    fn other(&mut self, machine: &mut Machine, rng: &mut Rng) {
        let (function, target) = (rng.below(9) as u32, (rng.below(8) / 7) as u32);
        let tag = rng.below(self.slots().into()) as u32;
        self.ask(machine, function, target, tag);
        while self.take_event(machine).is_some() {}
    }
}

/// A request that makes sense, but for its tag, which may be in flight, and its blocks, which may not be there.
fn virtio_request(machine: &mut Machine, rng: &mut Rng, driver: &mut impl VirtioDriver, data: u64) {
    let op = [Op::Read, Op::Write, Op::Flush][rng.below(3) as usize];
    let blocks = rng.below(9) as u32;
    let data = Buffer::contiguous(data, 512 * blocks);
    let (tag, lba) = (rng.below(driver.slots().into()) as u32, rng.below(2052));
    driver.submit(machine, &Request { tag, target: 0, op, lba, blocks, data });
    while driver.poll(machine).is_some() {}
}

/// A register of a virtio device's common configuration, a doorbell, or any.
fn virtio_register(machine: &mut Machine, rng: &mut Rng) {
    let len = [1, 2, 4][rng.below(3) as usize];
    let offset = match rng.below(4) {
        0 => rng.below(0x40),
        1 => 0x3000 + 4 * rng.below(4),
        _ => rng.below(0x8000),
    } & !(len as u64 - 1);
    machine.write(0, offset, len, value(rng) as u32);
    machine.read(0, rng.below(0x8000) & !3, len);
}

#[test]
fn no_guest_can_break_the_virtio_block_device() {
    hold_against_guests(blk_harness);
}

#[test]
fn no_guest_can_break_the_virtio_scsi_host() {
    hold_against_guests(|config, options, disk| scsi_harness(config, options, &[disk]));
}

fn hold_against_guests<D: VirtioDriver>(
    make: impl Fn(&HarnessConfig, virtio::Options, DiskSpec) -> Harness<D>,
) {
    let (mut fetched, mut failed) = (0, 0);
    for seed in 0..8 {
        let rng = &mut Rng::new(seed, 1);
        let config = HarnessConfig { memory: MEMORY, ..Default::default() };
        let options = virtio::Options {
            queues: 2,
            queue_size: 32,
            indirect: seed % 2 == 0,
            event_index: seed % 4 < 2,
            ..Default::default()
        };
        let disk = [DiskSpec::Ram(1 << 20), DiskSpec::Raw(1 << 20, Default::default())][seed as usize % 2];
        let mut harness = make(&config, options, disk);
        for round in 0..4 {
            fill_and_check(&mut harness, &Workload { span: 256 << 10, ..JOB });
            let (machine, driver) = harness.parts();
            let data = machine.dma(4096, 4096).unwrap();
            let before = machine.device_stats();
            for step in 0..STEPS {
                match rng.below(64) {
                    2..48 => virtio_request(machine, rng, driver, data.address()),
                    48..50 => driver.other(machine, rng),
                    0 => machine.config_write((rng.below(64) * 4) as u16, value(rng) as u32),
                    1 => virtio_register(machine, rng),
                    _ => {
                        let ring = driver.ring(rng);
                        virtio_rings(machine, rng, ring.addresses(), ring.shape().size.into());
                    }
                }
                if rng.below(3) == 0 {
                    turn(machine, rng);
                }
                // Most of the above needs a device that has not given up on its guest, and bus mastering.
                if step % 20 == 19 {
                    machine.config_write(COMMAND, MEMORY_AND_BUS_MASTER);
                    let _ = driver.reset(machine);
                }
            }
            let after = machine.device_stats();
            fetched += after.requests - before.requests;
            failed += after.errors - before.errors;
            machine.reset();
            *driver = D::start(machine, options).unwrap_or_else(|fault| {
                panic!("seed {seed}, round {round}: does not come up again: {fault:?}")
            });
        }
        run_clean(&mut harness, &JOB);
    }
    // The device really looked at what was thrown at it.
    assert!(fetched > 10_000 && failed > 1_000, "{fetched} requests fetched, {failed} failed");
}

/// Command register of configuration space, for a function with ports.
const PORTS_AND_BUS_MASTER: u32 = 5;

/// A write to a register of an IDE function, or to none.
fn ide_register(machine: &mut Machine, rng: &mut Rng) {
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
fn ide_command(machine: &mut Machine, rng: &mut Rng) {
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
fn ide_table(machine: &mut Machine, rng: &mut Rng, table: u64) {
    let entries = 1 + rng.below(8);
    for index in 0..entries {
        let address = if rng.below(8) == 0 { value(rng) } else { table + 0x1000 + rng.below(0x8000) };
        let last = u64::from(index + 1 == entries) << 63;
        write(machine, table + 8 * index, address & 0xffff_ffff | rng.below(0x8000) << 32 | last);
    }
    let pointer = if rng.below(8) == 0 { value(rng) } else { table };
    machine.write(4, 8 * rng.below(2) + 4, 4, pointer as u32);
}

#[test]
fn no_guest_can_break_the_ide_function() {
    let (mut fetched, mut failed) = (0, 0);
    for seed in 0..8 {
        let rng = &mut Rng::new(seed, 2);
        let config = HarnessConfig { memory: MEMORY, ..Default::default() };
        let options = ide::Options { dma: seed % 4 < 2, ..Default::default() };
        let disk = [DiskSpec::Ram(1 << 20), DiskSpec::Raw(1 << 20, Default::default())][seed as usize % 2];
        let mut harness = ide_harness(&config, options, &[disk; 3]);
        for round in 0..4 {
            for mode in [Mode::Fill, Mode::Check] {
                run_clean(&mut harness, &Workload { mode, span: 64 << 10, ..JOB });
            }
            let (machine, driver) = harness.parts();
            let table = machine.dma(0x1_0000, 4096).unwrap().address();
            let before = machine.device_stats();
            for step in 0..STEPS {
                match rng.below(64) {
                    0 => machine.config_write((rng.below(64) * 4) as u16, value(rng) as u32),
                    1..20 => ide_register(machine, rng),
                    20..36 => ide_table(machine, rng, table),
                    _ => ide_command(machine, rng),
                }
                if rng.below(3) == 0 {
                    turn(machine, rng);
                }
                // Most of the above needs drives that wait for nothing, and bus mastering.
                if step % 20 == 19 {
                    machine.config_write(COMMAND, PORTS_AND_BUS_MASTER);
                    // The driver polls, and this machine calls the device only while the guest waits for an interrupt.
                    let now = machine.now();
                    machine.device().quiesce(now);
                    let _ = driver.reset(machine);
                }
            }
            let after = machine.device_stats();
            fetched += after.requests - before.requests;
            failed += after.errors - before.errors;
            machine.reset();
            *driver = Ide::start(machine, options).unwrap_or_else(|fault| {
                panic!("seed {seed}, round {round}: does not come up again: {fault:?}")
            });
        }
        run_clean(&mut harness, &JOB);
    }
    // The device really looked at what was thrown at it.
    assert!(fetched > 10_000 && failed > 1_000, "{fetched} requests fetched, {failed} failed");
}
