//! Vfio-user servers: guests come up, do verified I/O with their driver, and are killed with requests in flight.

mod guest;
mod killed;
mod steady;

use std::path::Path;

use guest_driver::driver::{Driver, Options};
use guest_driver::workload::Fault;
use guest_driver::{
    LoadGenerator, Mode, Platform, Report, Workload, buslogic, ide, lsi, pvscsi, virtio, vmbus,
};
use paradisk_devices::AdapterKind;

use crate::images::Kind;
use crate::server::{Place, Process};

pub(crate) use guest::child;
pub(crate) use killed::Killed;
pub(crate) use steady::Steady;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
/// Bytes of the disk that are used: what a cycle reads and writes.
const SPAN: u64 = 2 * MIB;
const JOB: Workload = Workload { seed: 7, generation: 0, span: SPAN, ios: 500, ..Workload::FILL };

/// The driver of an adapter; `queues` are those of virtio.
pub(crate) fn options(kind: AdapterKind, queues: u16) -> Options {
    let virtio = virtio::Options { queues, ..virtio::Options::default() };
    match kind {
        AdapterKind::Lsi => Options::Lsi(lsi::Options::default()),
        AdapterKind::LsiSas => {
            Options::Lsi(lsi::Options { model: lsi::Model::Sas1068, ..Default::default() })
        }
        AdapterKind::BusLogic => Options::BusLogic(buslogic::Options::default()),
        AdapterKind::Ide | AdapterKind::IdeNative => Options::Ide(ide::Options::default()),
        AdapterKind::VirtioBlk => Options::VirtioBlk(virtio),
        AdapterKind::VirtioScsi => Options::VirtioScsi(virtio),
        AdapterKind::Storvsc => Options::Storvsc(vmbus::Options::default()),
        AdapterKind::Pvscsi => Options::Pvscsi(pvscsi::Options::default()),
        kind => unimplemented!("no load drives {kind}"),
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

/// A server's adapter and disk.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    kind: AdapterKind,
    /// `None`: memory whose requests take `SLOW`.
    image: Option<Kind>,
    queues: u16,
    threads: u16,
}

const SLOW: &str = "ram=16M,delay=5ms";

impl Setup {
    /// An adapter with a disk of a kind that suits it.
    pub(crate) const fn of(kind: AdapterKind) -> Self {
        let image = match kind {
            AdapterKind::Pvscsi => Kind::Vhdx,
            AdapterKind::LsiSas => Kind::VhdxChain,
            AdapterKind::BusLogic => Kind::VhdFixed,
            AdapterKind::IdeNative => Kind::VhdChain,
            AdapterKind::VirtioScsi => Kind::Vhd,
            _ => Kind::Raw,
        };
        Self { kind, image: Some(image), queues: 1, threads: 0 }
    }

    /// Virtio-blk whose queues have threads.
    pub(crate) const fn threads(queues: u16) -> Self {
        Self { queues, threads: queues, ..Self::of(AdapterKind::VirtioBlk) }
    }

    /// A disk whose requests take long.
    pub(crate) const fn slow() -> Self {
        Self { image: None, ..Self::of(AdapterKind::Pvscsi) }
    }

    /// Make the disk. A guest writes to each file of a chain before the file gets a child. Returns the disk and the number of these guests.
    fn disk(&self, place: &Place, socket: &Path) -> (String, u64) {
        let mut cycles = 0;
        let Some(image) = self.image else { return (SLOW.to_owned(), 0) };
        let path = place.image(image, SIZE, |path| {
            let process = self.serve(place, socket, path, &[]);
            let mut guest = guest::Guest::start(place, socket, self, cycles);
            guest.answer();
            guest.kill();
            process.end();
            cycles += 1;
        });
        (path, cycles)
    }

    fn serve(&self, place: &Place, socket: &Path, disk: &str, more: &[&str]) -> Process {
        let (queues, threads) = (self.queues.to_string(), self.threads.to_string());
        let mut args = vec!["--adapter", self.kind.as_str(), "--disk", disk];
        if self.kind == AdapterKind::VirtioBlk {
            args.extend(["--queues", &queues, "--threads", &threads]);
        }
        args.extend(more);
        place.serve("vfio-user", socket, &args)
    }
}
