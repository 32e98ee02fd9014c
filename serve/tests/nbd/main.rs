//! NBD over a Unix socket, with a client of the tests' own.

mod client;
mod handshake;
mod hostile;
mod requests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paradisk_disk_formats::{Disk, EngineKind, RamDisk, SectorSize};
use paradisk_serve::Socket;
use paradisk_serve::nbd::{Export, Exports, Server};
use sandbox::{Program, Sandbox};

const MIB: u64 = 1 << 20;

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
        let folder = tempfile::tempdir().unwrap();
        let exports = disks.iter().map(|(name, disk)| Export {
            name: (*name).to_owned(),
            description: "a disk".to_owned(),
            disk: Arc::clone(disk),
            engine,
        });
        let socket = Socket::listen(&folder.path().join("socket")).unwrap();
        // The server's threads have the system-call filters of `paradisk serve nbd`. This thread, the client, has none.
        drop(Sandbox::of_threads(Program::Nbd).unwrap());
        let server = Server::start(socket, Exports::new(exports.collect()).unwrap()).unwrap();
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

    pub(crate) fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }
}

pub(crate) fn ram(size: u64) -> Arc<dyn Disk> {
    Arc::new(RamDisk::new(size, SectorSize::B512).unwrap())
}

/// A raw file that reads as zeros.
pub(crate) fn sparse(path: &Path, size: u64) {
    std::fs::File::create(path).unwrap().set_len(size).unwrap();
}
