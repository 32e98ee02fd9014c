//! Debian's kernel in Debian's QEMU, on disks that `paradisk serve vhost-user-blk` serves.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use guest_init::{Job, Line};
use guest_linux::StockKernel;
use guest_tests::linux::{Report, System};
use guest_tests::qemu::Vm;
use paradisk_devices::AdapterKind;

use crate::matrix::{NOT_OURS, SEED, compare};
use crate::medium::{Format, Medium};
use crate::served::{QUEUES, Served};
use crate::{Images, needed};

const QEMU: &str = "qemu-system-x86_64";
/// For a guest that does not end. It takes half a minute, more on a busy host.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Bytes of guest memory.
const MEMORY: u64 = 256 << 20;

#[test]
fn vhost_user_blk_in_qemu() {
    vhost_user_blk("vhost_user_blk_in_qemu", false);
}

/// QEMU connects again to a server that was stopped, and the guest sees nothing of it.
#[test]
fn vhost_user_blk_servers_come_and_go() {
    vhost_user_blk("vhost_user_blk_servers_come_and_go", true);
}

fn vhost_user_blk(test: &str, restart: bool) {
    let Some(images) = needed(test, stock()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let formats = [Format::Raw, Format::VhdDifferencing, Format::VhdxDifferencing, Format::Vhdx4096];
    let media: Vec<_> = formats
        .into_iter()
        .zip(0..)
        .map(|(format, index)| {
            Medium::new(folder.path(), format, (4 << 20) + (index + 1) * (72 << 10)).unwrap()
        })
        .collect();
    let serve = |medium: &Medium| Served::vhost_user_blk(&socket(folder.path(), medium), medium);
    let mut served: Vec<_> = media.iter().map(serve).collect();
    let job = Job { disks: media.len(), seed: SEED, reads: 8, ..Job::default() };
    let system = System { memory: MEMORY, ..images.system(job.to_string()) };
    let monitor = folder.path().join("monitor");
    let mut devices = devices(folder.path(), &media);
    devices.extend(["-qmp".to_owned(), format!("unix:{},server=on,wait=off", monitor.display())]);
    let console = folder.path().join("console");
    let vm = Vm::boot(Command::new(QEMU), "q35", &system, &devices, console).unwrap();
    let mut restarts = Restarts { count: 0, monitor };
    let printed = vm.output_within(TIMEOUT, |vm| {
        if restart {
            restarts.perhaps(vm, &mut served, |index| serve(&media[index]));
        }
    });
    let printed = printed.unwrap();
    // All is closed before the images are looked at.
    served.into_iter().for_each(|served| served.stop().unwrap());
    println!("{} restarts", restarts.count);
    assert_eq!(restart, restarts.count > 0);
    check(&Report::parse(&printed).unwrap(), &media);
}

fn check(report: &Report, media: &[Medium]) {
    let ours = |line: &&String| !NOT_OURS.iter().any(|known| line.contains(known)) && line.contains("virtio");
    let complaints: Vec<_> = report.done.log.iter().filter(ours).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert_eq!(report.done.error, None);
    for medium in media {
        let serial = medium.format.serial();
        let disk = report.disks.iter().find(|disk| disk.serial == serial);
        let disk = disk.unwrap_or_else(|| panic!("no {serial}: {:#?}", report.disks));
        assert_eq!(disk.driver, "virtio_blk", "{serial}");
        compare(medium, disk, AdapterKind::VirtioBlk);
    }
}

fn stock() -> Result<Images, String> {
    let version = Command::new(QEMU).arg("--version").stdout(Stdio::null()).status();
    version.map_err(|error| format!("{QEMU}: {error} (package qemu-system-x86)"))?;
    let images = || {
        let stock = StockKernel::newest()?;
        Ok(Images { kernel: stock.image()?, initramfs: guest_linux::initramfs(Some(&stock))? })
    };
    images().map_err(|error: guest_linux::Error| error.to_string())
}

/// Stops a server, and starts another in its place, one after the other.
struct Restarts {
    count: usize,
    /// The socket of QEMU's monitor.
    monitor: PathBuf,
}

impl Restarts {
    /// Restart the next server, if it is time: QEMU 7.2 abandons a device whose server disconnects while QEMU starts the device. It does so
    /// when the guest's driver asks for it, which is after the kernel's message about the disk, and whenever it has connected again. So
    /// restarts begin when the guest has verified its first disk. Then the last server that was started has to have its queues started, and
    /// QEMU has to have ended that: it answers its monitor.
    fn perhaps(&mut self, vm: &Vm, served: &mut Vec<Served>, start: impl Fn(usize) -> Served) {
        let is_verified = || Line::all(&vm.printed().unwrap()).any(|line| matches!(line, Line::Disk(_)));
        if !served.iter().all(Served::has_started_queues) || (self.count == 0 && !is_verified()) {
            return;
        }
        // It does not if the guest has just powered off.
        if answers(&self.monitor).is_ok() {
            // Start with the second disk: the first has been verified, and has no more I/O.
            let index = (self.count + 1) % served.len();
            served.remove(index).stop().unwrap();
            served.insert(index, start(index));
            self.count += 1;
        }
    }
}

/// QEMU's main loop answers a question on its monitor, so it has ended what it did before.
fn answers(monitor: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(monitor)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    stream.write_all(b"{\"execute\": \"qmp_capabilities\"}\n{\"execute\": \"query-status\"}\n")?;
    let answered = lines.any(|line| line.is_ok_and(|line| line.contains("\"status\"")));
    if answered { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}

/// QEMU's options for a device in front of each disk.
fn devices(folder: &Path, media: &[Medium]) -> Vec<String> {
    let device = |medium: &Medium| {
        let (name, socket) = (medium.format.serial(), socket(folder, medium));
        [
            "-chardev".to_owned(),
            format!("socket,id={name},reconnect=1,path={}", socket.display()),
            "-device".to_owned(),
            format!("vhost-user-blk-pci,chardev={name},num-queues={QUEUES}"),
        ]
    };
    media.iter().flat_map(device).collect()
}

fn socket(folder: &Path, medium: &Medium) -> PathBuf {
    folder.join(format!("{}.socket", medium.format.serial()))
}
