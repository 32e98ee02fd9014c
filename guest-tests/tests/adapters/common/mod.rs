//! Harnesses over each kind of disk.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod any_adapter;
pub(crate) mod hot_plug;
pub(crate) mod owned;
pub(crate) mod virtio_resets;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_driver::adapter::{Adapter, Buffer, Completion, Op, Request};
use guest_driver::driver::Start;
use guest_driver::{
    DmaRegion, Ide, InterruptMode, KickPolicy, Mode, Platform, VirtioBlk, VirtioScsi, Workload, buslogic,
    ide, lsi, pvscsi, virtio,
};
use guest_tests::rig::{Measurement, Rig};
use guest_tests::{Delivery, Harness, HarnessConfig, Machine};
use paradisk_devices::buslogic::{self as buslogic_device, BusLogic};
use paradisk_devices::ide as ide_device;
use paradisk_devices::lsi::{self as lsi_device, Lsi};
use paradisk_devices::pvscsi::{Config, Pvscsi};
use paradisk_devices::scsi::{Address, Bus, Identity, LogicalUnit};
use paradisk_devices::virtio::{blk as blk_device, scsi as scsi_device};
use paradisk_devices::vmbus::{Synic, VmbusDevice};
use paradisk_devices::{
    AdapterConfig, AdapterKind, Attachment, InterruptSink, IoDevice, PciDevice, build_vmbus,
};
use paradisk_disk_formats::{
    Disk, DiskQueue, EngineKind, FormatName, NullDisk, OpenOptions, QueueConfig, RamDisk, Raw, SectorSize,
    vhd,
};
use paradisk_vmm::Built;
use vm_memory::GuestAddressSpace;

/// Requests in flight over all of an adapter's disks.
pub(crate) const TASKS: u32 = 1024;

/// A job to vary: fills the disk.
pub(crate) const JOB: Workload = Workload::FILL;

/// A disk to make, of so many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DiskSpec {
    /// In memory.
    Ram(u64),
    /// In memory, sectors of 4,096 bytes.
    Ram4096(u64),
    /// Keeps nothing.
    Null(u64),
    /// A raw file in a temporary directory.
    Raw(u64, EngineKind),
    /// A raw file past the page cache.
    Direct(u64),
    /// A fixed VHD in a temporary directory.
    Vhd(u64),
}

impl DiskSpec {
    /// One of each kind that keeps data and has sectors of 512 bytes.
    pub(crate) fn all(capacity: u64) -> Vec<Self> {
        vec![
            Self::Ram(capacity),
            Self::Raw(capacity, EngineKind::IoUring),
            Self::Raw(capacity, EngineKind::Threads),
            Self::Vhd(capacity),
        ]
    }

    /// Make it. Its file has no name any more.
    pub(crate) fn disk(self) -> Arc<dyn Disk> {
        let (capacity, format, direct) = match self {
            Self::Ram(capacity) => return Arc::new(RamDisk::new(capacity, SectorSize::B512).unwrap()),
            Self::Ram4096(capacity) => return Arc::new(RamDisk::new(capacity, SectorSize::B4096).unwrap()),
            Self::Null(capacity) => return Arc::new(NullDisk::new(capacity, SectorSize::B512).unwrap()),
            Self::Raw(capacity, _) => (capacity, FormatName::Raw, false),
            Self::Direct(capacity) => (capacity, FormatName::Raw, true),
            Self::Vhd(capacity) => (capacity, FormatName::Vhd, false),
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        match format {
            FormatName::Vhd => vhd::create_fixed(&path, capacity).unwrap(),
            _ => Raw::create(&path, capacity).unwrap(),
        }
        let format = Some(format);
        OpenOptions { format, direct: Some(direct), ..OpenOptions::new(path) }.open().unwrap()
    }

    fn engine(self) -> EngineKind {
        if let Self::Raw(_, engine) = self { engine } else { EngineKind::default() }
    }

    /// The disk with a queue of it.
    fn open(self) -> (Arc<dyn Disk>, Box<dyn DiskQueue>) {
        let disk = self.disk();
        let queue = disk.queue(&QueueConfig { depth: TASKS, engine: self.engine() }).unwrap();
        (disk, queue)
    }

    /// The disk as a logical unit.
    pub(crate) fn unit(self) -> LogicalUnit {
        let (disk, queue) = self.open();
        LogicalUnit::new(disk, queue, Identity::default())
    }
}

/// A VMBus whose SCSI controller has these disks as logical units 0, 1 ...
pub(crate) fn vmbus<A>(memory: A, synic: Box<dyn Synic>, disks: &[DiskSpec]) -> Built<dyn VmbusDevice>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    let attached = |(spec, unit): (&DiskSpec, u8)| {
        let engine = if let DiskSpec::Raw(_, engine) = spec { *engine } else { EngineKind::default() };
        (unit, Attachment { engine, ..Attachment::new(spec.disk()) })
    };
    let disks: Vec<_> = disks.iter().zip(0..).map(attached).collect();
    let config = AdapterConfig { tasks: TASKS, ..AdapterConfig::new(AdapterKind::Storvsc) };
    Ok(build_vmbus(memory, synic, config, &disks)?)
}

/// These disks as targets 0, 1 ...
pub(crate) fn bus(disks: &[DiskSpec]) -> Bus {
    let mut bus = Bus::new(TASKS);
    for (target, spec) in disks.iter().enumerate() {
        bus.attach(Address { target: target as u8, lun: 0 }, spec.unit()).unwrap();
    }
    bus
}

/// PVSCSI with these disks.
pub(crate) fn harness(config: &HarnessConfig, options: pvscsi::Options, disks: &[DiskSpec]) -> Harness {
    Harness::start(config, options, |memory, interrupts| {
        Ok(Box::new(Pvscsi::new(memory, bus(disks), interrupts, Config::default())?))
    })
    .unwrap()
}

/// LSI Logic with these disks.
pub(crate) fn lsi_harness(
    config: &HarnessConfig,
    options: lsi::Options,
    disks: &[DiskSpec],
) -> Harness<guest_driver::Lsi> {
    Harness::start(config, options, |memory, interrupts| {
        Ok(Box::new(Lsi::new(memory, bus(disks), interrupts, lsi_config(&options))?))
    })
    .unwrap()
}

/// A BusLogic device.
pub(crate) fn buslogic_config() -> buslogic_device::Config {
    buslogic_device::Config { tasks: TASKS, ..buslogic_device::Config::default() }
}

/// BusLogic with these disks.
pub(crate) fn buslogic_harness(
    config: &HarnessConfig,
    options: buslogic::Options,
    disks: &[DiskSpec],
) -> Harness<guest_driver::BusLogic> {
    Harness::start(config, options, |memory, interrupts| {
        Ok(Box::new(BusLogic::new(memory, bus(disks), interrupts, buslogic_config())?))
    })
    .unwrap()
}

/// The device for a driver with these options.
pub(crate) fn lsi_config(options: &lsi::Options) -> lsi_device::Config {
    let personality = match options.model {
        lsi::Model::Spi1030 => lsi_device::Personality::Spi1030,
        lsi::Model::Sas1068 => lsi_device::Personality::Sas1068,
    };
    lsi_device::Config { personality, tasks: TASKS, ..lsi_device::Config::default() }
}

/// A virtio block device for a driver with these options.
pub(crate) fn blk<A>(
    memory: A,
    interrupts: Box<dyn InterruptSink>,
    options: &virtio::Options,
    spec: DiskSpec,
) -> Built<dyn PciDevice>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    let config = blk_device::Config {
        queues: options.queues,
        queue_size: 1024,
        tasks: TASKS,
        engine: spec.engine(),
        serial: blk_device::serial("paradisk test"),
        ..blk_device::Config::default()
    };
    Ok(Box::new(blk_device::VirtioBlk::new(memory, spec.disk(), interrupts, config)?))
}

/// A virtio block device with this disk.
pub(crate) fn blk_harness(
    config: &HarnessConfig,
    options: virtio::Options,
    spec: DiskSpec,
) -> Harness<VirtioBlk> {
    Harness::start(config, options, |memory, interrupts| blk(memory, interrupts, &options, spec)).unwrap()
}

/// An IDE function with these disks as targets 0, 1 ...
pub(crate) fn ide<A>(
    memory: A,
    interrupts: Box<dyn InterruptSink>,
    mode: ide_device::Mode,
    disks: &[DiskSpec],
) -> Built<dyn PciDevice>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    let mut drives = [const { None }; ide_device::MAX_DRIVES];
    for (drive, spec) in drives.iter_mut().zip(disks) {
        let (disk, queue) = spec.open();
        *drive = Some(ide_device::IdeDisk { disk, queue, serial: "paradisk test".to_owned() });
    }
    let config = ide_device::Config { mode, ..ide_device::Config::default() };
    Ok(Box::new(ide_device::Ide::new(memory, drives, interrupts, config)?))
}

/// An IDE function with these disks.
pub(crate) fn ide_harness(
    config: &HarnessConfig,
    options: ide::Options,
    mode: ide_device::Mode,
    disks: &[DiskSpec],
) -> Harness<Ide> {
    Harness::start(config, options, |memory, interrupts| ide(memory, interrupts, mode, disks)).unwrap()
}

/// A virtio SCSI host device for a driver with these options.
pub(crate) fn scsi_config(options: &virtio::Options) -> scsi_device::Config {
    scsi_device::Config {
        queues: options.queues,
        queue_size: 1024,
        tasks: TASKS,
        ..scsi_device::Config::default()
    }
}

/// A virtio SCSI host device with these disks.
pub(crate) fn scsi_harness(
    config: &HarnessConfig,
    options: virtio::Options,
    disks: &[DiskSpec],
) -> Harness<VirtioScsi> {
    Harness::start(config, options, |memory, interrupts| {
        let config = scsi_config(&options);
        Ok(Box::new(scsi_device::VirtioScsi::new(memory, bus(disks), interrupts, config)?))
    })
    .unwrap()
}

/// Fill and check a disk of `capacity` bytes, which keeps data, in blocks of every size from a sector to 1 MiB.
pub(crate) fn every_block_size(rig: &mut impl Rig, spec: DiskSpec, capacity: u64) {
    for shift in spec.disk().info().logical_sector.shift()..=20 {
        let span = (1u64 << shift) * if shift < 16 { 128 } else { 16 };
        let job =
            Workload { block_size: 1 << shift, span: span.min(capacity), generation: shift.into(), ..JOB };
        fill_and_check_span(rig, spec, capacity, &job);
    }
}

/// Fill the job's part of a disk of `capacity` bytes, and check it: all of its bytes.
pub(crate) fn fill_and_check_span(rig: &mut impl Rig, spec: DiskSpec, capacity: u64, job: &Workload) {
    for mode in [Mode::Fill, Mode::Check] {
        let report = run_clean(rig, &Workload { mode, ..*job }).report;
        let block_size = job.block_size;
        assert_eq!((report.capacity, report.bytes), (capacity, job.span), "{spec:?} {block_size}");
    }
}

/// As [`every_block_size`], on a disk of each kind with each of these options.
pub(crate) fn every_block_size_on_every_disk<O: Copy, R: Rig>(
    capacity: u64,
    options: &[O],
    make: impl Fn(O, DiskSpec) -> R,
) {
    for spec in DiskSpec::all(capacity).into_iter().chain([DiskSpec::Ram4096(capacity)]) {
        for options in options {
            every_block_size(&mut make(*options, spec), spec, capacity);
        }
    }
}

/// Fill the job's part of the disk, and check it.
pub(crate) fn fill_and_check(rig: &mut impl Rig, job: &Workload) {
    for mode in [Mode::Fill, Mode::Check] {
        run_clean(rig, &Workload { mode, ..*job });
    }
}

/// Fill the disk and check it.
pub(crate) fn warm_up(rig: &mut impl Rig) {
    fill_and_check(rig, &JOB);
}

/// Fill and churn in blocks of three sizes.
pub(crate) fn churn(rig: &mut impl Rig, span: u64, ios: u64) {
    for (block_size, workers) in [(512, 4), (4096, 16), (65536, 1)] {
        for mode in [Mode::Fill, Mode::Churn] {
            run_clean(rig, &Workload { mode, block_size, workers, span, ios, ..JOB });
        }
    }
}

/// Fill and churn a virtio device whose requests come in every way that a driver may choose, with one queue and with several.
pub(crate) fn churn_every_way<R: Rig>(
    make: impl Fn(&HarnessConfig, virtio::Options) -> R,
    kicks: &[(KickPolicy, bool)],
) {
    for delivery in [Delivery::AtWait, Delivery::After(5), Delivery::Immediate] {
        for interrupts in [InterruptMode::MsiX, InterruptMode::Intx] {
            for &(kick, event_index) in kicks {
                for (queues, queue_size, indirect) in [(1, 1024, true), (1, 64, false), (5, 16, true)] {
                    let config = HarnessConfig { delivery, ..Default::default() };
                    let default = virtio::Options::default();
                    let options = virtio::Options {
                        queues,
                        queue_size,
                        interrupts,
                        kick,
                        event_index,
                        indirect,
                        ..default
                    };
                    let mut rig = make(&config, options);
                    for (block_size, workers) in [(512, 4), (8192, 1)] {
                        let span = u64::from(block_size) * 128;
                        let job = Workload { block_size, workers, span, ios: 1000, ..JOB };
                        for mode in [Mode::Fill, Mode::Churn] {
                            let report = run_clean(&mut rig, &Workload { mode, ..job }).report;
                            assert!(report.interrupts > 0, "{options:?}");
                            assert_eq!(report.registers > 0, interrupts == InterruptMode::Intx);
                        }
                    }
                }
            }
        }
    }
}

/// With the event index, both sides suppress notifications while there is work.
pub(crate) fn doorbells_and_interrupts_are_few(rig: &mut impl Rig) {
    let done = run_clean(rig, &Workload { mode: Mode::Measure, ios: 3200, ..JOB });
    assert!(done.doorbells <= 3200 / 8, "{} events for 3,200 accesses", done.doorbells);
    assert!(done.interrupts <= 3200 / 4, "{} interrupts for 3,200 accesses", done.interrupts);
    assert!(done.report.doorbells <= 3200 / 8, "{} doorbells rung", done.report.doorbells);
}

/// Submit `count` transfers of 4,096 bytes with tags from 0, to these targets in turn, without giving the device a turn.
pub(crate) fn submit_to(
    machine: &mut impl Platform,
    driver: &mut impl Adapter,
    op: Op,
    buffers: &DmaRegion,
    targets: &[u32],
    count: u32,
) {
    for tag in 0..count {
        let data = Buffer::contiguous(buffers.address() + u64::from(tag) * 4096, 4096);
        let target = targets[tag as usize % targets.len()];
        let request = Request { tag, target, op, lba: u64::from(tag) * 8, blocks: 8, data };
        assert!(driver.submit(machine, &request));
    }
    driver.kick(machine);
}

/// The same to target 0.
pub(crate) fn submit(
    machine: &mut impl Platform,
    driver: &mut impl Adapter,
    op: Op,
    buffers: &DmaRegion,
    count: u32,
) {
    submit_to(machine, driver, op, buffers, &[0], count);
}

/// Take completions until `count` have come, by tag. There are no more.
pub(crate) fn collect(
    machine: &mut impl Platform,
    driver: &mut impl Adapter,
    count: usize,
) -> BTreeMap<u32, Completion> {
    let mut ended = BTreeMap::new();
    let start = Instant::now();
    while ended.len() < count {
        let seen = machine.interrupts();
        driver.interrupted(machine);
        match driver.poll(machine) {
            Some(end) if end.tag == u32::MAX => panic!("the adapter named no request: {end:?}"),
            Some(end) => assert_eq!(ended.insert(end.tag, end), None, "tag {} completed twice", end.tag),
            None => machine.wait_interrupt(seen),
        }
        assert!(start.elapsed() < Duration::from_secs(60), "completions are missing: {ended:?}");
    }
    assert_eq!(driver.poll(machine), None, "more completions than requests");
    ended
}

/// Make the device take requests: ring one of its doorbells.
pub(crate) fn ring<D: ?Sized + IoDevice>(machine: &mut Machine<D>, doorbell: usize) {
    let now = machine.now();
    machine.device().on_doorbell(doorbell, now);
}

/// Let the device process posted writes and completions, as its I/O thread does after a wake-up.
pub(crate) fn service<D: ?Sized + IoDevice>(machine: &mut Machine<D>) {
    let now = machine.now();
    machine.device().on_completions(now);
}

/// Submit reads, let the device `fetch` them or not, and `reset`: nothing is written to memory afterwards.
pub(crate) fn nothing_comes_after<D: Start>(
    harness: &mut Harness<D>,
    fetch: impl FnOnce(&mut Machine),
    reset: impl FnOnce(&mut Machine, &mut D),
) {
    const READS: usize = 64;
    const BLOCK: usize = 4096;
    warm_up(harness);
    let (machine, driver) = harness.parts();
    let buffers = machine.dma(READS * BLOCK, BLOCK).unwrap();
    submit(machine, driver, Op::Read, &buffers, READS as u32);
    fetch(machine);
    reset(machine, driver);
    nothing_comes(machine, driver, &buffers);
}

/// After a reset nothing comes of requests from before it: no completion, and no byte of their buffers is written.
pub(crate) fn nothing_comes<D: ?Sized + IoDevice>(
    machine: &mut Machine<D>,
    driver: &mut impl Adapter,
    buffers: &DmaRegion,
) where
    Machine<D>: Platform,
{
    for offset in (0..buffers.len()).step_by(8) {
        buffers.write(offset, 0x5a5a_5a5a_5a5a_5a5au64);
    }
    std::thread::sleep(Duration::from_millis(20));
    service(machine);
    assert_eq!(driver.poll(machine), None, "a completion of a request from before the reset");
    for offset in (0..buffers.len()).step_by(8) {
        assert_eq!(buffers.read::<u64>(offset), 0x5a5a_5a5a_5a5a_5a5a, "offset {offset}");
    }
}

/// Run a job in which nothing may go wrong.
pub(crate) fn run_clean(rig: &mut impl Rig, workload: &Workload) -> Measurement {
    let done = rig.run(workload).unwrap();
    assert_eq!(done.report.errors, 0, "{workload:?}: {:?}", done.report.fault);
    done
}
