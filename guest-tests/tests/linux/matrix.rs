//! Each adapter with each format. storvsc is missing: its driver needs ACPI, which the test kernel does not have.
//! `svm/formats.rs` boots stock kernels with storvsc.

use std::time::Duration;

use guest_init::{Checked, Disk, Job, Plan};
use guest_tests::linux::{Guest, Report, command_line};
use paradisk_devices::{AdapterConfig, AdapterKind};
use paradisk_vmm::{Host, Machine};

use crate::medium::{Format, Medium, initial};
use crate::served::attachment;
use crate::{Images, kernels};

const TIMEOUT: Duration = Duration::from_secs(600);
const TASKS: u32 = 256;
pub(crate) const SEED: u64 = 0x5eed;
/// What the kernel complains of though nothing is wrong with a driver or a device.
pub(crate) const NOT_OURS: [&str; 7] = [
    // Some hosts give guests a time-stamp counter that runs at another rate than the CPU.
    "TSC doesn't count with P0 frequency!",
    // A kernel that is interpreted or emulated, on a busy host.
    "sched: DL replenish lagged too much",
    "hpet: Lost ",
    "hrtimer: interrupt took",
    "clocksource: ",
    "Unstable clock detected",
    // As all SCSI disks report, once (SPC-4, unit attention).
    "Power-on or device reset occurred",
];

/// Adapters whose drivers the test kernel has.
const ADAPTERS: [(AdapterKind, &str); 7] = [
    (AdapterKind::Pvscsi, "vmw_pvscsi"),
    (AdapterKind::Lsi, "mptspi"),
    (AdapterKind::LsiSas, "mptsas"),
    (AdapterKind::VirtioBlk, "virtio_blk"),
    (AdapterKind::VirtioScsi, "virtio_scsi"),
    (AdapterKind::Ide, "ata_piix"),
    (AdapterKind::BusLogic, "BusLogic"),
];

/// A machine for each adapter, with a disk of each format.
#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_each_adapter_with_each_format() {
    for adapter in ADAPTERS {
        println!("{adapter:?}");
        boot("long_each_adapter_with_each_format", Format::ALL.map(|format| (adapter, format)).into());
    }
}

/// A disk and where it is.
struct Placed {
    kind: AdapterKind,
    driver: &'static str,
    medium: Medium,
}

fn boot(test: &str, pairs: Vec<((AdapterKind, &'static str), Format)>) {
    let Some((host, kernels)) = kernels(test) else { return };
    for images in &kernels {
        let folder = tempfile::tempdir().unwrap();
        let mut disks = Vec::new();
        for (((kind, driver), format), index) in pairs.iter().copied().zip(0..) {
            // No two of a size, and none a whole number of blocks.
            match Medium::new(folder.path(), format, (4 << 20) + (index + 1) * (72 << 10)) {
                Ok(medium) => disks.push(Placed { kind, driver, medium }),
                Err(reason) => println!("SKIP: {test} ({}): {reason}", format.serial()),
            }
        }
        let report = run(&host, images, &disks);
        let complaints: Vec<_> = report
            .done
            .log
            .iter()
            .filter(|line| !NOT_OURS.iter().any(|known| line.contains(known)))
            .collect();
        assert!(complaints.is_empty(), "{complaints:#?}");
        assert_eq!(report.done.error, None);
        assert_eq!(report.disks.len(), disks.len(), "{:#?}", report.disks);
        for Placed { kind, driver, medium } in &disks {
            let serial = medium.format.serial();
            let disk = report.disks.iter().find(|disk| disk.serial == serial);
            let disk = disk.unwrap_or_else(|| panic!("no {serial}: {:#?}", report.disks));
            assert_eq!(disk.driver, *driver, "{serial}");
            compare(medium, disk, *kind);
        }
    }
}

/// Boot with these disks, on as many adapters as they need.
fn run(host: &Host, images: &Images, disks: &[Placed]) -> Report {
    let devices = |machine: &mut Machine| {
        for (kind, _) in ADAPTERS {
            let own: Vec<_> =
                disks.iter().filter(|disk| disk.kind == kind).map(|disk| attachment(&disk.medium)).collect();
            for (index, disks) in own.chunks(kind.targets().count()).enumerate() {
                // One IDE adapter of a machine has the ports of a PC/AT.
                let kind = if kind == AdapterKind::Ide && index > 0 { AdapterKind::IdeNative } else { kind };
                let config = AdapterConfig { tasks: TASKS, ..AdapterConfig::new(kind) };
                let placed: Vec<_> = kind.targets().zip(disks.iter().cloned()).collect();
                machine.add_device(|memory, interrupts| {
                    Ok(paradisk_devices::build(memory, interrupts, config, &placed)?)
                })?;
            }
        }
        Ok(())
    };
    let job = Job { disks: disks.len(), seed: SEED, reads: 8, ..Job::default() };
    let guest = Guest::boot(host, &images.system(command_line(job)), devices).unwrap();
    guest.report(TIMEOUT).unwrap_or_else(|error| panic!("{error}"))
}

/// What the guest saw and did against what the host has.
pub(crate) fn compare(medium: &Medium, disk: &Disk, kind: AdapterKind) {
    let (name, info) = (medium.format.serial(), medium.open().info().clone());
    assert_eq!(disk.error, None, "{name}");
    assert_eq!(disk.size, medium.size, "{name}");
    assert_eq!(disk.logical_sector, u64::from(info.logical_sector.bytes()), "{name}");
    // READ CAPACITY (16), which tells of physical blocks, is longer than the CDBs of this adapter.
    let told = kind != AdapterKind::BusLogic;
    let physical = if told { info.physical_sector } else { info.logical_sector.bytes() };
    assert_eq!(disk.physical_sector, u64::from(physical), "{name}");
    let called = match kind {
        AdapterKind::VirtioBlk => None,
        // What libata makes of the model.
        AdapterKind::Ide => Some(("ATA", "PARADISK VIRTUAL")),
        _ => Some(("PARADISK", "VIRTUAL DISK")),
    };
    if let Some(called) = called {
        assert_eq!((&*disk.vendor, &*disk.model), called, "{name}");
    }
    assert!(disk.write_back && !disk.read_only, "{name}");
    assert_eq!(disk.discard_max > 0, info.discard.is_some(), "{name}");
    let Some(checked) = &disk.checked else { panic!("{name}: nothing was verified") };
    assert_eq!(checked.discarded_zero.is_some(), info.discard.is_some(), "{name}");
    if info.discard.is_some_and(|discard| discard.reads_zero) {
        assert_eq!(checked.discarded_zero, Some(true), "{name}");
    }
    content(name, &medium.content(), disk, checked);
    medium.check();
}

/// That the guest read [`initial`] content of disk `name` at first, and that `found` is what it wrote and read last.
pub(crate) fn content(name: &str, found: &[u8], disk: &Disk, checked: &Checked) {
    let mut expected = initial(disk.size);
    assert_eq!(checked.before, crc32c::crc32c(&expected), "{name}: what the guest read first");
    assert_eq!(checked.after, crc32c::crc32c(found), "{name}: what the guest read last");
    let plan = Plan::new(SEED, disk.size, disk.logical_sector);
    plan.apply(&mut expected);
    if let Some(zero) = checked.discarded_zero {
        for extent in &plan.discarded {
            let now = extent.offset as usize..(extent.offset + extent.len) as usize;
            if zero {
                extent.part(&mut expected).fill(0);
            } else {
                // The range may hold anything, but guest and host must read the same.
                extent.part(&mut expected).copy_from_slice(&found[now]);
            }
        }
    }
    let difference = expected.iter().zip(found).position(|(expected, found)| expected != found);
    assert_eq!(difference, None, "{name}: first byte that is not as it should be");
}
