//! libiscsi's conformance suite for SCSI targets (<https://github.com/sahlberg/libiscsi>, `iscsi-test-cu` of Debian 12), on each SCSI
//! adapter: Debian's kernel and drivers in a QEMU that knows vfio-user, and SG_IO on `/dev/sdX`.

mod limits;

use std::path::Path;

use guest_init::{Job, Tested};
use guest_linux::{Qemu, StockKernel};
use guest_tests::linux::Report;
use guest_tests::qemu::Vm;
use paradisk_devices::AdapterKind;

use self::limits::Limit;
use crate::medium::{Format, Medium};
use crate::served::{self, Served};
use crate::vfio_user::TIMEOUT;
use crate::{Images, needed};

/// Bytes of guest memory: the suite has a buffer of 65,536 blocks, and so has the guest's kernel.
pub(crate) const MEMORY: u64 = 512 << 20;
const TESTS: usize = 230;
/// Lines of a test's output that a failure shows at most.
const LINES: usize = 8;

/// A disk, and the tests of the suite that fail on it.
pub(crate) struct Subject {
    format: Format,
    size: u64,
    exceptions: &'static [Exception],
}

/// A test that fails though the target is right.
struct Exception {
    test: &'static str,
    /// Why.
    reason: &'static str,
    /// All that it prints, with the assertions that fail.
    said: &'static [&'static str],
}

pub(crate) const SUBJECTS: [Subject; 2] = [
    // Eight blocks to a physical one, and more than 65,536 blocks.
    Subject {
        format: Format::Raw,
        size: 64 << 20,
        exceptions: &[
            Exception {
                test: "GetLBAStatus.UnmapSingle",
                reason: "asks for the status at block i + 1 and wants a first descriptor that begins at block i + blocks per \
                         physical block; it shall begin with the block that was asked for (SBC-4, \
                         LBA status descriptor relationships)",
                said: &[
                    "1. test_get_lba_status_unmap_single.c:135  - CU_FAIL(\"[FAILED] GETLBASTATUS command: \" \"lba offset in \
                     first descriptor does not \" \"match request.\")",
                ],
            },
            Exception {
                test: "WriteSame16.Unmap",
                reason: "reads 65,536 blocks with one command, which is more than SG_IO takes for any of the drivers (32 MiB; the \
                         write before that fails as well, which the suite does not notice)",
                said: &[
                    "[FAILED] Failed to send READ16 command: SG_IO ioctl failed",
                    "[FAILED] Blocks did not read back as zero",
                    "1. test_writesame16_unmap.c:190  - CU_ASSERT_EQUAL(_r,0)",
                    "2. test_writesame16_unmap.c:193  - CU_FAIL(\"[FAILED] Blocks did not read back \" \"as zero\")",
                ],
            },
        ],
    },
    // One block to a physical one, and fewer than 65,536 blocks.
    Subject { format: Format::Vhdx512, size: 24 << 20, exceptions: &[] },
];

/// Parts of the names of tests that may be skipped. These tests need a command or an option that the target does not have, a device of
/// another type, iSCSI itself, or several paths to a disk.
const SKIPPED: [&str; 27] = [
    "CompareAndWrite.InvalidDataOutSize",
    "ExtendedCopy.",
    "MultipathIO.",
    "OrWrite.",
    "Prefetch10.",
    "Prefetch16.",
    "PreventAllow.",
    "ProutPreempt.",
    "ProutReserve.Access",
    "ProutReserve.Ownership",
    "ReadDefectData10.",
    "ReadDefectData12.",
    "ReadOnly.",
    "ReceiveCopyResults.",
    "Reserve6.",
    "Sanitize.",
    "StartStopUnit.Simple",
    "WriteAtomic16.",
    // WSNZ: a length of zero does not mean all of the disk.
    "WriteSame10.ZeroBlocks",
    "WriteSame16.ZeroBlocks",
    "iSCSIResiduals.",
    "iSCSIcmdsn.",
    "iSCSIdatasn.",
    // These unmap less than a physical block. On the second disk no unit is smaller than a physical block.
    "WriteSame10.InvalidDataOutSize",
    "WriteSame10.UnmapUnaligned",
    "WriteSame16.InvalidDataOutSize",
    "WriteSame16.UnmapUnaligned",
];

/// The first disk, of which more is tested.
#[test]
fn libiscsi_on_pvscsi() {
    conforms("libiscsi_on_pvscsi", AdapterKind::Pvscsi, "vmw_pvscsi", &SUBJECTS[..1]);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_libiscsi_on_pvscsi() {
    conforms("long_libiscsi_on_pvscsi", AdapterKind::Pvscsi, "vmw_pvscsi", &SUBJECTS);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_libiscsi_on_lsi() {
    conforms("long_libiscsi_on_lsi", AdapterKind::Lsi, "mptspi", &SUBJECTS);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_libiscsi_on_lsi_sas() {
    conforms("long_libiscsi_on_lsi_sas", AdapterKind::LsiSas, "mptsas", &SUBJECTS);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_libiscsi_on_buslogic() {
    conforms("long_libiscsi_on_buslogic", AdapterKind::BusLogic, "BusLogic", &SUBJECTS);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_libiscsi_on_virtio_scsi() {
    conforms("long_libiscsi_on_virtio_scsi", AdapterKind::VirtioScsi, "virtio_scsi", &SUBJECTS);
}

fn conforms(test: &str, kind: AdapterKind, driver: &str, subjects: &[Subject]) {
    let Some((qemu, images)) = needed(test, prepared()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let media = media(folder.path(), subjects);
    let socket = folder.path().join("socket");
    let served = Served::vfio_user(&socket, kind, &media);
    let job = Job { disks: media.len(), libiscsi: true, ..Job::default() };
    let mut system = images.system(job.to_string());
    system.memory = MEMORY;
    let options = served::vfio_user_options(&socket);
    let vm = Vm::boot(qemu.system(), "q35", &system, &options, folder.path().join("console")).unwrap();
    let printed = vm.output_within(TIMEOUT, |_| {}).unwrap();
    served.stop().unwrap();
    check(&Report::parse(&printed).unwrap(), driver, subjects);
}

fn prepared() -> Result<(Qemu, Images), guest_linux::Error> {
    let (qemu, stock) = (Qemu::backported()?, StockKernel::newest()?);
    let initramfs = guest_linux::initramfs_with_libiscsi(&stock)?;
    Ok((qemu, Images { kernel: stock.image()?, initramfs }))
}

/// The disks, as files in a folder.
pub(crate) fn media(folder: &Path, subjects: &[Subject]) -> Vec<Medium> {
    subjects.iter().map(|it| Medium::new(folder, it.format, it.size).unwrap()).collect()
}

/// Check that tests failed or were skipped only for known reasons, and that each exception and each limit still applies.
pub(crate) fn check(report: &Report, driver: &str, subjects: &[Subject]) {
    assert_eq!(report.done.error, None);
    let limits = limits::of(driver);
    let mut wrong = Vec::new();
    assert_eq!(report.disks.len(), subjects.len());
    for Subject { format, size, exceptions } in subjects {
        let disk = report.disks.iter().find(|disk| disk.size == *size);
        let disk = disk.unwrap_or_else(|| panic!("no {}: {:#?}", format.serial(), report.disks));
        assert_eq!((&*disk.driver, &disk.error), (driver, &None));
        assert_eq!(disk.libiscsi.len(), TESTS, "{}", disk.serial);
        let unknown = disk.libiscsi.iter().filter(|test| is_wrong(test, exceptions, limits));
        wrong.extend(unknown.map(|test| format!("{}: {}", disk.serial, summary(test))));
        for Exception { test, reason, .. } in *exceptions {
            let found = disk.libiscsi.iter().find(|tested| tested.name == *test);
            let met =
                found.is_some_and(|tested| tested.failed || limits.iter().any(|limit| limit.ends(tested)));
            assert!(met, "{}: {test} passes, which {reason}", disk.serial);
        }
    }
    assert!(wrong.is_empty(), "on {driver}:\n{}", wrong.join("\n"));
    let tests = || report.disks.iter().flat_map(|disk| &disk.libiscsi);
    for limit in limits {
        if let Some(named) = limit.unused(tests()).next() {
            panic!("on {driver}, nothing of {named} {}", limit.reason);
        }
    }
}

/// Whether it fails or is skipped for a reason that is not known.
fn is_wrong(test: &Tested, exceptions: &[Exception], limits: &[Limit]) -> bool {
    let is_known = || exceptions.iter().any(|known| known.test == test.name && known.said == test.said);
    let is_left_out = || SKIPPED.iter().any(|skipped| test.name.contains(skipped));
    let is_limit = || limits.iter().any(|limit| limit.ends(test));
    test.failed && !is_known() && !is_limit() || test.skipped() && !is_left_out() && !is_limit()
}

/// Some tests print the same line a thousand times.
fn summary(test: &Tested) -> String {
    let Tested { name, failed, said } = test;
    format!("{name}: failed {failed}, {} lines: {:#?}", said.len(), &said[..said.len().min(LINES)])
}
