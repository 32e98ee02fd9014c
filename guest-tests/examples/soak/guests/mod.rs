//! Guests and devices in one process that lives on: disks are attached, used and detached, and interrupt moderation changes, under load.
//! Storvsc, which no server offers, has its load here.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;

use guest_driver::driver::{Driver, Options};
use guest_driver::{Mode, Platform, Workload, vmbus};
use guest_tests::{HarnessConfig, Machine};
use paradisk_devices::scsi::Address;
use paradisk_devices::vmbus::VmbusDevice;
use paradisk_devices::{
    AdapterConfig, AdapterKind, Attachment, Coalescing, IoDevice, PciDevice, Policy, build, build_vmbus,
};
use paradisk_disk_formats::{Disk, OpenOptions, RamDisk, SectorSize, vhd, vhdx};

use crate::server::{Place, Process};
use crate::vfio::{Initiator, job, options};

const SIZE: u64 = 16 << 20;
/// The target of disks that come and go.
const PLUGGED: u8 = 5;
const POLICIES: [Policy; 4] = [Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops];

struct Guest<D: ?Sized + IoDevice> {
    machine: Machine<D>,
    initiator: Initiator,
    /// Its driver finds disks that are attached while it runs.
    finds: bool,
}

fn disk(folder: &std::path::Path, kind: AdapterKind) -> Arc<dyn Disk> {
    let format = if kind == AdapterKind::Pvscsi { "vhdx" } else { "vhd" };
    let path = folder.join(kind.as_str()).with_extension(format);
    match format {
        "vhdx" => vhdx::create_dynamic(&path, SIZE, vhdx::CreateOptions::default()),
        _ => vhd::create_dynamic(&path, SIZE, None),
    }
    .unwrap();
    OpenOptions::new(path).open().unwrap()
}

fn pci(folder: &std::path::Path, kind: AdapterKind) -> Guest<dyn PciDevice> {
    let disks = [(0, Attachment::new(disk(folder, kind)))];
    let make = |memory, interrupts| Ok(build(memory, interrupts, AdapterConfig::new(kind), &disks)?);
    let mut machine = Machine::new(&HarnessConfig::default(), make).unwrap();
    let initiator = Initiator::start(&mut machine, options(kind));
    Guest { machine, initiator, finds: kind == AdapterKind::Pvscsi }
}

fn storvsc(folder: &std::path::Path) -> Guest<dyn VmbusDevice> {
    let kind = AdapterKind::Storvsc;
    let disks = [(0, Attachment::new(disk(folder, kind)))];
    let make = |memory, synic| Ok(build_vmbus(memory, synic, AdapterConfig::new(kind), &disks)?);
    let mut machine = Machine::with_vmbus(&HarnessConfig::default(), make).unwrap();
    let initiator = Initiator::start(&mut machine, Options::Storvsc(vmbus::Options::default()));
    Guest { machine, initiator, finds: false }
}

impl<D: ?Sized + IoDevice> Guest<D>
where
    Machine<D>: Platform,
{
    fn cycle(&mut self, number: u64) -> u64 {
        let Self { machine, initiator, finds } = self;
        let policy = POLICIES[number as usize % POLICIES.len()];
        machine.device().set_coalescing(Coalescing::policy(policy));
        let address = Address { target: PLUGGED, lun: 0 };
        let ram = RamDisk::new(1 << 20, SectorSize::B512).unwrap();
        let unit = Attachment::new(Arc::new(ram)).unit(64).unwrap();
        let now = machine.now();
        machine.device().hot_plug().expect("an adapter with hot-plug").attach(address, unit).unwrap();
        take_messages(machine, &mut initiator.driver);
        let mut verified = initiator.work(machine, &job(number));
        if *finds {
            let span = 1 << 20;
            verified += initiator.work(machine, &Workload { target: PLUGGED.into(), span, ..job(number) });
        }
        assert!(machine.device().hot_plug().expect("an adapter with hot-plug").detach(address, now));
        take_messages(machine, &mut initiator.driver);
        verified + initiator.run(machine, &Workload { mode: Mode::Check, ..job(number) })
    }
}

/// What the adapter tells of disks.
fn take_messages<P: Platform>(machine: &mut P, driver: &mut Driver) {
    if let Driver::Pvscsi(driver) = driver {
        guest_driver::adapter::Adapter::interrupted(driver, machine);
        while driver.take_message().is_some() {}
    }
}

/// The process: a cycle for each line that it reads, and what was verified as the answer.
pub(crate) fn child() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let mut guests = [AdapterKind::Pvscsi, AdapterKind::LsiSas, AdapterKind::VirtioScsi]
        .map(|kind| pci(folder.path(), kind));
    let mut storvsc = storvsc(folder.path());
    let stdin = std::io::stdin();
    for (_, number) in stdin.lock().lines().zip(0..) {
        let verified: u64 = guests.iter_mut().map(|guest| guest.cycle(number)).sum();
        println!("{}", verified + storvsc.cycle(number));
    }
    ExitCode::SUCCESS
}

pub(crate) struct Parent {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    cycles: u64,
}

impl Parent {
    pub(crate) fn new(_place: &Place) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg("guests").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { process: Process::new(child), orders, answers: BufReader::new(answers), cycles: 0 }
    }
}

impl crate::Load for Parent {
    fn cycle(&mut self, _number: u64) -> u64 {
        self.orders.write_all(b"\n").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        self.cycles += 1;
        line.trim().parse().unwrap_or_else(|_| panic!("the guests ended: {line:?}"))
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.0.id())
    }

    fn events(&self) -> String {
        format!("{} disks plugged and unplugged", 4 * self.cycles)
    }
}
