//! Disks as the user described them, opened.

use std::sync::Arc;

use benches::subject::Subject;
use disk_formats::{Disk, NullDisk, OpenError, OpenOptions, RamDisk, SectorSize};

use crate::disk_spec::{DiskSpec, Format, Source};
use crate::failure::Failure;

/// Open a disk for measurement.
pub(crate) fn open(spec: &DiskSpec) -> Result<Subject, Failure> {
    let disk = open_disk(spec).map_err(|error| Failure::Failed(error.to_string()))?;
    let path = match &spec.source {
        Source::Path(path) => Some(path.clone()),
        Source::Ram(_) | Source::Null(_) => None,
    };
    Ok(Subject { disk, engine: spec.engine, path, adapter: spec.adapter, serial: spec.serial.clone() })
}
