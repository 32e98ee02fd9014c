//! A disk to measure.

use std::path::PathBuf;
use std::sync::Arc;

use facts::disk::OpenDisk;
use paradisk_disk_formats::{Disk, EngineKind};

/// A disk opened with default options.
pub(crate) fn subject(disk: Arc<dyn Disk>, path: Option<PathBuf>) -> OpenDisk {
    OpenDisk { disk, engine: EngineKind::default(), path, adapter: None, serial: None, options: Vec::new() }
}
