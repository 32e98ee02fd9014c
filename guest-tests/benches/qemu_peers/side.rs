//! What is compared: an adapter of ours in a process of its own, and QEMU's, for the same driver of the guest.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use guest_linux::Qemu;
use paradisk_devices::{AdapterConfig, AdapterKind, Attachment};
use paradisk_disk_formats::{Disk, EngineKind, FormatName, OpenOptions};
use paradisk_serve::{Socket, vfio_user, vhost_user_blk};

use crate::image::Image;

/// In the environment of our server's process: adapter, then a format and a path for each disk.
pub(crate) const SERVE: &str = "PARADISK_BENCH_SERVE";
const TASKS: u32 = 256;
const START: Duration = Duration::from_secs(20);
/// The kernel lets go of files a moment after it has ended their last user.
const LET_GO: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adapter {
    VfioUser(AdapterKind),
    /// Ours beside the export of qemu-storage-daemon.
    VhostUserBlk,
}

impl Adapter {
    pub(crate) const ALL: [Self; 5] = [
        Self::VfioUser(AdapterKind::Pvscsi),
        Self::VfioUser(AdapterKind::LsiSas),
        Self::VfioUser(AdapterKind::VirtioBlk),
        Self::VfioUser(AdapterKind::VirtioScsi),
        Self::VhostUserBlk,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::VfioUser(kind) => kind.as_str(),
            Self::VhostUserBlk => "vhost-user-blk",
        }
    }

    /// Whether each disk is a device of its own.
    const fn is_disk(self) -> bool {
        matches!(self, Self::VfioUser(AdapterKind::VirtioBlk) | Self::VhostUserBlk)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Theirs,
}

/// A process that serves disks to QEMU, killed when dropped.
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        thread::sleep(LET_GO);
    }
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Ours => Self::Theirs,
            Self::Theirs => Self::Ours,
        }
    }

    /// The process beside QEMU, if there is to be one, once all its sockets are there.
    pub(crate) fn start(
        self,
        qemu: &Qemu,
        adapter: Adapter,
        images: &[Image],
        folder: &Path,
    ) -> Option<Server> {
        let mut command = match (self, adapter) {
            (Self::Ours, _) => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                let disk = |image: &Image| format!("\n{}\n{}", image.format.as_str(), image.path.display());
                let disks: String = images.iter().map(disk).collect();
                command.env(SERVE, format!("{}\n{}{disks}", adapter.name(), folder.display()));
                command
            }
            (Self::Theirs, Adapter::VhostUserBlk) => daemon(qemu, images, folder),
            (Self::Theirs, Adapter::VfioUser(_)) => return None,
        };
        let sockets: Vec<_> = sockets(adapter, images.len(), folder);
        sockets.iter().for_each(|socket| drop(std::fs::remove_file(socket)));
        let server = Server(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
        let start = Instant::now();
        // A client that comes and goes would end the daemon's export: only look for the files.
        while !sockets.iter().all(|socket| socket.exists()) {
            assert!(start.elapsed() < START, "no server");
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(50));
        Some(server)
    }

    /// QEMU's options.
    pub(crate) fn options(self, adapter: Adapter, images: &[Image], folder: &Path) -> Vec<String> {
        // Its threads are told apart by name.
        let mut options = vec!["-name".to_owned(), "guest,debug-threads=on".to_owned()];
        let mut add = |option: &str, value: String| options.extend([option.to_owned(), value]);
        let sockets = sockets(adapter, images.len(), folder);
        match (self, adapter) {
            (_, Adapter::VhostUserBlk) => {
                for (index, socket) in sockets.iter().enumerate() {
                    add("-chardev", format!("socket,id=c{index},path={}", socket.display()));
                    add("-device", format!("vhost-user-blk-pci,chardev=c{index},num-queues=1"));
                }
            }
            (Self::Ours, Adapter::VfioUser(_)) => {
                for socket in sockets {
                    let address = format!(r#"{{"type":"unix","path":"{}"}}"#, socket.display());
                    add("-device", format!(r#"{{"driver":"vfio-user-pci","socket":{address}}}"#));
                }
            }
            (Self::Theirs, Adapter::VfioUser(kind)) => {
                add("-object", "iothread,id=io0".to_owned());
                images
                    .iter()
                    .enumerate()
                    .flat_map(|(n, image)| nodes(n, image))
                    .for_each(|(option, value)| add(option, value));
                match kind {
                    AdapterKind::Pvscsi => add("-device", "pvscsi,id=hba".to_owned()),
                    AdapterKind::Lsi | AdapterKind::LsiSas => add("-device", "mptsas1068,id=hba".to_owned()),
                    AdapterKind::VirtioScsi => {
                        add("-device", "virtio-scsi-pci,id=hba,iothread=io0".to_owned())
                    }
                    // Virtio block devices are disks themselves.
                    _ => {}
                }
                for index in 0..images.len() {
                    add(
                        "-device",
                        match kind {
                            AdapterKind::VirtioBlk => format!("virtio-blk-pci,drive=d{index},iothread=io0"),
                            // The SAS adapter wants names for its ports.
                            _ => format!(
                                "scsi-hd,drive=d{index},bus=hba.0,scsi-id={index},wwn={}",
                                0x5000_c500_15ea_7100_u64 + index as u64
                            ),
                        },
                    );
                }
            }
        }
        options
    }
}

fn sockets(adapter: Adapter, disks: usize, folder: &Path) -> Vec<PathBuf> {
    let count = if adapter.is_disk() { disks } else { 1 };
    (0..count).map(|index| folder.join(format!("{index}.socket"))).collect()
}

/// QEMU's nodes `fN` and `dN` of an image: past the page cache, as ours.
fn nodes(index: usize, image: &Image) -> [(&'static str, String); 2] {
    let file = image.path.display();
    [
        ("-blockdev", format!("driver=file,node-name=f{index},filename={file},cache.direct=on,aio=native")),
        ("-blockdev", format!("driver={},node-name=d{index},file=f{index}", image.driver)),
    ]
}

fn daemon(qemu: &Qemu, images: &[Image], folder: &Path) -> Command {
    let mut command = qemu.program("qemu-storage-daemon");
    command.args(["--object", "iothread,id=io0"]);
    for (index, image) in images.iter().enumerate() {
        nodes(index, image).iter().for_each(|(option, value)| {
            command.args([&format!("-{option}"), value]);
        });
        let socket = folder.join(format!("{index}.socket"));
        let export = format!(
            "type=vhost-user-blk,id=e{index},node-name=d{index},addr.type=unix,addr.path={}",
            socket.display()
        );
        command.arg("--export").arg(export + ",writable=on,num-queues=1,iothread=io0");
    }
    command
}

/// Our server, in a process of its own, until that is killed.
pub(crate) fn serve(what: &str) {
    let mut words = what.lines();
    let (name, folder) = (words.next().unwrap(), PathBuf::from(words.next().unwrap()));
    let adapter = Adapter::ALL.into_iter().find(|adapter| adapter.name() == name).unwrap();
    let words: Vec<_> = words.collect();
    let disks: Vec<_> = words.chunks(2).map(|disk| open(disk[0], Path::new(disk[1]))).collect();
    let sockets = sockets(adapter, disks.len(), &folder);
    let (_stop, stopped) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        for (socket, disks) in sockets.iter().zip(disks.chunks(disks.len() / sockets.len())) {
            scope.spawn(|| one(adapter, socket, disks, &stopped));
        }
    });
}

fn one(adapter: Adapter, socket: &Path, disks: &[Arc<dyn Disk>], stopped: &UnixStream) {
    match adapter {
        Adapter::VfioUser(kind) => {
            let disks: Vec<_> = kind.targets().zip(disks.iter().map(attachment)).collect();
            let config = AdapterConfig { tasks: TASKS, ..AdapterConfig::new(kind) };
            let socket = Socket::listen(socket).unwrap();
            let listener = socket.listener().try_clone().unwrap();
            let server = vfio_user::Server::new(listener, |memory, interrupts| {
                Ok(paradisk_devices::build(memory, interrupts, config, &disks)?)
            });
            server.unwrap().run(stopped.as_fd(), |_| ()).unwrap();
        }
        Adapter::VhostUserBlk => {
            let server = vhost_user_blk::Server::new(Arc::clone(&disks[0]), Default::default()).unwrap();
            let socket = Socket::listen(socket).unwrap();
            server.run(socket.listener(), stopped.as_fd(), &|_| ()).unwrap();
        }
    }
}

fn open(format: &str, path: &Path) -> Arc<dyn Disk> {
    let format = FormatName::ALL.into_iter().find(|name| name.as_str() == format);
    OpenOptions { format, direct: Some(true), ..OpenOptions::new(path) }.open().unwrap()
}

fn attachment(disk: &Arc<dyn Disk>) -> Attachment {
    Attachment { disk: Arc::clone(disk), engine: EngineKind::default(), serial: None }
}
