//! Guests and devices in one process that lives on. Under load, disks are attached, used and detached, interrupt moderation changes,
//! requests are aborted, and adapters and their parts are reset.

mod resets;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use guest_driver::driver::Driver;
use guest_driver::{Mode, Platform, Workload};
use guest_tests::{HarnessConfig, Machine};
use paradisk_devices::scsi::Address;
use paradisk_devices::vmbus::VmbusDevice;
use paradisk_devices::{
    AdapterConfig, AdapterKind, Attachment, Coalescing, IoDevice, PciDevice, Policy, build, build_vmbus,
};
use paradisk_disk_formats::{Disk, OpenOptions, RamDisk, Raw, SectorSize, vhd, vhdx};

use crate::contested::{Contested, generations};
use crate::load::SERVED;
use crate::vfio::{Initiator, job, options};
use crate::worker;
use resets::Disturbance;

const SIZE: u64 = 16 << 20;
/// The target of disks that come and go.
const PLUGGED: u8 = 5;
const POLICIES: [Policy; 4] = [Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops];
/// Request queues of virtio devices.
const QUEUES: u16 = 2;

struct Guest<D: ?Sized + IoDevice> {
    kind: AdapterKind,
    machine: Machine<D>,
    initiator: Initiator,
    contested: Contested,
    /// Disks attached, requests aborted and resets so far.
    plugged: u64,
    resets: u64,
}

fn disk(folder: &Path, kind: AdapterKind) -> Arc<dyn Disk> {
    let path = |format| folder.join(kind.as_str()).with_extension(format);
    let (vhdx, vhd, raw) = (path("vhdx"), path("vhd"), path("raw"));
    let options = vhdx::CreateOptions::default();
    let (made, path) = match kind {
        AdapterKind::Pvscsi => (vhdx::create_dynamic(&vhdx, SIZE, options), vhdx),
        AdapterKind::LsiSas => (vhdx::create_fixed(&vhdx, SIZE, options), vhdx),
        AdapterKind::VirtioScsi | AdapterKind::Storvsc | AdapterKind::Ide => {
            (vhd::create_dynamic(&vhd, SIZE, None), vhd)
        }
        AdapterKind::BusLogic => (vhd::create_fixed(&vhd, SIZE), vhd),
        _ => (Raw::create(&raw, SIZE), raw),
    };
    made.unwrap();
    OpenOptions::new(path).open().unwrap()
}

fn pci(folder: &Path, kind: AdapterKind) -> Guest<dyn PciDevice> {
    let disks = [(0, Attachment::new(disk(folder, kind)))];
    let config = AdapterConfig { queues: QUEUES, ..AdapterConfig::new(kind) };
    let make = |memory, interrupts| Ok(build(memory, interrupts, config, &disks)?);
    Guest::new(kind, Machine::new(&HarnessConfig::default(), make).unwrap())
}

fn storvsc(folder: &Path) -> Guest<dyn VmbusDevice> {
    let kind = AdapterKind::Storvsc;
    let disks = [(0, Attachment::new(disk(folder, kind)))];
    let make = |memory, synic| Ok(build_vmbus(memory, synic, AdapterConfig::new(kind), &disks)?);
    Guest::new(kind, Machine::with_vmbus(&HarnessConfig::default(), make).unwrap())
}

impl<D: ?Sized + IoDevice> Guest<D>
where
    Machine<D>: Platform,
{
    fn new(kind: AdapterKind, mut machine: Machine<D>) -> Self {
        let initiator = Initiator::start(&mut machine, options(kind, QUEUES));
        let contested = Contested::new(&mut machine);
        Self { kind, machine, initiator, contested, plugged: 0, resets: 0 }
    }

    fn cycle(&mut self, number: u64) -> u64 {
        let policy = POLICIES[number as usize % POLICIES.len()];
        self.machine.device().set_coalescing(Coalescing::policy(policy));
        let bus = !matches!(self.kind, AdapterKind::Ide | AdapterKind::IdeNative | AdapterKind::VirtioBlk);
        let verified = if bus { self.plug(number) } else { self.work(number) };
        verified + self.reset(number)
    }

    fn work(&mut self, number: u64) -> u64 {
        self.initiator.work(&mut self.machine, &job(number))
    }

    /// Work with another disk attached meanwhile.
    fn plug(&mut self, number: u64) -> u64 {
        let address = Address { target: PLUGGED, lun: 0 };
        let ram = RamDisk::new(1 << 20, SectorSize::B512).unwrap();
        let unit = Attachment::new(Arc::new(ram)).unit(64).unwrap();
        let now = self.machine.now();
        self.machine.device().hot_plug().expect("an adapter with hot-plug").attach(address, unit).unwrap();
        self.take_messages();
        let mut verified = self.work(number);
        // The other drivers do not look for disks while they run.
        if self.kind == AdapterKind::Pvscsi {
            let span = 1 << 20;
            let job = Workload { target: PLUGGED.into(), span, ..job(number) };
            verified += self.initiator.work(&mut self.machine, &job);
        }
        assert!(self.machine.device().hot_plug().expect("an adapter with hot-plug").detach(address, now));
        self.plugged += 1;
        self.take_messages();
        verified
    }

    /// Take PVSCSI's messages about disks that came or went.
    fn take_messages(&mut self) {
        if let Driver::Pvscsi(driver) = &mut self.initiator.driver {
            guest_driver::adapter::Adapter::interrupted(driver, &mut self.machine);
            while driver.take_message().is_some() {}
        }
    }

    /// Abort requests or reset something, with requests in flight.
    fn reset(&mut self, number: u64) -> u64 {
        let Self { machine, initiator, contested, .. } = self;
        let [old, new] = generations(number);
        contested.write(&mut initiator.driver, machine, old);
        let disturbance = Disturbance { contested, number, generation: new };
        let silent = disturbance.run(machine, &mut initiator.driver);
        self.resets += 1;
        if silent {
            contested.spoil();
        }
        let verified = initiator.run(machine, &Workload { mode: Mode::Check, ..job(number) });
        assert!(!silent || contested.is_spoilt(), "{}: memory was written after a reset", self.kind);
        verified + contested.verify(&mut initiator.driver, machine, [old, new])
    }
}

/// The process.
pub(crate) fn child() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let kinds = SERVED.into_iter().chain([AdapterKind::Ide]);
    let mut guests: Vec<_> = kinds.map(|kind| pci(folder.path(), kind)).collect();
    let mut storvsc = storvsc(folder.path());
    worker::serve(|number| {
        let verified =
            guests.iter_mut().map(|guest| guest.cycle(number)).sum::<u64>() + storvsc.cycle(number);
        let plugged = guests.iter().map(|guest| guest.plugged).sum::<u64>() + storvsc.plugged;
        let resets = guests.iter().map(|guest| guest.resets).sum::<u64>() + storvsc.resets;
        (verified, format!("{plugged} disks plugged and unplugged, {resets} aborts and resets"))
    })
}
