//! Exports: disks by name.

use std::sync::Arc;
use std::time::Duration;

use paradisk_disk_formats::{Disk, EngineKind};

use super::gate::WriteGate;
use super::pool::Pool;
use super::spec::{NBD_MAX_STRING, TransmissionFlags};
use super::tls::Tls;

/// Bytes for requests in flight of all connections together.
const MEMORY: usize = 256 << 20;
/// How long a client that neither sends nor receives may hold memory of the pool while other connections wait for it.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to receive the last replies when the server stops, once the disk has completed its requests.
const FINAL_REPLIES_TIMEOUT: Duration = Duration::from_secs(5);

/// A disk with a name.
#[derive(Clone)]
pub struct Export {
    /// The name that clients request: UTF-8 without NUL, 4,096 bytes at the most.
    pub name: String,
    /// For people; the same limits.
    pub description: String,
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Which I/O engine transfers its data.
    pub engine: EngineKind,
}

impl Export {
    /// Transmission flags: the commands that this export takes.
    pub(super) fn flags(&self, structured: bool) -> TransmissionFlags {
        let info = self.disk.info();
        // Queues of one disk share its files and its metadata: a flush of one covers all.
        let mut flags =
            TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH | TransmissionFlags::CAN_MULTI_CONN;
        flags.set(TransmissionFlags::READ_ONLY, info.read_only);
        flags.set(TransmissionFlags::SEND_FUA, !info.read_only);
        flags.set(TransmissionFlags::SEND_WRITE_ZEROES, !info.read_only);
        flags.set(TransmissionFlags::SEND_TRIM, !info.read_only && info.discard.is_some());
        flags.set(TransmissionFlags::SEND_DF, structured);
        flags
    }
}

/// The exports of a server.
#[derive(Clone)]
pub struct Exports {
    all: Vec<Export>,
    tls: Option<Tls>,
    pool: Arc<Pool>,
    /// By the number of the export; those of one disk are the same.
    gates: Vec<Arc<WriteGate>>,
    final_replies_timeout: Duration,
}

/// Why exports cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportsError {
    /// There is none.
    #[error("no export; expected one at least")]
    None,
    /// A name or a description that the protocol cannot carry.
    #[error("export {0:?}: name or description is longer than 4,096 bytes or has a NUL")]
    Text(String),
    /// Two exports have one name.
    #[error("two exports are called {0:?}")]
    Twice(String),
}

impl Exports {
    /// Serve these exports. Clients that name none get the first. Clients may write parts of sectors: so that no such write undoes another
    /// one, writers of a disk are to be clients of one `Exports` or of its clones.
    ///
    /// # Errors
    /// [`ExportsError`].
    pub fn new(exports: Vec<Export>) -> Result<Self, ExportsError> {
        if exports.is_empty() {
            return Err(ExportsError::None);
        }
        for (index, export) in exports.iter().enumerate() {
            let fits = |text: &str| text.len() <= NBD_MAX_STRING && !text.contains('\0');
            if !fits(&export.name) || !fits(&export.description) {
                return Err(ExportsError::Text(export.name.chars().take(64).collect()));
            }
            if exports.iter().take(index).any(|other| other.name == export.name) {
                return Err(ExportsError::Twice(export.name.clone()));
            }
        }
        let mut gates: Vec<Arc<WriteGate>> = Vec::new();
        for export in &exports {
            let same = |other: &Export| Arc::ptr_eq(&other.disk, &export.disk);
            let gate = exports.iter().position(same).and_then(|place| gates.get(place)).map(Arc::clone);
            gates.push(gate.unwrap_or_default());
        }
        Ok(Self {
            all: exports,
            gates,
            tls: None,
            pool: Arc::new(Pool::new(MEMORY, STALL_TIMEOUT)),
            final_replies_timeout: FINAL_REPLIES_TIMEOUT,
        })
    }

    /// The same exports, only for clients that use TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// The same exports, with a memory budget of `bytes` for the requests in flight of all connections together. Each connection has 1 MiB
    /// besides. The budget is at least 32 MiB, the largest request; the default is 256 MiB. When it is exhausted, requests wait in the
    /// order in which they were refused. While requests wait, a client that holds some of the budget and transfers less than 8 MiB in 30 s
    /// is disconnected.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Self {
        self.with_pool(Pool::new(bytes, STALL_TIMEOUT))
    }

    /// The same exports. When the server stops, and the disk has completed the requests that were in flight, a client has this much time to
    /// receive the replies, then it is disconnected; the default is 5 s.
    #[must_use]
    pub fn with_final_replies_timeout(self, timeout: Duration) -> Self {
        Self { final_replies_timeout: timeout, ..self }
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[Export] {
        &self.all
    }

    pub(super) fn with_pool(self, pool: Pool) -> Self {
        Self { pool: Arc::new(pool), ..self }
    }

    pub(super) fn final_replies_timeout(&self) -> Duration {
        self.final_replies_timeout
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The export of this number, and the gate of its disk.
    pub(super) fn get(&self, number: usize) -> Option<(&Export, &WriteGate)> {
        Some((self.all.get(number)?, self.gates.get(number)?))
    }

    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The export of this name, and its number. For an empty name that no export has: the first export.
    pub(super) fn find(&self, name: &[u8]) -> Option<(usize, &Export)> {
        let mut all = self.all.iter().enumerate();
        let named = all.find(|(_, export)| export.name.as_bytes() == name);
        named.or_else(|| self.all.first().filter(|_| name.is_empty()).map(|first| (0, first)))
    }
}

#[cfg(test)]
mod tests {
    use paradisk_disk_formats::{NullDisk, SectorSize};

    use super::*;

    fn export(name: &str) -> Export {
        Export {
            name: name.into(),
            description: String::new(),
            disk: Arc::new(NullDisk::new(1 << 20, SectorSize::B512).unwrap()),
            engine: EngineKind::default(),
        }
    }

    #[test]
    fn names_are_told_apart_and_the_first_is_the_default() {
        assert_eq!(Exports::new(vec![]).err(), Some(ExportsError::None));
        assert!(matches!(Exports::new(vec![export("a"), export("a")]), Err(ExportsError::Twice(_))));
        assert!(matches!(Exports::new(vec![export("a\0")]), Err(ExportsError::Text(_))));
        assert!(matches!(Exports::new(vec![export(&"a".repeat(4097))]), Err(ExportsError::Text(_))));
        let both = Exports::new(vec![export("a"), export("b")]).unwrap();
        let number = |name: &[u8]| both.find(name).map(|(number, _)| number);
        assert_eq!(
            (number(b""), number(b"a"), number(b"b"), number(b"c")),
            (Some(0), Some(0), Some(1), None)
        );
        let empty = Exports::new(vec![export("a"), export("")]).unwrap();
        assert_eq!(empty.find(b"").map(|(number, _)| number), Some(1));
    }
}
