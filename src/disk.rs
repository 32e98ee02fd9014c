//! Opening, numbering and flushing the disks of the command line.

use std::borrow::Borrow;
use std::path::Path;
use std::sync::Arc;

use facts::disk::{self as opened_disk, OpenDisk};
use paradisk_devices::Nameless;
use paradisk_disk_formats::ParentRules;
use paradisk_disk_formats::{
    Disk, FileDisk, Layered, NullDisk, OpenError, OpenOptions, RamDisk, SectorSize, pass,
};

use crate::deadline;
use crate::disk_spec::{DiskSpec, Source};
use crate::failure::{Failure, Options};
use crate::flush::flush_disk;
use crate::inherited;
use crate::metrics::Metering;

/// Open a disk.
pub(crate) fn open(spec: &DiskSpec) -> Result<OpenDisk, Failure> {
    let failed = |error: OpenError| Failure::opening(&error, &Options::DISK);
    let (disk, path): (Arc<dyn Disk>, _) = match &spec.source {
        Source::Path(path) => (open_file(spec, path).map_err(failed)?, Some(path.clone())),
        Source::Descriptor(number) => {
            let file = inherited::take_file(*number, !spec.read_only);
            let path = pass(file.map_err(|error| Failure::Usage(format!("--disk: {error}")))?);
            (open_file(spec, &path).map_err(failed)?, Some(path))
        }
        Source::Ram(size) => (Arc::new(RamDisk::new(*size, SectorSize::B512).map_err(failed)?), None),
        Source::Null(size) => (Arc::new(NullDisk::new(*size, SectorSize::B512).map_err(failed)?), None),
    };
    let delay = spec.delay.map(|delay| format!("delay={delay:?}"));
    let disk = match spec.delay {
        Some(delay) => Arc::new(Layered::new(disk).delayed(delay)),
        None => disk,
    };
    Ok(OpenDisk {
        disk,
        engine: spec.engine,
        path,
        adapter: spec.adapter,
        serial: spec.serial.clone(),
        options: opened_disk::options(spec.direct, spec.engine).chain(delay).collect(),
    })
}

/// Open a disk of a machine or a server, and count its requests.
pub(crate) fn open_metered(spec: &DiskSpec, metering: Metering) -> Result<OpenDisk, Failure> {
    let mut opened = open(spec)?;
    metering.apply(&mut opened);
    deadline::watch(&opened);
    Ok(opened)
}

/// Open an image file or a block device.
fn open_file(spec: &DiskSpec, path: &Path) -> Result<Arc<dyn Disk>, OpenError> {
    let options = OpenOptions {
        path: path.to_owned(),
        format: spec.format,
        read_only: spec.read_only,
        direct: spec.direct,
        sectors: spec.sectors,
        parents: ParentRules {
            parent: spec.parent.clone(),
            directories: spec.parent_dir.iter().cloned().collect(),
            any_time: false,
        },
        map_memory: spec.map_memory,
    };
    let format = options.open_format()?;
    if let Some(remark) = format.remark() {
        tell!("note: {remark}");
    }
    Ok(Arc::new(FileDisk::new(format)))
}

/// Give every disk of a machine a serial number: the user's, or one that is the same in each run and unique in this one. Each disk
/// comes with its adapter and target.
pub(crate) fn number(disks: &mut [(String, &mut OpenDisk)]) -> Result<(), Failure> {
    let given = disks.iter().filter_map(|(_, opened)| opened.serial.as_deref());
    let mut given: Vec<_> = given.collect();
    given.sort_unstable();
    if let Some([serial, ..]) = given.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Failure::Usage(format!("--disk: two disks have the serial number `{serial}`")));
    }
    let nameless: Vec<_> = disks
        .iter()
        .map(|(place, opened)| Nameless { disk: &*opened.disk, serial: opened.serial.as_deref(), place })
        .collect();
    let numbers = paradisk_devices::serial_numbers(&nameless);
    disks.iter_mut().zip(numbers).for_each(|((_, opened), number)| opened.serial = Some(number));
    Ok(())
}

/// Flush a disk.
pub(crate) fn flush(opened: &OpenDisk) -> Result<(), String> {
    flush_disk(&*opened.disk, opened.engine).map_err(|error| format!("{}: flush: {error}", opened.name()))
}

/// [`flush`] all of them; the errors.
pub(crate) fn flush_all(opened: impl IntoIterator<Item = impl Borrow<OpenDisk>>) -> Result<(), String> {
    join(opened.into_iter().filter_map(|opened| flush(opened.borrow()).err()))
}

/// Read the capacities of disks from the host again; the errors.
pub(crate) fn rescan_all<'a>(opened: impl IntoIterator<Item = &'a OpenDisk>) -> Result<(), String> {
    let failed = |opened: &OpenDisk| opened.disk.rescan().err().map(|error| error.to_string());
    join(opened.into_iter().filter_map(failed))
}

/// The errors, one a line.
fn join(errors: impl Iterator<Item = String>) -> Result<(), String> {
    let errors: Vec<_> = errors.collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}
