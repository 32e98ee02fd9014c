//! Disks that stop completing their I/O for a while.

use std::fs;
use std::path::Path;

use guest_init::Job;
use guest_linux::Clock;
use guest_tests::linux::Report;

use super::{ADAPTERS, Rig, assert_no_complaints, boot, report};
use crate::needed;

/// Sectors of a disk that is stalled.
const SECTORS: u64 = 8 << 10;
/// Wait until a text is in a file. The wait fails when the virtual machine has ended.
const WAIT_FOR: &str = r#"
wait_for() { until grep -q "$1" $2; do kill -0 $pid || exit 1; sleep 0.2; done; }
"#;
/// Stall the disks when the guest says so, until the guest's error handling has reached its last step (the host reset, for the disk on
/// `pvscsi`), and 3 s longer.
const STALL: &str = r#"
wait_for '^"stalling"' /out/console
for disk in $disks; do dmsetup suspend --noflush --nolockfs $disk; done
echo >&3
wait_for 'SCSI Host reset' /out/console
sleep 3
for disk in $disks; do dmsetup resume $disk; done
wait $pid
"#;
/// Stall the disk when the guest says so, until the guest's driver has reset the adapter with requests in flight, and 3 s longer.
const STALL_UNTIL_RESET: &str = r#"
wait_for '^"stalling"' /out/console
dmsetup suspend --noflush --nolockfs $disk
echo >&3
wait_for 'BusLogic reset in_flight=[1-9]' /out/log
sleep 3
dmsetup resume $disk
wait $pid
"#;
/// BusLogic's driver reports a reset that succeeded as a warning.
pub(super) const BUSLOGIC_RESET: &str = "*** BusLogic BT-958 Initialized Successfully ***";
/// Stall the ATA disk until the guest has stopped the transfer of a command that timed out, and 3 s longer.
const STALL_ATA: &str = r#"
wait_for '^"stalling"' /out/console
dmsetup suspend --noflush --nolockfs $disk
echo >&3
wait_for 'IDE transfer stopped' /out/log
sleep 3
dmsetup resume $disk
wait $pid
"#;
/// What libata's error handling has to log: a command timed out, and a software reset ended well.
const HANDLED_ATA: [&str; 4] =
    ["failed command: ", "(timeout)", "ata1: soft resetting link", "ata1: EH complete"];
/// What it may complain of, then.
const OF_LIBATA: [&str; 6] = [
    "ata1.00: exception ",
    "ata1.00: failed command: ",
    "ata1.00: cmd ",
    "res ",
    "ata1.00: status: { ",
    // Of the sector that a command which timed out does not report.
    "ata1.00: device reported invalid CHS sector 0",
];
/// What the guest's log has to show of the error handling. The virtio drivers have none: they wait.
const HANDLED: [&str; 7] = [
    "task abort on host",
    "SCSI device reset on scsi",
    "SCSI Bus reset",
    "SCSI Host reset",
    "mptscsih: ioc0: WARNING - Issuing Reset from mptscsih_IssueTaskMgmt",
    "mptscsih: ioc0: task abort: SUCCESS",
    "mptscsih: ioc1: task abort: SUCCESS",
];
/// What it may complain of, then.
pub(super) const OF_RESETS: [&str; 2] = ["Forced reset on cmd", "Issuing Reset from mptscsih_IssueTaskMgmt"];

/// All disks stop completing their I/O, as device-mapper targets do that are suspended. The guest's error handling aborts and resets;
/// nothing is lost, and no error reaches fio.
#[test]
fn stalled_disks_and_error_handling() {
    let Some(rig) = needed("stalled_disks_and_error_handling", Rig::prepare()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let job = Job { disks: ADAPTERS.len(), stalls: true, ..Job::default() };
    let (mut create, mut attach, mut keep) = (String::new(), String::new(), String::new());
    for ((_, name, _), n) in ADAPTERS.into_iter().zip(0..) {
        create += &format!("dmsetup create {name} --table '0 {SECTORS} linear /dev/ram{n} 0'\n");
        attach += &format!(" --disk path=/dev/dm-{n},format=passthrough,adapter={name},serial={name}");
        keep += &format!("dd if=/dev/dm-{n} of=/out/{name} bs=64k 2> /dev/null\n");
    }
    let names = ADAPTERS.map(|(_, name, _)| name).join(" ");
    let script = format!(
        "set -e\ndisks='{names}'\n{create}mkfifo typed\nexec 3<> typed\n\
         {}{attach} > /out/console < typed &\npid=$!\n{WAIT_FOR}{STALL}{keep}",
        boot(job, "")
    );
    rig.run_by(Clock::Instructions, script, &[], folder.path());
    let (printed, report) = report(folder.path(), "console");
    let missing: Vec<_> = HANDLED.iter().filter(|text| !printed.contains(*text)).collect();
    assert!(missing.is_empty(), "no {missing:?}:\n{printed}");
    assert_no_complaints(&report, &OF_RESETS);
    assert_eq!(report.disks.len(), ADAPTERS.len());
    for (_, name, driver) in ADAPTERS {
        verified(folder.path(), &report, name, driver);
    }
}

/// The only error handling of BusLogic's driver is the reset of the adapter, which blocks the virtual CPU until the disk completes its I/O:
/// so it has a guest of its own, and the adapter's log says that the guest is there.
#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_stalled_disk_on_buslogic() {
    let Some(rig) = needed("long_stalled_disk_on_buslogic", Rig::prepare()) else { return };
    let printed = stall_alone(&rig, "buslogic", "BusLogic", STALL_UNTIL_RESET, &[BUSLOGIC_RESET]);
    // Of power on, and of the reset.
    assert!(printed.matches("Power-on or device reset occurred").count() > 1, "{printed}");
}

/// The bus master's stop, with which libata's error handling begins, holds the virtual CPU until the disk completes its I/O: so the ATA
/// disk has a guest of its own. The software reset follows, and the command once more.
#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_stalled_disk_on_ide() {
    let Some(rig) = needed("long_stalled_disk_on_ide", Rig::prepare()) else { return };
    let printed = stall_alone(&rig, "ide", "ata_piix", STALL_ATA, &OF_LIBATA);
    let missing: Vec<_> = HANDLED_ATA.iter().filter(|text| !printed.contains(*text)).collect();
    assert!(missing.is_empty(), "no {missing:?}:\n{printed}");
}

/// Stall the one disk of a guest, on the adapter of this name, by a script that has it as `$disk`. The guest complains of what is `known`
/// alone, and nothing is lost. What it printed.
fn stall_alone(rig: &Rig, name: &str, driver: &str, stall: &str, known: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let boot = boot(Job { disks: 1, stalls: true, ..Job::default() }, "ignore_loglevel");
    let script = format!(
        "set -e\ndisk={name}\ndmsetup create $disk --table '0 {SECTORS} linear /dev/ram0 0'\nmkfifo typed\nexec 3<> typed\n\
         PARADISK_LOG=debug {boot} --disk path=/dev/dm-0,format=passthrough,adapter=$disk,serial=$disk \
         > /out/console 2> /out/log < typed &\npid=$!\n{WAIT_FOR}{stall}dd if=/dev/dm-0 of=/out/$disk bs=64k 2> /dev/null\n"
    );
    rig.run_by(Clock::Instructions, script, &[], folder.path());
    let (printed, report) = report(folder.path(), "console");
    assert_no_complaints(&report, known);
    verified(folder.path(), &report, name, driver);
    printed
}

/// The disk of this serial number was verified by fio, and has the content that the guest saw last.
fn verified(folder: &Path, report: &Report, name: &str, driver: &str) {
    let disk = report.disks.iter().find(|disk| disk.serial == name);
    let disk = disk.unwrap_or_else(|| panic!("no {name}: {:#?}", report.disks));
    assert_eq!((&*disk.driver, &disk.error), (driver, &None));
    let [fio] = &disk.fio[..] else { panic!("{name}: {:?}", disk.fio) };
    assert!(fio.writes > 0 && fio.reads > fio.writes && fio.bytes > disk.size, "{name}: {fio:?}");
    let content = fs::read(folder.join(name)).unwrap();
    assert_eq!(
        (content.len() as u64, disk.after_fio),
        (SECTORS * 512, Some(crc32c::crc32c(&content))),
        "{name}"
    );
}
