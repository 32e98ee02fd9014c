//! Debian's kernel and QEMU, neither of which anybody here wrote, on disks that are served to them.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use devices::AdapterKind;
use guest_init::Job;
use guest_linux::StockKernel;
use guest_tests::linux::Report;
use serve::Socket;
use serve::vhost_user_blk::{Error, Options, Server};

use crate::Images;
use crate::matrix::{NOT_OURS, SEED, compare};
use crate::medium::{Format, Medium};

const QEMU: &str = "qemu-system-x86_64";
/// A boot takes some seconds, more on a busy host; a few freeze in QEMU for a reason not found, hence another try.
const TIMEOUT: Duration = Duration::from_secs(150);
const TRIES: u32 = 2;
const QUEUES: u16 = 2;
const BETWEEN_RESTARTS: Duration = Duration::from_millis(400);
/// Bytes of console in a failure.
const LAST_WORDS: usize = 4096;

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
    let images = match stock() {
        Ok(images) => images,
        Err(reason) => return println!("SKIP: {test}: {reason}"),
    };
    for last in (0..TRIES).map(|n| n + 1 == TRIES) {
        let folder = tempfile::tempdir().unwrap();
        let formats = [Format::Raw, Format::VhdDifferencing, Format::VhdxDifferencing, Format::Vhdx4096];
        let media: Vec<_> = formats
            .into_iter()
            .zip(0..)
            .map(|(format, index)| {
                Medium::new(folder.path(), format, (4 << 20) + (index + 1) * (72 << 10)).unwrap()
            })
            .collect();
        let mut served: Vec<_> = media.iter().map(|medium| Served::new(folder.path(), medium)).collect();
        let console = folder.path().join("console");
        let mut qemu = start(&images, folder.path(), &media, &console);
        let mut restarts = Restarts::default();
        let ended = qemu.ends_within(TIMEOUT, || {
            if restart {
                restarts.perhaps(&console, &mut served, |index| Served::new(folder.path(), &media[index]));
            }
        });
        drop(qemu);
        let text = read(&console);
        // All is closed before the images are looked at.
        served.into_iter().for_each(|served| served.stop().unwrap());
        if ended {
            assert_eq!(restart, restarts.count > 0, "{} restarts", restarts.count);
            return check(&Report::parse(&text).unwrap(), &media);
        }
        let start = text.len().saturating_sub(LAST_WORDS);
        assert!(!last, "it does not end; the end of its console:\n{}", text.get(start..).unwrap_or(&text));
        println!("{test}: the guest froze, once more");
    }
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

/// A disk that is served until this is stopped.
struct Served {
    stop: UnixStream,
    thread: JoinHandle<Result<(), Error>>,
}

impl Served {
    fn new(folder: &Path, medium: &Medium) -> Self {
        let serial = medium.format.serial().to_owned();
        let socket = Socket::listen(&folder.join(format!("{serial}.socket"))).unwrap();
        let server =
            Server::new(medium.open(), Options { queues: QUEUES, serial, ..Options::default() }).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = thread::spawn(move || {
            server.run(socket.listener(), stopped.as_fd(), &|event| println!("{event:?}"))
        });
        Self { stop, thread }
    }

    fn stop(self) -> Result<(), Error> {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}

/// Stops a server now and then, and starts another in its place.
#[derive(Default)]
struct Restarts {
    count: usize,
    last: Option<Instant>,
}

impl Restarts {
    /// From the time on when the guest's kernel has found its disks.
    fn perhaps(&mut self, console: &Path, served: &mut Vec<Served>, start: impl Fn(usize) -> Served) {
        let due = match self.last {
            Some(last) => last.elapsed() > BETWEEN_RESTARTS,
            None => read(console).contains("virtio_blk virtio"),
        };
        if due {
            let index = self.count % served.len();
            served.remove(index).stop().unwrap();
            served.insert(index, start(index));
            self.count += 1;
            self.last = Some(Instant::now());
        }
    }
}

fn read(console: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(console).unwrap()).into_owned()
}

fn start(images: &Images, folder: &Path, media: &[Medium], console: &Path) -> Qemu {
    let job = Job { disks: media.len(), seed: SEED, reads: 8, ..Job::default() };
    let mut command = Command::new(QEMU);
    command.args([
        "-machine",
        "q35,memory-backend=ram",
        "-accel",
        "tcg",
        "-cpu",
        "max",
        "-smp",
        "2",
        "-m",
        "256M",
    ]);
    command.args(["-object", "memory-backend-memfd,id=ram,size=256M,share=on"]);
    command.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    command.arg("-kernel").arg(&images.kernel).arg("-initrd").arg(&images.initramfs);
    command.args(["-append", &format!("console=ttyS0 panic=-1 {job}")]);
    for medium in media {
        let serial = medium.format.serial();
        let socket = folder.join(format!("{serial}.socket"));
        command.args(["-chardev", &format!("socket,id={serial},reconnect=1,path={}", socket.display())]);
        command.args(["-device", &format!("vhost-user-blk-pci,chardev={serial},num-queues={QUEUES}")]);
    }
    let output = File::create(console).unwrap();
    command.stdin(Stdio::null()).stderr(output.try_clone().unwrap()).stdout(output);
    Qemu(command.spawn().unwrap())
}

/// Killed when dropped.
struct Qemu(Child);

impl Qemu {
    /// Whether it ends in time; `meanwhile` is called again and again.
    fn ends_within(&mut self, time: Duration, mut meanwhile: impl FnMut()) -> bool {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if self.0.try_wait().unwrap().is_some() {
                return true;
            }
            meanwhile();
            thread::sleep(Duration::from_millis(50));
        }
        false
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
