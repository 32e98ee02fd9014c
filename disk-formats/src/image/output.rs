//! A file that is complete or absent.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::OpenError;
use crate::formats::nested::path::refuse_nested;
use crate::host;

/// Bytes of the name that the temporary name repeats: with the rest of it they stay below NAME_MAX, 255.
const KEPT: usize = 200;

/// A new file that is made under a temporary name beside its own, and gets its own when it is complete and flushed.
/// Until then it is removed when this value is dropped: after an error, a cancellation, a panic.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    part: PathBuf,
    finished: bool,
}

impl Output {
    /// A file to be made at `path`, where there must be none. Nothing is created so far.
    ///
    /// # Errors
    /// [`OpenError::Os`] where `path` exists or names no file, [`OpenError::Unsupported`] where it leads into a disk.
    pub fn new(path: &Path) -> Result<Self, OpenError> {
        let refused = |kind: io::ErrorKind| OpenError::Os {
            path: path.into(),
            action: "cannot create",
            source: kind.into(),
        };
        refuse_nested(path, "a new image is a file")?;
        let name = path.file_name().ok_or_else(|| refused(io::ErrorKind::InvalidInput))?;
        if fs::symlink_metadata(path).is_ok() {
            return Err(refused(io::ErrorKind::AlreadyExists));
        }
        let bytes = name.as_bytes();
        let kept = String::from_utf8_lossy(bytes.get(..KEPT).unwrap_or(bytes)).into_owned();
        let process = std::process::id();
        // A file of this name was left by a process of the same number that was killed, or belongs to another thread.
        let part = (0u32..)
            .map(|number| path.with_file_name(format!(".{kept}.part-{process}-{number}")))
            .find(|candidate| fs::symlink_metadata(candidate).is_err())
            .ok_or_else(|| refused(io::ErrorKind::AlreadyExists))?;
        Ok(Self { path: path.into(), part, finished: false })
    }

    /// The name that the file will have.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the file is to be made; it is removed unless it is finished.
    #[must_use]
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// The file is complete: flush it and give it its name.
    ///
    /// # Errors
    /// [`OpenError::Os`] where the host fails, or another process has made a file of this name meanwhile, which stays.
    pub fn finish(mut self) -> Result<(), OpenError> {
        let os = |action| {
            let path = self.path.clone();
            move |source| OpenError::Os { path, action, source }
        };
        File::open(&self.part).and_then(|file| host::fsync(&file)).map_err(os("cannot synchronise"))?;
        rename_new(&self.part, &self.path).map_err(os("cannot create"))?;
        let synced = sync_folder_of(&self.path).map_err(os("cannot synchronise its folder"));
        self.finished = true;
        synced
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.finished {
            // It may not have been made; any other failure leaves a file whose name marks it as partial.
            let _ = host::remove_file(&self.part);
        }
    }
}

/// Rename without replacing what has the name.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match host::rename_new(from, to) {
        // A file system without this flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_new(from, to),
        done => Ok(done?),
    }
}

fn link_new(from: &Path, to: &Path) -> io::Result<()> {
    host::hard_link(from, to)?;
    host::remove_file(from)
}

/// Flush the directory of `path`, so that its entry, or its removal, is on stable storage.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    loop {
        match host::fsync_folder(folder) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A file system where folders need none.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => return Ok(()),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests;
