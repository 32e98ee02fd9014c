//! BusLogic in the harness: data, recovery, what drivers read of the adapter, and a guest that writes anything anywhere.

mod common;

use common::{
    DiskSpec, JOB, buslogic_harness, churn, collect, every_block_size, fill_and_check, nothing_comes,
    run_clean, submit, warm_up,
};
use guest_driver::adapter::{Adapter, Buffer, Completion, Op, Request};
use guest_driver::buslogic::{Options, spec};
use guest_driver::loadgen::Rng;
use guest_driver::scsi::{Cdb, Sense};
use guest_driver::{BusLogic, Initiator, KickPolicy, Layout, Mode, Platform, Workload};
use guest_tests::rig::Rig;
use guest_tests::{Delivery, Harness, HarnessConfig, Machine};
use paradisk_devices::Sleep;
use vm_memory::{Bytes, GuestAddress};

const CAPACITY: u64 = 16 << 20;
const BLOCK: usize = 4096;
/// Host statuses of an abort, by its completion code and by its status; of a reset; of a target that is not there.
const ABORTED: u32 = 0x102 << 8;
const RESET: u32 = 0x25 << 8;
const NO_TARGET: u32 = 0x11 << 8;

fn make(options: Options, spec: DiskSpec) -> Harness<BusLogic> {
    buslogic_harness(&HarnessConfig::default(), options, &[spec])
}

#[test]
fn every_power_of_two_from_512_bytes_to_1_mib_on_every_disk() {
    for spec in DiskSpec::all(CAPACITY).into_iter().chain([DiskSpec::Ram4096(CAPACITY)]) {
        for layout in [Layout::Contiguous, Layout::Scattered] {
            for residual in [false, true] {
                let mut harness = make(Options { layout, residual, ..Options::default() }, spec);
                every_block_size(&mut harness, spec, CAPACITY);
            }
        }
    }
}

#[test]
fn churn_keeps_every_generation_however_requests_arrive() {
    for spec in DiskSpec::all(CAPACITY) {
        for delivery in [Delivery::AtWait, Delivery::After(5), Delivery::Immediate] {
            for kick in [KickPolicy::PerRequest, KickPolicy::PerBatch] {
                let config = HarnessConfig { delivery, ..Default::default() };
                let options = Options { kick, ..Options::default() };
                let mut harness = buslogic_harness(&config, options, &[spec]);
                churn(&mut harness, 4 << 20, 2000);
            }
        }
    }
}

#[test]
fn mailboxes_of_every_number_wrap() {
    for (mailboxes, most) in [(5, 4), (17, 16), (211, 192), (255, 192)] {
        let mut harness = make(Options { mailboxes, ..Options::default() }, DiskSpec::Ram(CAPACITY));
        let job = Workload { mode: Mode::Measure, queue_depth: 256, workers: 4, ios: 3000, ..JOB };
        let report = run_clean(&mut harness, &job).report;
        assert_eq!(report.in_flight, most, "{mailboxes}");
    }
}

#[test]
fn the_adapter_is_a_bt_958() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    let (_, driver) = harness.parts();
    let facts = driver.facts();
    assert_eq!((&facts.model, &facts.firmware), (b"958  ", b"507B"));
    assert_eq!((facts.sg_limit, facts.id, facts.targets, facts.disconnect), (8192, 7, 1, 0xffff));
}

#[test]
fn aborts_and_bus_resets_end_requests_once() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options::default(), spec);
        for bus in [false, true] {
            warm_up(&mut harness);
            let (machine, driver) = harness.parts();
            let buffers = machine.dma(8 * BLOCK, BLOCK).unwrap();
            submit(machine, driver, Op::Write, &buffers, 8);
            let now = machine.now();
            machine.device().on_completions(now);
            if bus {
                driver.reset_bus(machine);
            } else {
                assert!(driver.abort(machine, 5));
            }
            for (tag, Completion { status, .. }) in collect(machine, driver, 8) {
                let ended = if bus { status == RESET } else { status == ABORTED && tag == 5 };
                assert!(status == 0 || ended, "{spec:?} {bus} {tag}: {status:#x}");
            }
        }
        warm_up(&mut harness);
    }
}

#[test]
fn nothing_is_written_to_memory_after_a_reset() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options::default(), spec);
        for _ in 0..2 {
            warm_up(&mut harness);
            let (machine, driver) = harness.parts();
            let buffers = machine.dma(64 * BLOCK, BLOCK).unwrap();
            submit(machine, driver, Op::Read, &buffers, 64);
            let now = machine.now();
            machine.device().on_completions(now);
            driver.reset_adapter(machine).unwrap();
            nothing_comes(machine, driver, &buffers);
        }
        warm_up(&mut harness);
    }
}

#[test]
fn commands_of_other_kinds() {
    for residual in [false, true] {
        let mut harness = make(Options { residual, ..Options::default() }, DiskSpec::Ram(CAPACITY));
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        let memory = machine.dma(BLOCK, BLOCK).unwrap();
        let data = Buffer::contiguous(memory.address(), 512);
        let end = driver.execute(machine, 0, &Cdb::inquiry(512), &data, false).unwrap();
        assert_eq!(end.completion.status, 0);
        let moved = end.completion.transferred;
        assert!(if residual { (36..512).contains(&moved) } else { moved == 512 }, "{moved}");
        let end = driver.execute(machine, 0, &Cdb::new(&[0xff; 6]), &Buffer::NONE, false).unwrap();
        assert_eq!(driver.sense(&end), Some(Sense { key: 5, asc: 0x20, ascq: 0 }));
        let end = driver.execute(machine, 0, &Cdb::synchronize_cache(), &Buffer::NONE, false).unwrap();
        assert_eq!(end.completion.status, 0);
        // Nobody there; the adapter's own target.
        for target in [3, 7] {
            let end = driver.execute(machine, target, &Cdb::test_unit_ready(), &Buffer::NONE, false).unwrap();
            assert_eq!(end.completion.status, NO_TARGET, "target {target}");
        }
    }
}

#[test]
fn a_reset_of_the_machine_and_a_new_driver() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    for _ in 0..2 {
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        machine.reset();
        *driver = BusLogic::start(machine, Options::default()).unwrap();
    }
    // A driver that finds the adapter running resets it.
    let (machine, driver) = harness.parts();
    *driver = BusLogic::start(machine, Options::default()).unwrap();
    warm_up(&mut harness);
    let errors = harness.run(&Workload { mode: Mode::Check, generation: 99, ..JOB }).unwrap().report.errors;
    assert!(errors > 0, "a check of other data fails");
}

const MEMORY: usize = 16 << 20;
const STEPS: usize = 3000;

/// A number that is likely to matter: small, at a limit, an address, or any.
fn value(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => rng.below(300),
        1 => 1 << rng.below(64),
        2 => (1u64 << rng.below(64)).wrapping_sub(1),
        3 => rng.below(MEMORY as u64),
        4 => MEMORY as u64 - rng.below(64),
        _ => rng.next(),
    }
}

fn spoil(machine: &Machine, rng: &mut Rng, address: u64) {
    // Outside memory nothing is there to be written. Mostly something like what was there.
    let before = machine.memory().read_obj::<u64>(GuestAddress(address)).unwrap_or_default();
    let spoiled = if rng.below(2) == 0 { value(rng) } else { before ^ 1 << rng.below(64) };
    let _ = machine.memory().write_obj(spoiled, GuestAddress(address));
}

/// A register, a command or a part of one.
fn registers(machine: &mut Machine, rng: &mut Rng) {
    match rng.below(4) {
        0 => machine.write(1, rng.below(32), 1, value(rng) as u32 & 0x3f),
        1 => machine.write(1, rng.below(8) * 4, 4, value(rng) as u32),
        _ => {
            machine.write(1, spec::DATA, 1, rng.next() as u32 & 0xff);
            for _ in 0..rng.below(7) {
                machine.write(1, spec::DATA, 1, value(rng) as u32);
            }
            for _ in 0..rng.below(40) {
                machine.read(1, spec::DATA, 1);
            }
        }
    }
    machine.read(1, rng.below(32), 1);
}

#[test]
fn no_guest_can_break_the_device() {
    let (mut fetched, mut failed) = (0, 0);
    for seed in 0..8 {
        let rng = &mut Rng::new(seed, 2);
        let config = HarnessConfig { memory: MEMORY, ..Default::default() };
        let layout = if seed % 2 == 0 { Layout::Contiguous } else { Layout::Scattered };
        let options = Options { mailboxes: 8 << rng.below(5), layout, ..Options::default() };
        let disk =
            [DiskSpec::Ram(1 << 20), DiskSpec::Raw(1 << 20, Default::default())][seed as usize / 2 % 2];
        let mut harness = buslogic_harness(&config, options, &[disk]);
        for round in 0..4 {
            fill_and_check(&mut harness, &Workload { span: 256 << 10, ..JOB });
            let (machine, driver) = harness.parts();
            let data = machine.dma(BLOCK, BLOCK).unwrap();
            let (mailboxes, ccbs) = driver.addresses();
            let before = machine.device_stats();
            for step in 0..STEPS {
                match rng.below(64) {
                    0 => registers(machine, rng),
                    1 => machine.config_write((rng.below(64) * 4) as u16, value(rng) as u32),
                    2..40 => {
                        let op = [Op::Read, Op::Write, Op::Flush][rng.below(3) as usize];
                        let blocks = rng.below(9) as u32;
                        let data = Buffer::contiguous(data.address(), 512 * blocks);
                        let (tag, lba) = (rng.below(driver.slots().into()) as u32, rng.below(2052));
                        driver.submit(machine, &Request { tag, target: 0, op, lba, blocks, data });
                        while driver.poll(machine).is_some() {}
                    }
                    40..43 => {
                        driver.abort(machine, rng.below(driver.slots().into()) as u32);
                    }
                    43..45 => {
                        let place = rng.below(u64::from(options.mailboxes) * 2);
                        spoil(machine, rng, mailboxes + place * 8);
                    }
                    _ => {
                        let ccb = ccbs + rng.below(options.mailboxes.into()) * 64;
                        let place = ccb + rng.below(5) * 8;
                        spoil(machine, rng, place);
                    }
                }
                if rng.below(3) == 0 {
                    for _ in 0..4 {
                        let now = machine.now();
                        machine.device().on_completions(now);
                        if machine.device().before_sleep(now) != Sleep::No {
                            break;
                        }
                    }
                }
                // Most of the above needs mailboxes where they are spoiled, and registers that are decoded.
                if step % 20 == 19 {
                    machine.config_write(4, 2);
                    let _ = driver.reset_adapter(machine);
                }
            }
            let after = machine.device_stats();
            fetched += after.requests - before.requests;
            failed += after.errors - before.errors;
            machine.reset();
            *driver = BusLogic::start(machine, options).unwrap_or_else(|fault| {
                panic!("seed {seed}, round {round}: does not come up again: {fault:?}")
            });
        }
        run_clean(&mut harness, &JOB);
    }
    // The device really looked at what was thrown at it.
    assert!(fetched > 10_000 && failed > 1_000, "{fetched} requests fetched, {failed} failed");
}
