//! Disks that are served to QEMU, each server on a thread of this process.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use paradisk_devices::{AdapterConfig, AdapterKind, Attachment};
use paradisk_disk_formats::{Disk, EngineKind};
use paradisk_serve::{Socket, vfio_user, vhost_user_blk};

use crate::medium::Medium;

/// Queues of virtio devices.
pub(crate) const QUEUES: u16 = 2;
const TASKS: u32 = 256;

/// A server that runs until it is stopped.
pub(crate) struct Served {
    /// Makes its disks so many bytes larger.
    pub(crate) grow: Box<dyn Fn(u64)>,
    stop: UnixStream,
    thread: JoinHandle<Result<(), String>>,
}

impl Served {
    pub(crate) fn vhost_user_blk(path: &Path, medium: &Medium) -> Self {
        let serial = medium.format.serial().to_owned();
        let socket = Socket::listen(path).unwrap();
        let options = vhost_user_blk::Options { queues: QUEUES, serial, ..Default::default() };
        let disk = medium.open();
        let server = Arc::new(vhost_user_blk::Server::new(Arc::clone(&disk), options).unwrap());
        let refreshed = Arc::clone(&server);
        Self::start(growing(vec![disk], move || refreshed.refresh()), move |stopped| {
            server.run(socket.listener(), stopped.as_fd(), &|event| println!("{event:?}")).map_err(text)
        })
    }

    /// An adapter as a PCI function, with a disk at each of its first targets.
    pub(crate) fn vfio_user(path: &Path, kind: AdapterKind, media: &[Medium]) -> Self {
        let socket = Socket::listen(path).unwrap();
        let disks: Vec<_> = kind.targets().zip(media.iter().map(attachment)).collect();
        let config = AdapterConfig { tasks: TASKS, queues: QUEUES, ..AdapterConfig::new(kind) };
        let listener = socket.listener().try_clone().unwrap();
        let mut server = vfio_user::Server::new(listener, |memory, interrupts| {
            Ok(paradisk_devices::build(memory, interrupts, config, &disks)?)
        })
        .unwrap();
        let handle = server.handle();
        let disks = disks.into_iter().map(|(_, attachment)| attachment.disk).collect();
        Self::start(growing(disks, move || handle.refresh()), move |stopped| {
            let _socket = socket;
            server.run(stopped.as_fd(), |note| println!("{kind}: {note:?}")).map_err(text)
        })
    }

    fn start(
        grow: Box<dyn Fn(u64)>,
        run: impl FnOnce(UnixStream) -> Result<(), String> + Send + 'static,
    ) -> Self {
        let (stop, stopped) = UnixStream::pair().unwrap();
        Self { grow, stop, thread: thread::spawn(move || run(stopped)) }
    }

    pub(crate) fn stop(self) -> Result<(), String> {
        // Disks are closed with all who have them.
        drop((self.stop, self.grow));
        self.thread.join().unwrap()
    }
}

/// QEMU's options for an adapter that is served at `socket`.
pub(crate) fn vfio_user_options(socket: &Path) -> Vec<String> {
    let socket = socket.display();
    let device = format!(r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{socket}"}}}}"#);
    vec!["-device".to_owned(), device]
}

fn growing(disks: Vec<Arc<dyn Disk>>, refresh: impl Fn() + 'static) -> Box<dyn Fn(u64)> {
    Box::new(move |more| {
        for disk in &disks {
            disk.grow(disk.info().capacity + more).unwrap();
        }
        refresh();
    })
}

/// The medium as a disk whose serial number tells its format.
pub(crate) fn attachment(medium: &Medium) -> Attachment {
    Attachment {
        disk: medium.open(),
        engine: EngineKind::default(),
        serial: Some(medium.format.serial().to_owned()),
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}
