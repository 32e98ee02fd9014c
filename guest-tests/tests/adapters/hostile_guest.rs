//! A guest that writes anything anywhere: registers, configuration space, ring indices, descriptors, segment lists. The
//! device neither panics nor hangs, and works for a sane driver afterwards.

mod buslogic;
mod ide;
mod pvscsi;
mod virtio;

use guest_driver::adapter::{Adapter, Buffer, Op, Request};
use guest_driver::driver::Start;
use guest_driver::loadgen::Rng;
use guest_driver::{Layout, Platform, Workload};
use guest_tests::{Harness, HarnessConfig, Machine};
use paradisk_devices::Sleep;
use vm_memory::{Bytes, GuestAddress};

use crate::common::{DiskSpec, JOB, fill_and_check, ring, run_clean, service};

const MEMORY: usize = 16 << 20;
const STEPS: usize = 3000;
/// Command register of configuration space, and its values for a function with memory or with ports.
const COMMAND: u16 = 4;
const MEMORY_AND_BUS_MASTER: u32 = 6;
const PORTS_AND_BUS_MASTER: u32 = 5;

/// A driver that attacks its adapter.
trait Hostile: Start<Options: Copy> {
    /// Separates its random numbers from those of other drivers.
    const STREAM: u32;
    /// Steps between two recoveries: most attacks need rings where they are expected, and bus mastering.
    const RECOVERY: usize;
    /// Addresses of what is overwritten.
    type Places;

    /// An adapter with 1 MiB of disk.
    fn set_up(config: &HarnessConfig, seed: u32, rng: &mut Rng) -> (Harness<Self>, Self::Options);

    /// Leave requests in memory that make sense.
    fn fill(harness: &mut Harness<Self>) {
        fill_and_check(harness, &Workload { span: 256 << 10, ..JOB });
    }

    fn places(&self, machine: &mut Machine) -> Self::Places;

    fn attack(&mut self, machine: &mut Machine, rng: &mut Rng, places: &Self::Places);

    /// Bring the adapter back to where attacks reach far.
    fn recover(&mut self, machine: &mut Machine);
}

fn withstands<D: Hostile>() {
    let (mut fetched, mut failed) = (0, 0);
    for seed in 0..8 {
        let rng = &mut Rng::new(seed, D::STREAM);
        let config = HarnessConfig { memory: MEMORY, ..Default::default() };
        let (mut harness, options) = D::set_up(&config, seed, rng);
        for round in 0..4 {
            D::fill(&mut harness);
            let (machine, driver) = harness.parts();
            let places = driver.places(machine);
            let before = machine.device_stats();
            for step in 0..STEPS {
                driver.attack(machine, rng, &places);
                if rng.below(3) == 0 {
                    turn(machine, rng);
                }
                if step % D::RECOVERY == D::RECOVERY - 1 {
                    driver.recover(machine);
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
    // The attacks got through to the device.
    assert!(fetched > 10_000 && failed > 1_000, "{fetched} requests fetched, {failed} failed");
}

/// The I/O thread's turn, without sleeping.
fn turn(machine: &mut Machine, rng: &mut Rng) {
    ring(machine, rng.below(2) as usize);
    for _ in 0..4 {
        service(machine);
        let now = machine.now();
        if machine.device().before_sleep(now) != Sleep::No {
            return;
        }
    }
}

/// A disk in memory or in a file.
fn disk(seed: u32) -> DiskSpec {
    [DiskSpec::Ram(1 << 20), DiskSpec::Raw(1 << 20, Default::default())][seed as usize % 2]
}

fn layout(seed: u32) -> Layout {
    if seed.is_multiple_of(2) { Layout::Contiguous } else { Layout::Scattered }
}

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

/// A write to a register of configuration space below `end`.
fn config_space(machine: &mut Machine, rng: &mut Rng, end: u64) {
    machine.config_write((rng.below(end / 4) * 4) as u16, value(rng) as u32);
}

/// A request that makes sense, but for its tag, which may be in flight, and its blocks, which may not be there.
fn request(machine: &mut Machine, rng: &mut Rng, driver: &mut impl Adapter, data: u64) {
    let op = [Op::Read, Op::Write, Op::Flush][rng.below(3) as usize];
    let blocks = rng.below(9) as u32;
    let data = Buffer::contiguous(data, 512 * blocks);
    let (tag, lba) = (rng.below(driver.slots().into()) as u32, rng.below(2052));
    driver.submit(machine, &Request { tag, target: 0, op, lba, blocks, data });
    while driver.poll(machine).is_some() {}
}
