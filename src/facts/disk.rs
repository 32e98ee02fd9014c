//! An opened disk, and what documents say of it.

use std::path::PathBuf;
use std::sync::Arc;

use paradisk_devices::Attachment;
use paradisk_disk_formats::{Disk, EngineKind};
use serde::{Deserialize, Serialize};

use crate::names::Adapter;

/// A disk that is open, with what the user said of it.
#[derive(Clone)]
pub struct OpenDisk {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Which I/O engine transfers its data.
    pub engine: EngineKind,
    /// Its file or device, where there is one.
    pub path: Option<PathBuf>,
    /// The adapter that it is attached to; `None`: any.
    pub adapter: Option<Adapter>,
    /// The serial number that the guest reads.
    pub serial: Option<String>,
    /// See [`DiskFacts::options`].
    pub options: Vec<String>,
}

/// What documents say of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFacts {
    /// `raw`, `passthrough`, `vhd`, `vhdx`, `ram`, `null`.
    pub format: String,
    /// `fixed` and so on, where the format has kinds.
    pub subformat: Option<String>,
    /// File or device, where there is one.
    pub path: Option<String>,
    /// Bytes.
    pub capacity: u64,
    /// Options that differ from the defaults: `direct`, `cached`, `threads`, `delay=TIME`.
    #[serde(default)]
    pub options: Vec<String>,
}

/// Memory in bytes of the map of a disk, which tells where each of its blocks, or sectors, is in the images of its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapMemory {
    /// In use.
    pub bytes: u64,
    /// The most that were in use.
    pub peak: u64,
    /// What it may take.
    pub budget: u64,
    /// Parts that were evicted for others.
    pub evictions: u64,
}

impl From<paradisk_disk_formats::MapMemory> for MapMemory {
    fn from(memory: paradisk_disk_formats::MapMemory) -> Self {
        let paradisk_disk_formats::MapMemory { bytes, peak, budget, evictions, .. } = memory;
        Self { bytes, peak, budget, evictions }
    }
}

/// [`DiskFacts::options`] of a disk that was opened so.
pub fn options(direct: Option<bool>, engine: EngineKind) -> impl Iterator<Item = String> {
    let direct = direct.map(|direct| if direct { "direct" } else { "cached" });
    let threads = (engine == EngineKind::Threads).then_some("threads");
    [direct, threads].into_iter().flatten().map(str::to_owned)
}

impl OpenDisk {
    /// The disk as it is attached to an adapter.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        Attachment { disk: Arc::clone(&self.disk), engine: self.engine, serial: self.serial.clone() }
    }

    /// What documents say of it.
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

    /// For messages: the path, or the kind of disk where there is none.
    #[must_use]
    pub fn name(&self) -> String {
        self.facts().path.unwrap_or_else(|| self.disk.info().kind.format.to_owned())
    }
}

impl DiskFacts {
    /// Short name: `raw`, `vhd fixed`.
    #[must_use]
    pub fn name(&self) -> String {
        let words = [Some(&self.format), self.subformat.as_ref()].into_iter().flatten().chain(&self.options);
        words.map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}
