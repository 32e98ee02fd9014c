//! A new file that appears under its name only when it is complete.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::contract::error::{BadField, OpenError};
use crate::formats::nested::path::refuse_nested;
use crate::host;

/// Bytes of the file's name that the temporary name repeats: the whole stays below NAME_MAX (255).
const KEPT: usize = 200;

/// What a temporary name has between the file's name and its numbers.
const PART: &str = ".part-";

/// Whether the file has the temporary name of an [`Output`]: it is incomplete.
pub(crate) fn is_part(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let numbers = name.strip_prefix('.').and_then(|name| name.rsplit_once(PART)).map(|(_, numbers)| numbers);
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    numbers
        .and_then(|numbers| numbers.split_once('-'))
        .is_some_and(|(process, other)| number(process) && number(other))
}

/// A new file that is written under a temporary name in the same directory. [`finish`](Self::finish) flushes and
/// renames it. If the value is dropped before, after an error, a cancellation or a panic, the file is removed.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    part: PathBuf,
    finished: bool,
}

impl Output {
    /// Prepare a file at `path`, which must not exist. Nothing is created yet.
    ///
    /// # Errors
    /// [`OpenError::Os`] if `path` exists; [`OpenError::Invalid`] if it is that of a directory; [`OpenError::Unsupported`] if it
    /// is the path of a nested image.
    pub fn new(path: &Path) -> Result<Self, OpenError> {
        let refused = OpenError::os(path, "cannot create");
        refuse_nested(path, "a new image is a file")?;
        let directory = || BadField::new("path", "that of a directory", "the name of a new file").of(path);
        let is_directory = path.as_os_str().as_bytes().ends_with(b"/") || path.is_dir();
        let name = path.file_name().filter(|_| !is_directory).ok_or_else(directory)?;
        if fs::symlink_metadata(path).is_ok() {
            return Err(refused(io::ErrorKind::AlreadyExists));
        }
        let bytes = name.as_bytes();
        let kept = String::from_utf8_lossy(bytes.get(..KEPT).unwrap_or(bytes)).into_owned();
        let process = std::process::id();
        // A file with this name was left by a killed process with the same number, or belongs to another thread.
        let part = (0u32..)
            .map(|number| path.with_file_name(format!(".{kept}{PART}{process}-{number}")))
            .find(|candidate| fs::symlink_metadata(candidate).is_err())
            .ok_or_else(|| refused(io::ErrorKind::AlreadyExists))?;
        Ok(Self { path: path.into(), part, finished: false })
    }

    /// The final path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The temporary path, where the file is to be created.
    #[must_use]
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Flush the complete file, and rename it to its final path.
    ///
    /// # Errors
    /// [`OpenError::Os`] if the host fails, or if another process has created a file at the final path, which is kept.
    pub fn finish(mut self) -> Result<(), OpenError> {
        let path = self.path.as_path();
        let flushed = File::open(&self.part).and_then(|file| host::fsync(&file));
        flushed.map_err(OpenError::os(path, "cannot flush"))?;
        rename_new(&self.part, path).map_err(OpenError::os(path, "cannot create"))?;
        let synced = host::sync_folder_of(path).map_err(OpenError::os(path, "cannot flush its directory"));
        self.finished = true;
        synced
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.finished {
            // The file may not exist. If the removal fails, its name shows that it is incomplete.
            let _ = host::remove_file(&self.part);
        }
    }
}

/// Rename without replacing an existing file.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match host::rename_new(from, to) {
        // The file system does not support RENAME_NOREPLACE.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_new(from, to),
        done => Ok(done?),
    }
}

fn link_new(from: &Path, to: &Path) -> io::Result<()> {
    host::hard_link(from, to)?;
    host::remove_file(from)
}

#[cfg(test)]
mod tests;
