//! Raw files to compare other disks with.

use std::io;
use std::path::Path;

use disk_formats::{EngineKind, FormatName, OpenOptions, Raw};

use super::{BedError, fill, fill_error, within};
use crate::subject::{self, Subject};

/// How a file is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// `O_DIRECT`; `None`: what is usual for the format.
    pub direct: Option<bool>,
    /// Who moves the bytes.
    pub engine: EngineKind,
}

impl Way {
    /// A raw file of `capacity` bytes, used in this way.
    fn make(&self, path: &Path, capacity: u64) -> Result<Subject, BedError> {
        Raw::create(path, capacity)?;
        let options =
            OpenOptions { format: Some(FormatName::Raw), direct: self.direct, ..OpenOptions::new(path) };
        Ok(Subject {
            engine: self.engine,
            options: subject::options(self.direct, self.engine).collect(),
            ..super::subject(options.open()?, Some(path.to_owned()))
        })
    }
}

/// Temporary raw files of `capacity` bytes on the file system of `folder`, one for each way, every byte written and durable.
/// They have no names any more when this returns, and their space is free when they are closed.
///
/// # Errors
/// [`BedError`] where the host refuses.
pub fn raw_files(folder: &Path, capacity: u64, ways: &[Way]) -> Result<Vec<Subject>, BedError> {
    let files: Vec<Subject> = within(folder, |temporary| {
        let named = |number| temporary.join(format!("raw-{number}.img"));
        ways.iter().enumerate().map(|(number, way)| way.make(&named(number), capacity)).collect()
    })?;
    files.iter().try_for_each(|file| write_through(file, capacity))?;
    Ok(files)
}

/// Write the first `span` bytes with random data, durably.
///
/// # Errors
/// [`BedError`] where they cannot be written.
pub fn write_through(subject: &Subject, span: u64) -> Result<(), BedError> {
    let disk = subject.disk.as_ref();
    let written = fill::write(disk, span).and_then(|()| fill::flush(disk));
    written.map_err(|source| fill_error(subject, source))
}

/// Read the first `span` bytes anew, so that what the page cache can hold of them is there, and came there in the same way for
/// every disk.
///
/// # Errors
/// [`BedError`] where they cannot be read.
pub fn read_through(subject: &Subject, span: u64) -> Result<(), BedError> {
    let disk = subject.disk.as_ref();
    let anew = disk.uncache().map_err(io::Error::other).and_then(|()| fill::read_all(disk, span));
    anew.map_err(|source| BedError::Read { disk: subject.name(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_files_are_written_and_leave_no_names() {
        let folder = tempfile::tempdir().unwrap();
        let ways = [EngineKind::IoUring, EngineKind::Threads].map(|engine| Way { direct: None, engine });
        let files = raw_files(folder.path(), 3 << 20, &ways).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let names: Vec<_> = files.iter().map(|file| file.facts().name()).collect();
        assert_eq!(names, ["raw", "raw threads"]);
        for file in &files {
            assert_eq!((file.disk.info().capacity, file.unallocated(3 << 20)), (3 << 20, 0));
            let tail = fill::read(file.disk.as_ref(), (3 << 20) - 4096, 4096).unwrap();
            assert!(tail.chunks(8).filter(|word| word.iter().all(|byte| *byte == 0)).count() < 2);
            read_through(file, u64::MAX).unwrap();
        }
    }

    #[test]
    fn a_folder_that_is_none_is_named() {
        let way = Way { direct: None, engine: EngineKind::default() };
        let error = raw_files(Path::new("/nonexistent"), 1 << 20, &[way]).map(drop).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent: cannot create a folder"), "{error}");
    }
}
