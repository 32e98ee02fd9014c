//! Debian's kernel on paradisk's machine, on a KVM that runs kernels natively: L1 is a Linux host in a QEMU that emulates AMD SVM, and
//! paradisk runs there. The machine that runs the tests needs no KVM.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use devices::AdapterKind;
use guest_init::Job;
use guest_linux::{HostJob, KvmHost, StockKernel};
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
        let (host, stock) = (KvmHost::prepare()?, StockKernel::newest()?);
        let files = [
            ("paradisk", KvmHost::paradisk()?),
            ("vmlinuz", stock.image()?),
            ("initramfs", guest_linux::initramfs_with_fio(&stock)?),
        ];
        Ok(Self { host, files: files.map(|(name, path)| (name.to_owned(), path)).into() })
    }

    /// Run a script beside these files; its results are put into `folder`.
    fn run(&self, script: String, files: &[(&str, &Path)], folder: &Path) -> String {
        let own = files.iter().map(|(name, path)| ((*name).to_owned(), path.to_path_buf()));
        let files = self.files.iter().cloned().chain(own).collect();
        let job = HostJob { script, files, cpus: 1, memory: MEMORY, timeout: TIMEOUT };
        let start = Instant::now();
        let ended = self.host.run(&job, folder).unwrap_or_else(|error| panic!("{error}"));
        println!("L1 ran for {:.0} s", start.elapsed().as_secs_f64());
        assert_eq!(ended.status, 0, "{}", ended.console);
        ended.console
    }
}

/// `paradisk run` for a guest that does `job`, up to its disks.
fn boot(job: Job) -> String {
    // Mitigations of faults of the CPU that QEMU names: the kernel complains of microcode that QEMU does not have.
    let cmdline = format!("mitigations=off {}", command_line(job));
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
    let script = format!("set -e\n{}{disks} > /out/console < /dev/null\nmv images /out\n", boot(job));
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
