//! NBD over a Unix socket, with a client of the tests' own.

mod client;
mod handshake;
mod hostile;
mod requests;
#[path = "../common/within.rs"]
mod within;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use paradisk_disk_formats::{Disk, EngineKind, RamDisk, SectorSize};
use paradisk_serve::Socket;
use paradisk_serve::nbd::{Export, Exports, Server};
use sandbox::{Program, Sandbox};
use within::within;

const MIB: u64 = 1 << 20;
/// Longer than a test may take.
const NEVER: Duration = Duration::from_secs(10_000);

/// A server, and the folder of its socket.
pub(crate) struct Served {
    server: Option<Server>,
    folder: tempfile::TempDir,
}

impl Served {
    /// A server of these disks, by name.
    pub(crate) fn disks(disks: &[(&str, Arc<dyn Disk>)]) -> Self {
        Self::with(disks, EngineKind::default())
    }

    pub(crate) fn with(disks: &[(&str, Arc<dyn Disk>)], engine: EngineKind) -> Self {
        Self::waiting(disks, engine, NEVER)
    }

    /// With a time for the last replies when the server stops.
    pub(crate) fn waiting(disks: &[(&str, Arc<dyn Disk>)], engine: EngineKind, last: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let exports = disks.iter().map(|(name, disk)| Export {
            name: (*name).to_owned(),
            description: "a disk".to_owned(),
            disk: Arc::clone(disk),
            engine,
        });
        let exports = Exports::new(exports.collect()).unwrap().with_final_replies_timeout(last);
        let socket = Socket::listen(&folder.path().join("socket")).unwrap();
        // The server's threads have the system-call filters of `paradisk serve nbd`. This thread, the client, has none.
        drop(Sandbox::of_threads(Program::Nbd).unwrap());
        let server = Server::start(socket, exports).unwrap();
        Self { server: Some(server), folder }
    }

    /// A server of a RAM disk of 64 MiB.
    pub(crate) fn ram() -> Self {
        Self::disks(&[("", ram(64 * MIB))])
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn client(&self, structured: bool) -> client::Client {
        client::Client::of(&self.socket(), "", structured)
    }

    /// Stop the server. No client may make it wait for the time for last replies.
    pub(crate) fn stop(&mut self) {
        let server = self.server.take().unwrap();
        within("stop", move || server.stop());
    }
}

pub(crate) fn ram(size: u64) -> Arc<dyn Disk> {
    Arc::new(RamDisk::new(size, SectorSize::B512).unwrap())
}

/// A raw file that reads as zeros.
pub(crate) fn sparse(path: &Path, size: u64) {
    std::fs::File::create(path).unwrap().set_len(size).unwrap();
}
