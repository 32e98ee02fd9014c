//! A vfio-user server of an adapter: guests come up, do verified I/O with their driver, and go.

use std::path::PathBuf;

use guest_driver::driver::{Driver, Options};
use guest_driver::workload::Fault;
use guest_driver::{LoadGenerator, Mode, Platform, Report, Workload, buslogic, ide, lsi, pvscsi, virtio};
use paradisk_devices::AdapterKind;

use crate::server::{Place, Process};
use crate::vmm::{Habits, Vmm};

const MIB: u64 = 1 << 20;
/// Bytes of the disk that are used: what a cycle reads and writes.
const SPAN: u64 = 2 * MIB;
const JOB: Workload = Workload { seed: 7, generation: 0, span: SPAN, ios: 500, ..Workload::FILL };

pub(crate) fn options(kind: AdapterKind) -> Options {
    match kind {
        AdapterKind::Lsi => Options::Lsi(lsi::Options::default()),
        AdapterKind::LsiSas => {
            Options::Lsi(lsi::Options { model: lsi::Model::Sas1068, ..Default::default() })
        }
        AdapterKind::BusLogic => Options::BusLogic(buslogic::Options::default()),
        AdapterKind::IdeNative => Options::Ide(ide::Options::default()),
        AdapterKind::VirtioBlk => Options::VirtioBlk(virtio::Options::default()),
        AdapterKind::VirtioScsi => Options::VirtioScsi(virtio::Options::default()),
        _ => Options::Pvscsi(pvscsi::Options::default()),
    }
}

/// A driver with the memory of its load.
pub(crate) struct Initiator {
    pub(crate) driver: Driver,
    /// Takes DMA memory at its first run, and uses it for all.
    generator: Box<LoadGenerator>,
}

impl Initiator {
    pub(crate) fn start<P: Platform>(platform: &mut P, options: Options) -> Self {
        let driver = Driver::start(platform, options).unwrap();
        Self { driver, generator: Box::default() }
    }

    /// Run a job that must end without a fault; the bytes that it moved, and the disk's capacity.
    fn run_on<P: Platform>(&mut self, platform: &mut P, job: &Workload) -> (u64, u64) {
        let mut report = Box::new(Report::EMPTY);
        self.driver.run(&mut self.generator, platform, job, &mut report);
        assert_eq!((report.fault, report.errors), (Fault::EMPTY, 0), "{job:?}");
        (report.bytes, report.capacity)
    }

    pub(crate) fn run<P: Platform>(&mut self, platform: &mut P, job: &Workload) -> u64 {
        self.run_on(platform, job).0
    }

    /// Write the span, change parts of it, and verify all.
    pub(crate) fn work<P: Platform>(&mut self, platform: &mut P, job: &Workload) -> u64 {
        // Churn begins with this generation, and leaves blocks of later ones.
        for mode in [Mode::Fill, Mode::Churn, Mode::Fill] {
            self.run(platform, &Workload { mode, ..*job });
        }
        self.run(platform, &Workload { mode: Mode::Check, ..*job })
    }
}

pub(crate) const fn job(generation: u64) -> Workload {
    Workload { generation: generation as _, ..JOB }
}

pub(crate) struct Load {
    place: Place,
    kind: AdapterKind,
    socket: PathBuf,
    control: String,
    process: Process,
    /// Of a raw image, which can grow.
    capacity: Option<u64>,
    grown: u64,
}

impl Load {
    pub(crate) fn new(place: &Place, kind: AdapterKind) -> Self {
        // Each format with an adapter or more.
        let format = match kind {
            AdapterKind::Pvscsi | AdapterKind::LsiSas => "vhdx",
            AdapterKind::VirtioScsi | AdapterKind::IdeNative => "vhd",
            _ => "raw",
        };
        let (image, socket) = (place.image(format, "16M"), place.file("socket"));
        let control = place.file("control").display().to_string();
        let args = ["--adapter", kind.as_str(), "--disk", &image, "--control", &control];
        let process = place.serve("vfio-user", &socket, &args);
        let capacity = (format == "raw").then_some(16 * MIB);
        Self { place: place.clone(), kind, socket, control, process, capacity, grown: 0 }
    }
}

impl crate::Load for Load {
    fn cycle(&mut self, number: u64) -> u64 {
        let habits = Habits { ioeventfds: number.is_multiple_of(2), ..Habits::default() };
        let mut vmm = Vmm::at(&self.socket, habits);
        let mut initiator = Initiator::start(&mut vmm, options(self.kind));
        let mut verified = 0;
        if number > 0 {
            // What the guest before this one wrote.
            let job = Workload { mode: Mode::Check, ..job(number - 1) };
            let (bytes, capacity) = initiator.run_on(&mut vmm, &job);
            assert!(self.capacity.is_none_or(|expected| expected == capacity), "a capacity of {capacity}");
            verified += bytes;
        }
        verified += initiator.work(&mut vmm, &job(number));
        if let Some(capacity) = self.capacity.as_mut().filter(|capacity| **capacity < 64 * MIB) {
            *capacity += MIB;
            self.grown += 1;
            // With the guest there: the next one sees the new capacity at once.
            self.place.run(&["ctl", &self.control, "resize", "disk0", &capacity.to_string()]);
        }
        verified
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.0.id())
    }

    fn events(&self) -> String {
        match self.grown {
            0 => String::new(),
            times => format!("grown {times} times"),
        }
    }
}
