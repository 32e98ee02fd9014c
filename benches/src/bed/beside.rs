//! Raw files to compare other disks with.

use std::io;
use std::path::Path;

use facts::disk::{self, OpenDisk};
use paradisk_disk_formats::{Allocation, Disk, EngineKind, FormatName, OpenOptions, Raw, Status};

use super::make::fill_error;
use super::{BedError, fill, within};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// `O_DIRECT`; `None`: the default of the format.
    pub direct: Option<bool>,
    /// The I/O engine.
    pub engine: EngineKind,
}

impl OpenMode {
    /// A raw file of `capacity` bytes, opened in this mode.
    fn make(&self, path: &Path, capacity: u64) -> Result<OpenDisk, BedError> {
        Raw::create(path, capacity)?;
        let options =
            OpenOptions { format: Some(FormatName::Raw), direct: self.direct, ..OpenOptions::new(path) };
        Ok(OpenDisk {
            engine: self.engine,
            options: disk::options(self.direct, self.engine).collect(),
            ..super::subject(options.open()?, Some(path.to_owned()))
        })
    }
}

/// Temporary raw files of `capacity` bytes on the file system of `folder`, one for each mode. They have no data yet ([`write_through`]).
/// They are unlinked when this returns, and their space is freed when they are closed.
///
/// # Errors
/// [`BedError`] if the host refuses.
pub fn raw_files(folder: &Path, capacity: u64, modes: &[OpenMode]) -> Result<Vec<OpenDisk>, BedError> {
    within(folder, |temporary| {
        let named = |number| temporary.join(format!("raw-{number}.img"));
        modes.iter().enumerate().map(|(number, mode)| mode.make(&named(number), capacity)).collect()
    })
}

/// Write the first `span` bytes with random data, and flush them.
///
/// # Errors
/// [`BedError`] if a write fails.
pub fn write_through(subject: &OpenDisk, span: u64) -> Result<(), BedError> {
    let disk = subject.disk.as_ref();
    let written = fill::write(disk, span).and_then(|()| fill::flush(disk));
    written.map_err(|source| fill_error(subject, source))
}

/// Drop the disk from the page cache and read the first `span` bytes, so that the page cache is in the same state for every disk.
///
/// # Errors
/// [`BedError`] if a read fails.
pub fn read_through(subject: &OpenDisk, span: u64) -> Result<(), BedError> {
    let disk = subject.disk.as_ref();
    let anew = disk.uncache().map_err(io::Error::other).and_then(|()| fill::read_all(disk, span));
    anew.map_err(|source| BedError::Read { disk: subject.name(), source })
}

/// Number of the first `span` bytes that are not allocated: reads of them transfer no data, and first writes allocate. It is a lower bound
/// if the disk has too many extents to count, or after an error.
#[must_use]
pub fn unallocated(disk: &dyn Disk, span: u64) -> u64 {
    const MOST_PIECES: u32 = 1 << 16;
    let span = span.min(disk.info().capacity);
    let (mut offset, mut zeros) = (0, 0);
    for _ in 0..MOST_PIECES {
        let left = span.saturating_sub(offset);
        let Ok(Allocation { len, status }) = disk.status(offset, left) else { break };
        let len = len.min(left);
        if len == 0 {
            break;
        }
        zeros += if status == Status::Zeros { len } else { 0 };
        offset += len;
    }
    zeros
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_files_are_written_and_leave_no_names() {
        let folder = tempfile::tempdir().unwrap();
        let modes =
            [EngineKind::IoUring, EngineKind::Threads].map(|engine| OpenMode { direct: None, engine });
        let files = raw_files(folder.path(), 3 << 20, &modes).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let names: Vec<_> = files.iter().map(|file| file.facts().name()).collect();
        assert_eq!(names, ["raw", "raw threads"]);
        for file in &files {
            write_through(file, 3 << 20).unwrap();
            assert_eq!((file.disk.info().capacity, unallocated(file.disk.as_ref(), 3 << 20)), (3 << 20, 0));
            let tail = fill::read(file.disk.as_ref(), (3 << 20) - 4096, 4096).unwrap();
            assert!(tail.chunks(8).filter(|word| word.iter().all(|byte| *byte == 0)).count() < 2);
            read_through(file, u64::MAX).unwrap();
        }
    }

    #[test]
    fn a_folder_that_is_none_is_named() {
        let mode = OpenMode { direct: None, engine: EngineKind::default() };
        let error = raw_files(Path::new("/nonexistent"), 1 << 20, &[mode]).map(drop).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent: cannot create a folder"), "{error}");
    }
}
