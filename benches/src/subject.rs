//! A disk under measurement.

use std::path::PathBuf;
use std::sync::Arc;

use disk_formats::{Disk, EngineKind};

use crate::axes::Adapter;
use crate::result::DiskFacts;

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

impl Subject {
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

    /// For messages: the path, or the kind of disk where there is none.
    #[must_use]
    pub fn name(&self) -> String {
        self.facts().path.unwrap_or_else(|| self.disk.info().kind.format.to_owned())
    }
}
