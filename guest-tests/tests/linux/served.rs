//! Disks that `paradisk serve` serves to QEMU, in its sandbox.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use std::{slice, thread};

use guest_linux::KvmHost;
use paradisk_devices::{AdapterKind, Attachment};
use paradisk_disk_formats::EngineKind;

use crate::medium::Medium;

/// Queues of virtio devices.
pub(crate) const QUEUES: u16 = 2;

/// A server that runs until it is stopped.
pub(crate) struct Served {
    server: Child,
    control: PathBuf,
    /// The server's standard error.
    log: PathBuf,
    /// Bytes of its disks.
    sizes: Vec<u64>,
}

impl Served {
    pub(crate) fn vhost_user_blk(socket: &Path, medium: &Medium) -> Self {
        let mut command = paradisk();
        // For `has_started_queues`.
        command.args(["--log", "info", "serve", "vhost-user-blk", "--queues", &QUEUES.to_string()]);
        Self::start(command, socket, slice::from_ref(medium))
    }

    /// An adapter as a PCI function, with a disk at each of its first targets.
    pub(crate) fn vfio_user(socket: &Path, kind: AdapterKind, media: &[Medium]) -> Self {
        let queues = QUEUES.min(kind.max_queues()).to_string();
        let mut command = paradisk();
        command.args(["serve", "vfio-user", "--adapter", &kind.to_string(), "--queues", &queues]);
        Self::start(command, socket, media)
    }

    fn start(mut command: Command, socket: &Path, media: &[Medium]) -> Self {
        let [control, log] = ["control", "log"].map(|extension| socket.with_extension(extension));
        command.arg("--socket").arg(socket).arg("--control").arg(&control);
        command.args(media.iter().flat_map(|medium| ["--disk".to_owned(), medium.spec()]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let server = command.spawn().unwrap();
        let sizes = media.iter().map(|medium| medium.size).collect();
        let mut served = Self { server, control, log, sizes };
        // Said when QEMU can connect.
        while !served.said().lines().any(|line| line.starts_with("serving ")) {
            assert!(served.server.try_wait().unwrap().is_none(), "{}", served.said());
            thread::sleep(Duration::from_millis(5));
        }
        served
    }

    /// Whether QEMU has connected, and started all queues.
    pub(crate) fn has_started_queues(&self) -> bool {
        let log = self.said();
        (0..QUEUES).all(|queue| log.contains(&format!("vhost-user queue started queue={queue}")))
    }

    /// Make its disks so many bytes larger.
    pub(crate) fn grow(&self, more: u64) {
        for (number, size) in self.sizes.iter().enumerate() {
            self.ctl(&["resize", &format!("disk{number}"), &(size + more).to_string()]).unwrap();
        }
    }

    /// Stop it. Its disks are closed when this returns. The server fails if a thread has made a system call that its filter refuses.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        let stopped = self.ctl(&["stop"]);
        if stopped.is_err() {
            // Has no effect on a server that has ended.
            let _ = self.server.kill();
        }
        let status = self.server.wait().unwrap();
        if status.success() { stopped } else { Err(format!("{status}: {}", self.said())) }
    }

    fn ctl(&self, command: &[&str]) -> Result<(), String> {
        let output = paradisk().arg("ctl").arg(&self.control).args(command).output().unwrap();
        let error = || format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(()) } else { Err(error()) }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The command line.
fn paradisk() -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    Command::new(PROGRAM.get_or_init(|| KvmHost::paradisk().unwrap_or_else(|error| panic!("{error}"))))
}

/// QEMU's options for an adapter that is served at `socket`.
pub(crate) fn vfio_user_options(socket: &Path) -> Vec<String> {
    let socket = socket.display();
    let device = format!(r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{socket}"}}}}"#);
    vec!["-device".to_owned(), device]
}

/// The medium as a disk whose serial number tells its format.
pub(crate) fn attachment(medium: &Medium) -> Attachment {
    Attachment {
        disk: medium.open(),
        engine: EngineKind::default(),
        serial: Some(medium.format.serial().to_owned()),
    }
}
