//! Machines under KVM: a bare-metal guest on each adapter, in one process that lives on.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use guest_driver::workload::Fault;
use guest_driver::{Mode, Workload};
use guest_tests::rig::Rig;
use guest_tests::{KvmConfig, KvmRig};
use paradisk_devices::{AdapterConfig, AdapterKind, Attachment, build, build_vmbus};
use paradisk_disk_formats::{Disk, OpenOptions, Raw};
use paradisk_vmm::Host;

use crate::load::Load;
use crate::vfio::{job, options};
use crate::worker::{self, Worker};

const ADAPTERS: [AdapterKind; 9] = [
    AdapterKind::Pvscsi,
    AdapterKind::Lsi,
    AdapterKind::LsiSas,
    AdapterKind::BusLogic,
    AdapterKind::Ide,
    AdapterKind::IdeNative,
    AdapterKind::VirtioBlk,
    AdapterKind::VirtioScsi,
    AdapterKind::Storvsc,
];
const SIZE: u64 = 16 << 20;

/// Start a machine, run jobs on it, and end it.
fn machine(host: &Host, kind: AdapterKind, disk: &Arc<dyn Disk>, number: u64) -> u64 {
    let config = KvmConfig { driver: options(kind, 1), ..KvmConfig::default() };
    let disks = [(kind.targets().next().unwrap(), Attachment::new(Arc::clone(disk)))];
    let adapter = AdapterConfig::new(kind);
    let rig = if kind == AdapterKind::Storvsc {
        KvmRig::start_vmbus(host, &config, |memory, synic| Ok(build_vmbus(memory, synic, adapter, &disks)?))
    } else {
        KvmRig::start(host, &config, |memory, sink| Ok(build(memory, sink, adapter, &disks)?))
    };
    let mut rig = rig.unwrap();
    let mut run = |job: Workload| {
        let report = rig.run(&job).unwrap().report;
        assert_eq!((report.fault, report.errors), (Fault::EMPTY, 0), "{kind}: {job:?}");
        report.bytes
    };
    // What the last machine left. Churn leaves blocks of other generations, so the span is filled again after it.
    let before = number.checked_sub(1).map_or(0, |before| run(Workload { mode: Mode::Check, ..job(before) }));
    for mode in [Mode::Fill, Mode::Churn, Mode::Fill] {
        run(Workload { mode, ..job(number) });
    }
    before + run(Workload { mode: Mode::Check, ..job(number) })
}

/// The process.
pub(crate) fn child() -> ExitCode {
    let (host, folder) = (Host::open().unwrap(), tempfile::tempdir().unwrap());
    let disks = ADAPTERS.map(|kind| {
        let path = folder.path().join(kind.to_string());
        Raw::create(&path, SIZE).unwrap();
        OpenOptions::new(path).open().unwrap()
    });
    let mut machines = 0;
    worker::serve(|number| {
        let all = ADAPTERS.iter().zip(&disks);
        let verified = all.map(|(kind, disk)| machine(&host, *kind, disk, number)).sum();
        machines += ADAPTERS.len();
        (verified, format!("{machines} machines ended"))
    })
}

/// The load, if the host has KVM.
pub(crate) struct Kvm(Result<Worker, String>);

impl Kvm {
    pub(crate) fn new() -> Self {
        Self(Host::open().map(|_| Worker::new("kvm")).map_err(|error| error.to_string()))
    }
}

impl Load for Kvm {
    fn cycle(&mut self, number: u64) -> u64 {
        let Ok(worker) = &mut self.0 else {
            thread::sleep(Duration::from_secs(1));
            return 0;
        };
        worker.cycle(number)
    }

    fn process(&self) -> Option<u32> {
        self.0.as_ref().ok().and_then(Load::process)
    }

    fn events(&self) -> String {
        self.0.as_ref().map_or_else(|reason| format!("skipped: {reason}"), Load::events)
    }
}
