//! Disks as the user described them, opened.

use std::sync::Arc;

use benches::subject::{self, Subject};
use disk_formats::ParentRules;
use disk_formats::{Delayed, Disk, FileDisk, NullDisk, OpenError, OpenOptions, RamDisk, SectorSize};

use crate::disk_spec::{DiskSpec, Source};
use crate::failure::Failure;

/// Open a disk for measurement.
pub(crate) fn open(spec: &DiskSpec) -> Result<Subject, Failure> {
    let disk = open_disk(spec).map_err(|error| Failure::Failed(error.to_string()))?;
    let path = match &spec.source {
        Source::Path(path) => Some(path.clone()),
        Source::Ram(_) | Source::Null(_) => None,
    };
    let delay = spec.delay.map(|delay| format!("delay={delay:?}"));
    let disk = match spec.delay {
        Some(delay) => Arc::new(Delayed::new(disk, delay)),
        None => disk,
    };
    Ok(Subject {
        disk,
        engine: spec.engine,
        path,
        adapter: spec.adapter,
        serial: spec.serial.clone(),
        options: subject::options(spec.direct, spec.engine).chain(delay).collect(),
    })
}

fn open_disk(spec: &DiskSpec) -> Result<Arc<dyn Disk>, OpenError> {
    Ok(match &spec.source {
        Source::Path(path) => {
            let options = OpenOptions {
                path: path.clone(),
                format: spec.format,
                read_only: spec.read_only,
                direct: spec.direct,
                parents: ParentRules {
                    directories: spec.parent_dir.iter().cloned().collect(),
                    any_time: false,
                },
            };
            let format = options.open_format()?;
            if let Some(remark) = format.remark() {
                eprintln!("note: {remark}");
            }
            Arc::new(FileDisk::new(format))
        }
        Source::Ram(size) => Arc::new(RamDisk::new(*size, SectorSize::B512)?),
        Source::Null(size) => Arc::new(NullDisk::new(*size, SectorSize::B512)?),
    })
}
