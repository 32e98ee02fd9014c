//! A disk under measurement.

use std::path::PathBuf;
use std::sync::Arc;

use devices::Attachment;
use disk_formats::{Allocation, Disk, EngineKind, Status};

use crate::axes::Adapter;
use crate::result::{DiskFacts, MapMemory};

/// A disk under measurement: opened once, shared by all rows over it.
#[derive(Clone)]
pub struct Subject {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Who moves its bytes.
    pub engine: EngineKind,
    /// Where it is, if it is anywhere.
    pub path: Option<PathBuf>,
    /// The adapter that it is attached to; `None`: any.
    pub adapter: Option<Adapter>,
    /// Serial number shown to the guest.
    pub serial: Option<String>,
    /// See [`DiskFacts::options`].
    pub options: Vec<String>,
}

/// How a disk was opened, where that is not the usual way: `direct` or `cached`, `threads`.
pub fn options(direct: Option<bool>, engine: EngineKind) -> impl Iterator<Item = String> {
    let direct = direct.map(|direct| if direct { "direct" } else { "cached" });
    let threads = (engine == EngineKind::Threads).then_some("threads");
    [direct, threads].into_iter().flatten().map(str::to_owned)
}

impl Subject {
    /// As an adapter takes it.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        Attachment { disk: Arc::clone(&self.disk), engine: self.engine, serial: self.serial.clone() }
    }

    /// What the results document says of it.
    #[must_use]
    pub fn facts(&self) -> DiskFacts {
        let info = self.disk.info();
        DiskFacts {
            format: info.kind.format.to_owned(),
            subformat: info.kind.subformat.map(str::to_owned),
            path: self.path.as_ref().map(|path| path.display().to_string()),
            capacity: info.capacity,
            options: self.options.clone(),
        }
    }

    /// Memory of the disk's map, for disks that have one.
    #[must_use]
    pub fn map_memory(&self) -> Option<MapMemory> {
        self.disk.map_memory().map(MapMemory::from)
    }

    /// Bytes among the first `span` that are not stored: reads there move no data, first writes allocate. Counted until an
    /// error or a great number of pieces, and no less than what was counted.
    #[must_use]
    pub fn unallocated(&self, span: u64) -> u64 {
        const MOST_PIECES: u32 = 1 << 16;
        let span = span.min(self.disk.info().capacity);
        let (mut offset, mut zeros) = (0, 0);
        for _ in 0..MOST_PIECES {
            let left = span.saturating_sub(offset);
            let Ok(Allocation { len, status }) = self.disk.status(offset, left) else { break };
            let len = len.min(left);
            if len == 0 {
                break;
            }
            zeros += if status == Status::Zeros { len } else { 0 };
            offset += len;
        }
        zeros
    }

    /// For messages: the path, or the kind of disk where there is none.
    #[must_use]
    pub fn name(&self) -> String {
        self.facts().path.unwrap_or_else(|| self.disk.info().kind.format.to_owned())
    }
}
