//! Adapters under KVM: their drivers in the bare-metal guest over each kind of disk. Without `/dev/kvm` each test says why it
//! is skipped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use facts::tsc::to_ticks;
use guest_driver::workload::Fault;
use guest_driver::{
    InterruptMode, KickPolicy, Layout, Mode, Workload, buslogic, driver, ide, lsi, pvscsi, virtio,
    vmbus as vmbus_driver,
};
use guest_tests::rig::{Measurement, Rig};
use guest_tests::{KvmConfig, KvmRig};
use paradisk_devices::buslogic::BusLogic;
use paradisk_devices::ide as ide_device;
use paradisk_devices::lsi::Lsi;
use paradisk_devices::pvscsi::{Config, Pvscsi};
use paradisk_devices::virtio::scsi::VirtioScsi;
use paradisk_devices::{Coalescing, Policy};
use paradisk_vmm::MsiDelivery;

use crate::common::{
    DiskSpec, JOB, blk, bus, buslogic_config, ide as ide_function, lsi_config, scsi_config, vmbus,
};
use crate::host::host;

fn rig(config: &KvmConfig, disks: &[DiskSpec]) -> Option<KvmRig> {
    rig_with(config, ide_device::Mode::Native, disks)
}

/// The same with the mode of an IDE function.
fn rig_with(config: &KvmConfig, ports: ide_device::Mode, disks: &[DiskSpec]) -> Option<KvmRig> {
    let host = host()?;
    if let driver::Options::Storvsc(_) = config.driver {
        return Some(
            KvmRig::start_vmbus(&host, config, |memory, synic| vmbus(memory, synic, disks)).unwrap(),
        );
    }
    let rig = KvmRig::start(&host, config, |memory, interrupts| {
        Ok(match config.driver {
            driver::Options::Pvscsi(_) => {
                Box::new(Pvscsi::new(memory, bus(disks), interrupts, Config::default())?)
            }
            driver::Options::Lsi(options) => {
                Box::new(Lsi::new(memory, bus(disks), interrupts, lsi_config(&options))?)
            }
            driver::Options::Ide(_) => ide_function(memory, interrupts, ports, disks)?,
            driver::Options::BusLogic(_) => {
                Box::new(BusLogic::new(memory, bus(disks), interrupts, buslogic_config())?)
            }
            driver::Options::VirtioBlk(options) => blk(memory, interrupts, &options, disks[0])?,
            driver::Options::VirtioScsi(options) => {
                Box::new(VirtioScsi::new(memory, bus(disks), interrupts, scsi_config(&options))?)
            }
            other => return Err(format!("{other:?}: no PCI function").into()),
        })
    });
    Some(rig.unwrap())
}

/// Repeat what may or may not have an effect on a busy host, until it has.
fn until(what: &str, mut has: impl FnMut() -> bool) {
    let start = Instant::now();
    while !has() {
        assert!(start.elapsed() < Duration::from_secs(600), "never: {what}");
    }
}

fn clean(rig: &mut KvmRig, workload: &Workload) -> Measurement {
    let done = rig.run(workload).unwrap();
    assert_eq!(
        done.report.errors, 0,
        "{workload:?}: {:?} interrupts {} seen {} doorbells {} rung {}",
        done.report.fault, done.interrupts, done.report.interrupts, done.doorbells, done.report.doorbells
    );
    done
}

/// Bytes of a disk.
const MEDIUM: u64 = 4 << 20;

const LSI: driver::Options = driver::Options::Lsi(lsi::Options {
    model: lsi::Model::Spi1030,
    interrupts: InterruptMode::Msi,
    layout: Layout::Contiguous,
    wide: true,
});

const VIRTIO_BLK: driver::Options = driver::Options::VirtioBlk(VIRTIO);

const VIRTIO_SCSI: driver::Options = driver::Options::VirtioScsi(VIRTIO);

const VIRTIO: virtio::Options = virtio::Options {
    queues: 1,
    queue_size: 1024,
    interrupts: InterruptMode::MsiX,
    kick: KickPolicy::PerRequest,
    event_index: true,
    indirect: true,
    layout: Layout::Contiguous,
};

#[test]
fn what_is_written_is_read_on_every_disk_at_every_block_size() {
    written_is_read(&KvmConfig::default(), &DiskSpec::all(MEDIUM));
}

#[test]
fn what_is_written_is_read_through_lsi() {
    written_is_read(&KvmConfig { driver: LSI, ..KvmConfig::default() }, &DiskSpec::all(MEDIUM)[..2]);
    let driver = driver::Options::Lsi(lsi::Options { model: lsi::Model::Sas1068, ..lsi::Options::default() });
    written_is_read(&KvmConfig { driver, ..KvmConfig::default() }, &DiskSpec::all(MEDIUM)[1..2]);
}

#[test]
fn what_is_written_is_read_through_ide() {
    // Each access to a register is an exit, and by the data port each dword of data.
    let by_dma = [(512, 32), (4096, 32), (65_536, 4), (1 << 20, 1)];
    for (dma, jobs) in [(true, &by_dma[..]), (false, &[(4096, 4)])] {
        let driver = driver::Options::Ide(ide::Options { dma, ..ide::Options::default() });
        let config = KvmConfig { driver, ..KvmConfig::default() };
        let modes = [ide_device::Mode::Native, ide_device::Mode::Compatibility];
        for (spec, ports) in DiskSpec::all(MEDIUM).into_iter().zip(modes.into_iter().cycle()) {
            let Some(mut rig) = rig_with(&config, ports, &[spec]) else { return };
            for &(block_size, blocks) in jobs {
                let job =
                    Workload { block_size, span: u64::from(block_size) * blocks, ios: 2 * blocks, ..JOB };
                for mode in [Mode::Fill, Mode::Check, Mode::Churn] {
                    clean(&mut rig, &Workload { mode, ..job });
                }
            }
        }
    }
}

#[test]
fn what_is_written_is_read_through_storvsc() {
    for (layout, disks) in [(Layout::Contiguous, 0..4), (Layout::Scattered, 1..2)] {
        let driver = driver::Options::Storvsc(vmbus_driver::Options { layout, ..Default::default() });
        written_is_read(&KvmConfig { driver, ..KvmConfig::default() }, &DiskSpec::all(MEDIUM)[disks]);
    }
}

#[test]
fn what_is_written_is_read_through_buslogic() {
    for (layout, disks) in [(Layout::Contiguous, 0..4), (Layout::Scattered, 1..2)] {
        let driver = driver::Options::BusLogic(buslogic::Options { layout, ..Default::default() });
        written_is_read(&KvmConfig { driver, ..KvmConfig::default() }, &DiskSpec::all(MEDIUM)[disks]);
    }
}

#[test]
fn what_is_written_is_read_through_virtio_blk() {
    written_is_read(&KvmConfig { driver: VIRTIO_BLK, ..KvmConfig::default() }, &DiskSpec::all(MEDIUM));
}

#[test]
fn what_is_written_is_read_through_virtio_scsi() {
    written_is_read(&KvmConfig { driver: VIRTIO_SCSI, ..KvmConfig::default() }, &DiskSpec::all(MEDIUM));
}

fn written_is_read(config: &KvmConfig, disks: &[DiskSpec]) {
    // For one adapter all sizes; what differs between two of them is the same code for all adapters.
    let step = if matches!(config.driver, driver::Options::Pvscsi(_)) { 1 } else { 3 };
    for &spec in disks {
        let Some(mut rig) = rig(config, &[spec]) else { return };
        for (generation, power) in (9..=20).step_by(step).enumerate() {
            let job = Workload { block_size: 1 << power, generation: generation as u64, ..JOB };
            let blocks = MEDIUM >> power;
            for mode in [Mode::Fill, Mode::Check] {
                let done = clean(&mut rig, &Workload { mode, ..job });
                assert_eq!(done.report.ios, blocks, "{spec:?} {mode:?} {}", job.block_size);
            }
            let churn = Workload { mode: Mode::Churn, ios: blocks.min(500), ..job };
            clean(&mut rig, &churn);
        }
    }
}

#[test]
fn every_interrupt_mode_and_layout() {
    for interrupts in [InterruptMode::MsiX, InterruptMode::Msi, InterruptMode::Intx] {
        for (layout, msi) in
            [(Layout::Contiguous, MsiDelivery::Ioctl), (Layout::Scattered, MsiDelivery::Irqfd)]
        {
            let driver =
                driver::Options::Pvscsi(pvscsi::Options { interrupts, layout, ..Default::default() });
            let config = KvmConfig { driver, msi, ..KvmConfig::default() };
            let Some(mut rig) = rig(&config, &[DiskSpec::Ram(8 << 20)]) else { return };
            clean(&mut rig, &Workload { mode: Mode::Fill, ..JOB });
            let done = clean(&mut rig, &Workload { mode: Mode::Check, ..JOB });
            assert_eq!(done.report.ios, 2048, "{interrupts:?}");
            assert!(done.report.interrupts > 0 && done.interrupts > 0, "{interrupts:?} {done:?}");
        }
    }
}

#[test]
fn every_interrupt_mode_and_layout_of_lsi() {
    for (interrupts, layout, wide) in [
        (InterruptMode::Msi, Layout::Scattered, true),
        (InterruptMode::Intx, Layout::Contiguous, false),
        (InterruptMode::Intx, Layout::Scattered, false),
    ] {
        let driver = driver::Options::Lsi(lsi::Options { interrupts, layout, wide, ..Default::default() });
        let config = KvmConfig { driver, ..KvmConfig::default() };
        let Some(mut rig) = rig(&config, &[DiskSpec::Ram(8 << 20)]) else { return };
        for mode in [Mode::Fill, Mode::Check] {
            let done = clean(&mut rig, &Workload { mode, ..JOB });
            assert!(done.report.interrupts > 0 && done.interrupts > 0, "{interrupts:?} {done:?}");
        }
        clean(&mut rig, &Workload { mode: Mode::Churn, ios: 5000, ..JOB });
    }
}

#[test]
fn every_interrupt_mode_and_ring_of_virtio() {
    for (interrupts, event_index, indirect, queues, layout, msi) in [
        (InterruptMode::MsiX, true, false, 4, Layout::Contiguous, MsiDelivery::Irqfd),
        (InterruptMode::MsiX, false, true, 3, Layout::Scattered, MsiDelivery::Ioctl),
        (InterruptMode::Intx, true, true, 2, Layout::Scattered, MsiDelivery::Ioctl),
        (InterruptMode::Intx, false, true, 1, Layout::Contiguous, MsiDelivery::Ioctl),
    ] {
        let options =
            virtio::Options { queues, interrupts, event_index, indirect, layout, ..Default::default() };
        for driver in [driver::Options::VirtioBlk(options), driver::Options::VirtioScsi(options)] {
            let config = KvmConfig { driver, msi, ..KvmConfig::default() };
            let Some(mut rig) = rig(&config, &[DiskSpec::Ram(8 << 20)]) else { return };
            for mode in [Mode::Fill, Mode::Check] {
                let done = clean(&mut rig, &Workload { mode, ..JOB });
                assert!(done.report.interrupts > 0 && done.interrupts > 0, "{driver:?} {done:?}");
            }
            clean(&mut rig, &Workload { mode: Mode::Churn, ios: 5000, ..JOB });
        }
    }
}

#[test]
fn a_fault_is_reported_and_the_next_job_runs() {
    let Some(mut rig) = rig(&KvmConfig::default(), &[DiskSpec::Ram(1 << 20)]) else { return };
    let done = rig.run(&Workload { target: 9, ..JOB }).unwrap();
    assert_ne!(done.report.fault.kind, Fault::NONE);
    let done = rig.run(&Workload { mode: Mode::Check, ..JOB }).unwrap();
    assert!(done.report.errors > 0, "nothing was written yet");
    clean(&mut rig, &JOB);
    clean(&mut rig, &Workload { mode: Mode::Check, ..JOB });
}

#[test]
fn a_measurement_adds_up() {
    let Some(mut rig) = rig(&KvmConfig::default(), &[DiskSpec::Null(1 << 30)]) else { return };
    let ios = 5000;
    let done = clean(&mut rig, &Workload { mode: Mode::Measure, read_percent: 100, ios, ..JOB });
    let (cpu, report) = (done.cpu, &done.report);
    assert!(cpu.total > 0 && cpu.guest + cpu.exit + cpu.device + cpu.kernel == cpu.total, "{cpu:?}");
    assert_eq!((report.ios, report.bytes), (ios, ios * u64::from(JOB.block_size)));
    assert_eq!((report.latency.count, report.latency.counts.iter().sum()), (ios, ios));
    // A doorbell and a signal tell of one request at least.
    assert!((1..=ios).contains(&done.doorbells) && (1..=ios).contains(&done.interrupts), "{done:?}");
    assert!(done.doorbells <= report.doorbells && report.doorbells <= done.exits, "{done:?}");
}

/// Neither more doorbells nor more interrupts than I/Os. How much fewer there are depends on the host: the adapters' own tests have a clock.
#[test]
fn doorbells_and_interrupts_are_no_more_than_requests() {
    for (spec, driver) in [DiskSpec::Null(1 << 30), DiskSpec::Ram(16 << 20)]
        .into_iter()
        .flat_map(|spec| [driver::Options::default(), VIRTIO_BLK, VIRTIO_SCSI].map(|driver| (spec, driver)))
    {
        let Some(mut rig) = rig(&KvmConfig { driver, ..KvmConfig::default() }, &[spec]) else { return };
        let ios = 5000;
        let done = clean(&mut rig, &Workload { mode: Mode::Measure, read_percent: 100, ios, ..JOB });
        eprintln!("{ios} I/Os, {} doorbells, {} interrupts", done.report.doorbells, done.interrupts);
        assert!((1..=ios).contains(&done.report.doorbells), "{spec:?} {driver:?}: {done:?}");
        assert!((1..=ios).contains(&done.interrupts), "{spec:?} {driver:?}: {done:?}");
    }
}

/// Requests put in just as the I/O thread falls asleep, many times.
#[test]
fn no_wake_up_is_lost() {
    for (interrupts, queue_depth) in
        [(InterruptMode::MsiX, 3), (InterruptMode::MsiX, 9), (InterruptMode::Intx, 3)]
    {
        let driver = driver::Options::Pvscsi(pvscsi::Options { interrupts, ..Default::default() });
        fall_asleep(&KvmConfig { driver, ..KvmConfig::default() }, queue_depth);
    }
    for (interrupts, event_index, queues, queue_depth) in [
        (InterruptMode::MsiX, true, 1, 1),
        (InterruptMode::MsiX, true, 1, 3),
        (InterruptMode::MsiX, false, 1, 3),
        (InterruptMode::MsiX, true, 4, 9),
        (InterruptMode::Intx, true, 2, 3),
    ] {
        let options = virtio::Options { queues, interrupts, event_index, ..Default::default() };
        for driver in [driver::Options::VirtioBlk(options), driver::Options::VirtioScsi(options)] {
            fall_asleep(&KvmConfig { driver, ..KvmConfig::default() }, queue_depth);
        }
    }
    for queue_depth in [1, 3, 9] {
        fall_asleep(&KvmConfig { driver: LSI, ..KvmConfig::default() }, queue_depth);
    }
}

fn fall_asleep(config: &KvmConfig, queue_depth: u32) {
    if let Some(mut rig) = rig(config, &[DiskSpec::Ram(MEDIUM)]) {
        let job = Workload { mode: Mode::Measure, block_size: 512, queue_depth, ios: 6_000, ..JOB };
        assert_eq!(clean(&mut rig, &job).report.ios, 6_000);
    }
}

/// Policies change several times a millisecond while blocks are written, read and checked.
#[test]
fn coalescing_changes_while_the_guest_runs() {
    for driver in [driver::Options::default(), LSI, VIRTIO_BLK, VIRTIO_SCSI] {
        let Some(mut rig) = rig(&KvmConfig { driver, ..KvmConfig::default() }, &[DiskSpec::Ram(4 << 20)])
        else {
            return;
        };
        let device = rig.device();
        let mailbox = rig.machine().device(device).unwrap().clone();
        let (done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let changer = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for policy in [Policy::OioIops, Policy::Off, Policy::Oio, Policy::Batch] {
                        let options = Coalescing {
                            epoch: Duration::from_micros(100),
                            cif_threshold: 1 + (changes.load(Ordering::Relaxed) % 5) as u32,
                            ..Coalescing::policy(policy)
                        };
                        mailbox.call(move |device, _| device.set_coalescing(options)).unwrap();
                        changes.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let jobs = std::panic::AssertUnwindSafe(|| {
                until("policies change", || {
                    for queue_depth in [1, 5, 32, 200] {
                        clean(&mut rig, &Workload { mode: Mode::Fill, ..JOB });
                        clean(&mut rig, &Workload { mode: Mode::Churn, queue_depth, ios: 3000, ..JOB });
                    }
                    changes.load(Ordering::Relaxed) > 100
                });
            });
            // A job that fails must not leave the changer running.
            let outcome = std::panic::catch_unwind(jobs);
            done.store(true, Ordering::Relaxed);
            changer.join().unwrap();
            assert!(outcome.is_ok(), "see above");
        });
    }
}

/// `cargo test --release -p paradisk-guest-tests --test adapters costs -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn costs() {
    let ms = Duration::from_millis;
    for spec in
        [DiskSpec::Null(1 << 30), DiskSpec::Ram(64 << 20), DiskSpec::Raw(64 << 20, Default::default())]
    {
        for (name, msi, halt_poll, poll) in [
            ("ioctl", MsiDelivery::Ioctl, Some(ms(0)), 0),
            ("irqfd", MsiDelivery::Irqfd, Some(ms(0)), 0),
            ("host's halt poll", MsiDelivery::Ioctl, None, 0),
            ("poll 20 us", MsiDelivery::Ioctl, Some(ms(0)), 20),
            ("poll 50 us", MsiDelivery::Ioctl, Some(ms(0)), 50),
            ("poll 100 us", MsiDelivery::Ioctl, Some(ms(0)), 100),
            ("poll 50 us, host's halt poll", MsiDelivery::Ioctl, None, 50),
        ] {
            let poll = Duration::from_micros(poll);
            let config = KvmConfig { msi, halt_poll, poll, ..KvmConfig::default() };
            let Some(mut rig) = rig(&config, &[spec]) else { return };
            let job = Workload { mode: Mode::Measure, read_percent: 100, ticks: to_ticks(ms(1000)), ..JOB };
            clean(&mut rig, &job);
            let wakeups = rig.wakeups();
            let done = clean(&mut rig, &job);
            let each = |count: u64| count as f64 / done.report.ios as f64;
            eprintln!(
                "{spec:?} {name}: {} IOPS; cycles total {:.0} guest {:.0} exit {:.0} device {:.0} kernel {:.0}; \
                 interrupts {:.3} exits {:.3} doorbells {:.3} (guest rang {:.3}) wakeups {:.3}",
                done.report.ios as f64 / done.wall.as_secs_f64(),
                each(done.cpu.total),
                each(done.cpu.guest),
                each(done.cpu.exit),
                each(done.cpu.device),
                each(done.cpu.kernel),
                each(done.interrupts),
                each(done.exits),
                each(done.doorbells),
                each(done.report.doorbells),
                each(rig.wakeups() - wakeups),
            );
        }
    }
}
