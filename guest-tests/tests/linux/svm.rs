//! Debian's kernels on paradisk's machine, on a KVM that runs kernels natively: L1 is a Linux host in a QEMU that emulates AMD SVM, and
//! paradisk runs there. The machine that runs the tests needs no KVM.

mod changes;
mod channels;
mod formats;
mod iscsi;
mod libiscsi;
mod older_qemu;
mod roots;
mod stalls;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guest_init::Job;
use guest_linux::{Clock, Error, HostJob, KvmHost, StockKernel, initramfs_with_fio};
use guest_tests::linux::{Report, command_line};
use paradisk_devices::AdapterKind;

use crate::matrix::NOT_OURS;

/// For L1 that does not end. A script takes minutes, and several times that where others use the processors.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Before a script. L2's memory is in huge pages: the guest boots in two thirds of the time, as QEMU emulates fewer exits. If the script does
/// not end in time, L1's console then has the end of what L2 has printed.
const PREAMBLE: &str = r#"
echo always > /sys/kernel/mm/transparent_hugepage/shmem_enabled
(sleep 3500; for file in /out/console* /out/log*; do echo "== $file"; tail -c 1500 $file; done) 2> /dev/null &
"#;
/// Bytes of L1's memory.
const MEMORY: u64 = 3 << 30;
/// Each with the name that the command line has for it, and the guest's driver.
const ADAPTERS: [(AdapterKind, &str, &str); 5] = [
    (AdapterKind::Pvscsi, "pvscsi", "vmw_pvscsi"),
    (AdapterKind::Lsi, "lsi", "mptspi"),
    (AdapterKind::LsiSas, "lsi-sas", "mptsas"),
    (AdapterKind::VirtioScsi, "virtio-scsi", "virtio_scsi"),
    (AdapterKind::VirtioBlk, "virtio-blk", "virtio_blk"),
];

/// Adapters that some tests leave out, because their disks do not come and go or because their drivers' error handling differs.
const OTHERS: [(AdapterKind, &str, &str); 3] = [
    (AdapterKind::Ide, "ide", "ata_piix"),
    (AdapterKind::BusLogic, "buslogic", "BusLogic"),
    (AdapterKind::Storvsc, "storvsc", "hv_storvsc"),
];

/// L1, and what every job on it needs: files with their names there.
struct Rig {
    host: KvmHost,
    files: Vec<(String, PathBuf)>,
}

impl Rig {
    /// With the files of [`KvmHost::stock_guest`].
    fn prepare() -> Result<Self, Error> {
        Ok(Self { host: KvmHost::prepare()?, files: KvmHost::stock_guest()? })
    }

    /// And with a newer kernel: `vmlinuz-newer`, `initramfs-newer`.
    fn with_newer_kernel() -> Result<Self, Error> {
        let mut rig = Self::prepare()?;
        let newer = StockKernel::newer()?;
        rig.files.push(("vmlinuz-newer".to_owned(), newer.image()?));
        rig.files.push(("initramfs-newer".to_owned(), initramfs_with_fio(&newer)?));
        Ok(rig)
    }

    /// Run a script beside these files; its results are put into `folder`. If the script does not end in time, what L2 has printed is in the
    /// test's output.
    fn run(&self, script: String, files: &[(&str, &Path)], folder: &Path) -> String {
        self.run_by(Clock::Host, script, files, folder)
    }

    /// The same by this clock. With [`Clock::Instructions`], time limits of L2 do not depend on the load of this machine, but the script takes
    /// three times as long.
    fn run_by(&self, clock: Clock, script: String, files: &[(&str, &Path)], folder: &Path) -> String {
        let own = files.iter().map(|(name, path)| ((*name).to_owned(), path.to_path_buf()));
        let files = self.files.iter().cloned().chain(own).collect();
        let disks = Vec::new();
        let script = format!("{PREAMBLE}{script}");
        let job = HostJob { script, files, disks, cpus: 1, clock, memory: MEMORY, timeout: TIMEOUT };
        let start = Instant::now();
        let ended = self.host.run(&job, folder).unwrap_or_else(|error| panic!("{error}"));
        println!("L1 ran for {:.0} s", start.elapsed().as_secs_f64());
        // Where scripts let L2 print.
        let guest = fs::read(folder.join("console")).unwrap_or_default();
        assert_eq!(ended.status, 0, "{}\n{}", ended.console, String::from_utf8_lossy(&guest));
        ended.console
    }
}

/// `paradisk run` for a guest that does `job`, up to its disks, with more words for its kernel.
fn boot(job: Job, words: &str) -> String {
    boot_kernel("", 1, job, words)
}

/// The same with `cpus` virtual CPUs, and the kernel whose files' names end with `which`.
fn boot_kernel(which: &str, cpus: u32, job: Job, words: &str) -> String {
    // Mitigations are off: for the CPU model that QEMU reports, the kernel would complain about microcode that QEMU does not have.
    // The kernel would also complain of time in which this machine did not run it.
    // Quiet, unless `ignore_loglevel` is among the words: each character on the console is two exits of L2 to L1's user space. The report has
    // what the kernel complained of.
    let cmdline = format!(
        "mitigations=off nowatchdog rcupdate.rcu_cpu_stall_suppress=1 quiet {words} {}",
        command_line(job)
    );
    format!(
        "./paradisk run --kernel vmlinuz{which} --initrd initramfs{which} --memory 256M --cpus {cpus} --cmdline '{cmdline}'"
    )
}

/// What a guest printed to a file in `folder`: all of it, and the report in it.
fn report(folder: &Path, console: &str) -> (String, Report) {
    let printed = fs::read(folder.join(console)).unwrap();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let report = Report::parse(&printed).unwrap_or_else(|error| panic!("{console}: {error}"));
    (printed, report)
}

/// That the guest's job came to its end, and its kernel complained of nothing but what is `known`.
fn assert_no_complaints(report: &Report, known: &[&str]) {
    let is_known = |line: &&String| NOT_OURS.iter().chain(known).any(|known| line.contains(known));
    let complaints: Vec<_> = report.done.log.iter().filter(|line| !is_known(line)).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert_eq!(report.done.error, None);
}
