//! Debian's kernel on paradisk's machine, on a KVM that runs kernels natively: L1 is a Linux host in a QEMU that emulates AMD SVM, and
//! paradisk runs there. The machine that runs the tests needs no KVM.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use devices::AdapterKind;
use guest_init::Job;
use guest_linux::{Clock, HostJob, KvmHost};
use guest_tests::linux::{Report, command_line};

use crate::matrix::{NOT_OURS, SEED, compare};
use crate::medium::{Format, Medium};

const TIMEOUT: Duration = Duration::from_secs(300);
/// Bytes of L1's memory.
const MEMORY: u64 = 3 << 30;
const FORMATS: [Format; 5] =
    [Format::Raw, Format::VhdDynamic, Format::VhdDifferencing, Format::VhdxDynamic, Format::VhdxDifferencing];
/// Each with the name that the command line has for it, and the guest's driver.
const ADAPTERS: [(AdapterKind, &str, &str); 5] = [
    (AdapterKind::Pvscsi, "pvscsi", "vmw_pvscsi"),
    (AdapterKind::Lsi, "lsi", "mptspi"),
    (AdapterKind::LsiSas, "lsi-sas", "mptsas"),
    (AdapterKind::VirtioScsi, "virtio-scsi", "virtio_scsi"),
    (AdapterKind::VirtioBlk, "virtio-blk", "virtio_blk"),
];

/// L1, and what every job on it needs: files with their names there.
struct Rig {
    host: KvmHost,
    files: Vec<(String, PathBuf)>,
}

impl Rig {
    fn prepare() -> Result<Self, guest_linux::Error> {
        Ok(Self { host: KvmHost::prepare()?, files: KvmHost::stock_guest()? })
    }

    /// Run a script beside these files; its results are put into `folder`.
    fn run(&self, script: String, files: &[(&str, &Path)], folder: &Path) -> String {
        let own = files.iter().map(|(name, path)| ((*name).to_owned(), path.to_path_buf()));
        let files = self.files.iter().cloned().chain(own).collect();
        let job = HostJob {
            script,
            files,
            disks: Vec::new(),
            cpus: 1,
            clock: Clock::Host,
            memory: MEMORY,
            timeout: TIMEOUT,
        };
        let start = Instant::now();
        let ended = self.host.run(&job, folder).unwrap_or_else(|error| panic!("{error}"));
        println!("L1 ran for {:.0} s", start.elapsed().as_secs_f64());
        assert_eq!(ended.status, 0, "{}", ended.console);
        ended.console
    }
}

/// `paradisk run` for a guest that does `job`, up to its disks, with more words for its kernel.
fn boot(job: Job, words: &str) -> String {
    // Mitigations of faults of the CPU that QEMU names: the kernel complains of microcode that QEMU does not have.
    let cmdline = format!("mitigations=off {words} {}", command_line(job));
    format!("./paradisk run --kernel vmlinuz --initrd initramfs --memory 256M --cmdline '{cmdline}'")
}

#[test]
fn stock_kernel_with_all_adapters_and_formats() {
    let rig = match Rig::prepare() {
        Ok(rig) => rig,
        Err(reason) => return println!("SKIP: stock_kernel_with_all_adapters_and_formats: {reason}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    let mut disks = String::new();
    let mut media = Vec::new();
    // No two of a size, and none a whole number of blocks.
    let mut sizes = (4 << 20..).step_by(72 << 10);
    for (kind, name, driver) in ADAPTERS {
        let own = images.join(name);
        fs::create_dir_all(&own).unwrap();
        for (format, size) in FORMATS.into_iter().zip(&mut sizes) {
            // virtio-blk has 20 characters for it.
            let serial = format!("{name}-{}", media.len());
            disks += &format!(
                " --disk path=images/{name}/{},format={},adapter={name},serial={serial}",
                format.serial(),
                format.option()
            );
            media.push((kind, driver, serial, Medium::new(&own, format, size).unwrap()));
        }
    }
    let job = Job { disks: media.len(), seed: SEED, reads: 8, ..Job::default() };
    let script = format!("set -e\n{}{disks} > /out/console < /dev/null\nmv images /out\n", boot(job, ""));
    rig.run(script, &[("images", &images)], folder.path());
    let printed = fs::read(folder.path().join("console")).unwrap();
    let report = Report::parse(&String::from_utf8_lossy(&printed)).unwrap_or_else(|error| panic!("{error}"));
    let is_ours = |line: &&String| !NOT_OURS.iter().any(|known| line.contains(known));
    let complaints: Vec<_> = report.done.log.iter().filter(is_ours).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert_eq!(report.done.error, None);
    assert_eq!(report.disks.len(), media.len(), "{:#?}", report.disks);
    for (kind, driver, serial, medium) in &media {
        let disk = report.disks.iter().find(|disk| disk.serial == *serial);
        let disk = disk.unwrap_or_else(|| panic!("no {serial}: {:#?}", report.disks));
        assert_eq!(disk.driver, *driver, "{serial}");
        compare(medium, disk, *kind);
    }
}

/// Sectors of a disk that is stalled.
const SECTORS: u64 = 8 << 10;
/// Stall the disks when the guest says so, until its error handling has come to what it does last, to the disk on `pvscsi`; and 3 s more.
/// Everybody's wait ends with the virtual machine.
const STALL: &str = r#"
wait_for() { until grep -q "$1" /out/console; do kill -0 $pid || exit 1; sleep 0.2; done; }
wait_for '^"stalling"'
for disk in $disks; do dmsetup suspend --noflush --nolockfs $disk; done
echo >&3
wait_for 'SCSI Host reset'
sleep 3
for disk in $disks; do dmsetup resume $disk; done
wait $pid
"#;
/// What the guest's log has to show of the error handling, by driver: virtio's have none, but wait.
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
const OF_RESETS: [&str; 3] = [
    "Forced reset on cmd",
    "Issuing Reset from mptscsih_IssueTaskMgmt",
    // PVSCSI's ADAPTER_RESET blocks the virtual CPU until the disk has completed everything.
    "clocksource: Long readout interval",
];

/// All disks stop completing their I/O, as device-mapper targets do that are suspended. The guest's error handling aborts and resets; nothing
/// is lost, and no error reaches fio.
#[test]
fn stalled_disks_and_error_handling() {
    let rig = match Rig::prepare() {
        Ok(rig) => rig,
        Err(reason) => return println!("SKIP: stalled_disks_and_error_handling: {reason}"),
    };
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
         {}{attach} > /out/console < typed &\npid=$!\n{STALL}{keep}",
        boot(job, "ignore_loglevel")
    );
    rig.run(script, &[], folder.path());
    let printed = fs::read(folder.path().join("console")).unwrap();
    let printed = String::from_utf8_lossy(&printed);
    let report = Report::parse(&printed).unwrap_or_else(|error| panic!("{error}"));
    let missing: Vec<_> = HANDLED.iter().filter(|text| !printed.contains(*text)).collect();
    assert!(missing.is_empty(), "no {missing:?}:\n{printed}");
    let known = |line: &String| NOT_OURS.iter().chain(&OF_RESETS).any(|known| line.contains(known));
    let complaints: Vec<_> = report.done.log.iter().filter(|line| !known(line)).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert_eq!((report.done.error, report.disks.len()), (None, ADAPTERS.len()));
    for (_, name, driver) in ADAPTERS {
        let disk = report.disks.iter().find(|disk| disk.serial == name);
        let disk = disk.unwrap_or_else(|| panic!("no {name}: {:#?}", report.disks));
        assert_eq!((&*disk.driver, &disk.error), (driver, &None));
        let [fio] = &disk.fio[..] else { panic!("{name}: {:?}", disk.fio) };
        assert!(fio.writes > 0 && fio.reads > fio.writes && fio.bytes > disk.size, "{name}: {fio:?}");
        let content = fs::read(folder.path().join(name)).unwrap();
        assert_eq!(
            (content.len() as u64, disk.after_fio),
            (SECTORS * 512, Some(crc32c::crc32c(&content))),
            "{name}"
        );
    }
}
