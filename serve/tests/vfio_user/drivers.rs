//! The guest's drivers over the socket: what is written is read, in every interrupt mode.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_driver::driver::{Driver, Options};
use guest_driver::workload::Fault;
use guest_driver::{
    InterruptMode, LoadGenerator, Mode, Platform, Report, Workload, buslogic, ide, lsi, pvscsi, virtio,
};
use paradisk_devices::{AdapterKind, Coalescing, Policy, Stats};
use paradisk_disk_formats::{RamDisk, SectorSize};
use paradisk_serve::vfio_user::spec::{REGION_FLAG_MMAP, REGIONS};

use crate::client::Client;
use crate::vmm::{Habits, Served, Vmm};

pub(crate) const DISK: u64 = 4 << 20;

/// The adapters that can have several requests in flight: all but IDE.
pub(crate) const KINDS: [AdapterKind; 6] = [
    AdapterKind::Pvscsi,
    AdapterKind::Lsi,
    AdapterKind::LsiSas,
    AdapterKind::BusLogic,
    AdapterKind::VirtioBlk,
    AdapterKind::VirtioScsi,
];

pub(crate) const JOB: Workload =
    Workload { mode: Mode::Measure, seed: 7, generation: 3, ios: 500, ..Workload::FILL };

pub(crate) fn serve(kind: AdapterKind) -> Served {
    Served::new(kind, Arc::new(RamDisk::new(DISK, SectorSize::B512).unwrap()))
}

pub(crate) fn options(kind: AdapterKind, interrupts: InterruptMode) -> Options {
    match kind {
        AdapterKind::Pvscsi => Options::Pvscsi(pvscsi::Options { interrupts, ..Default::default() }),
        AdapterKind::Lsi => Options::Lsi(lsi::Options { interrupts, ..Default::default() }),
        AdapterKind::LsiSas => {
            let model = lsi::Model::Sas1068;
            Options::Lsi(lsi::Options { interrupts, model, ..Default::default() })
        }
        AdapterKind::BusLogic => Options::BusLogic(buslogic::Options::default()),
        AdapterKind::IdeNative => Options::Ide(ide::Options::default()),
        AdapterKind::VirtioBlk => Options::VirtioBlk(virtio::Options { interrupts, ..Default::default() }),
        AdapterKind::VirtioScsi => Options::VirtioScsi(virtio::Options { interrupts, ..Default::default() }),
        kind => panic!("{kind}: there is no driver for it"),
    }
}

/// A driver that uses MSI-X, or MSI with LSI Logic, which has no MSI-X. BusLogic has neither.
pub(crate) fn start(kind: AdapterKind, vmm: &mut Vmm) -> Driver {
    let msi = matches!(kind, AdapterKind::Lsi | AdapterKind::LsiSas);
    let interrupts = if msi { InterruptMode::Msi } else { InterruptMode::MsiX };
    Driver::start(vmm, options(kind, interrupts)).unwrap()
}

pub(crate) fn run(driver: &mut Driver, vmm: &mut Vmm, job: &Workload) -> Box<Report> {
    let mut generator = Box::<LoadGenerator>::default();
    let mut report = Box::new(Report::EMPTY);
    driver.run(&mut generator, vmm, job, &mut report);
    report
}

pub(crate) fn clean(driver: &mut Driver, vmm: &mut Vmm, job: &Workload) -> Box<Report> {
    let report = run(driver, vmm, job);
    assert_eq!(report.fault, Fault::EMPTY, "{driver:?} {job:?}");
    report
}

/// Interrupts of a device whose moderation is `Batch` for the first half of its requests, and `policy` for the second half.
fn interrupts(policy: Policy) -> u64 {
    let served = serve(AdapterKind::Pvscsi);
    let mut vmm = Vmm::new(&served, Habits::default());
    let mut driver = Driver::start(&mut vmm, options(AdapterKind::Pvscsi, InterruptMode::MsiX)).unwrap();
    clean(&mut driver, &mut vmm, &JOB);
    served.handle.set_coalescing(Coalescing::policy(policy));
    // The server applies the change before it receives the message after this one.
    let _ = vmm.config_read(0);
    clean(&mut driver, &mut vmm, &JOB);
    drop(vmm);
    served.stop().1.interrupts
}

#[test]
fn the_policy_of_moderation_changes_while_a_guest_runs() {
    // On a busy machine a batch may be one request, so one of a few comparisons suffices.
    let compared = (0..5).map(|_| (interrupts(Policy::Batch), interrupts(Policy::Off)));
    let mut compared = compared.inspect(|(_, each)| assert!(*each >= JOB.ios, "{each}"));
    assert!(compared.any(|(batches, each)| batches < each / 2), "batches have as many interrupts");
}

fn written_is_read(kind: AdapterKind, interrupts: InterruptMode, habits: Habits, posting: bool) {
    written_to_is_read(serve(kind), (kind, interrupts), habits, posting);
}

fn written_to_is_read(
    served: Served,
    (kind, interrupts): (AdapterKind, InterruptMode),
    habits: Habits,
    posting: bool,
) {
    let mut vmm = Vmm::new(&served, habits);
    let mut driver = Driver::start(&mut vmm, options(kind, interrupts)).unwrap();
    vmm.posting = posting;
    for mode in [Mode::Fill, Mode::Check, Mode::Churn] {
        let report = clean(&mut driver, &mut vmm, &Workload { mode, ..JOB });
        assert_eq!(report.capacity, DISK);
        assert!(report.interrupts > 0, "{kind} {interrupts:?} {mode:?}");
    }
    // A report while the server runs. A thread of the device counts what it has done after it has signalled it, so the last requests may be
    // counted later.
    let reports = || served.handle.report(Duration::from_secs(60)).unwrap();
    let all =
        |stats: &Stats| stats.requests >= 2 * DISK / 4096 + JOB.ios && stats.completions == stats.requests;
    let begin = Instant::now();
    let mut report = reports();
    while !all(&report.stats) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", report.stats);
        report = reports();
    }
    let asked = report.stats;
    assert_eq!(report.moderation.is_empty(), kind == AdapterKind::IdeNative);
    assert!(report.moderation.iter().all(|vector| vector.policy == Policy::Batch && !vector.held_back));
    let handle = served.handle.clone();
    drop(vmm);
    let (_, stats) = served.stop();
    assert!(stats.requests >= asked.requests && stats.interrupts >= asked.interrupts, "{stats:?} {asked:?}");
    assert_eq!(stats.completions, stats.requests);
    assert!(handle.report(Duration::ZERO).is_none(), "it has stopped");
}

const BY_MESSAGE: Habits = Habits { ioeventfds: false, keeps_table: false };
const AS_KVM: Habits = Habits { ioeventfds: true, keeps_table: true };

#[test]
fn pvscsi() {
    for interrupts in [InterruptMode::MsiX, InterruptMode::Msi, InterruptMode::Intx] {
        for habits in [BY_MESSAGE, AS_KVM] {
            written_is_read(AdapterKind::Pvscsi, interrupts, habits, true);
        }
    }
}

/// As QEMU does: each kick waits for its reply.
#[test]
fn pvscsi_whose_writes_are_waited_for() {
    for interrupts in [InterruptMode::MsiX, InterruptMode::Intx] {
        written_is_read(AdapterKind::Pvscsi, interrupts, BY_MESSAGE, false);
    }
}

#[test]
fn lsi() {
    for kind in [AdapterKind::Lsi, AdapterKind::LsiSas] {
        for interrupts in [InterruptMode::Msi, InterruptMode::Intx] {
            written_is_read(kind, interrupts, AS_KVM, true);
        }
    }
}

#[test]
fn buslogic() {
    for habits in [BY_MESSAGE, AS_KVM] {
        for posting in [true, false] {
            written_is_read(AdapterKind::BusLogic, InterruptMode::Intx, habits, posting);
        }
    }
}

#[test]
fn ide_in_native_mode() {
    for habits in [BY_MESSAGE, AS_KVM] {
        for posting in [false, true] {
            written_is_read(AdapterKind::IdeNative, InterruptMode::Intx, habits, posting);
        }
    }
}

#[test]
fn virtio_blk_and_scsi() {
    for kind in [AdapterKind::VirtioBlk, AdapterKind::VirtioScsi] {
        for interrupts in [InterruptMode::MsiX, InterruptMode::Intx] {
            for habits in [BY_MESSAGE, AS_KVM] {
                written_is_read(kind, interrupts, habits, true);
            }
        }
    }
}

/// The queue's thread takes doorbells by their eventfd and by message, and its interrupts reach the client.
#[test]
fn virtio_blk_on_a_thread_of_its_own() {
    for interrupts in [InterruptMode::MsiX, InterruptMode::Intx] {
        for habits in [BY_MESSAGE, AS_KVM] {
            let disk = Arc::new(RamDisk::new(DISK, SectorSize::B512).unwrap());
            let kind = AdapterKind::VirtioBlk;
            written_to_is_read(Served::on_threads(kind, 1, disk), (kind, interrupts), habits, true);
        }
    }
}

/// QEMU posts no writes to a function with a mappable region. The regions that PVSCSI declares as mappable have no bytes, so
/// nothing is mapped.
#[test]
fn adapters_whose_drivers_need_it_have_their_writes_waited_for() {
    for kind in [AdapterKind::Pvscsi, AdapterKind::Lsi, AdapterKind::VirtioBlk, AdapterKind::VirtioScsi] {
        let served = serve(kind);
        let mut client = Client::new(&served.socket);
        let mut waits = false;
        for region in 0..REGIONS {
            let info = client.region_info(region).unwrap();
            let mapped = info.flags.get() & REGION_FLAG_MMAP != 0;
            assert!(!mapped || info.size.get() == 0, "{kind}: region {region}");
            waits |= mapped;
        }
        assert_eq!(waits, kind == AdapterKind::Pvscsi, "{kind}");
    }
}
