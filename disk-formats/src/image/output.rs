//! A file that is complete under its name, or not there at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::OpenError;

/// A new file under a temporary name beside its own. Dropped before [`finish`](Self::finish), it is deleted.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    part: PathBuf,
}

impl Output {
    /// For a file at `path`, which must not exist.
    ///
    /// # Errors
    /// [`OpenError::Os`] where it exists.
    pub fn new(path: &Path) -> Result<Self, OpenError> {
        let os = |source| OpenError::Os { path: path.into(), action: "cannot create", source };
        if fs::symlink_metadata(path).is_ok() {
            return Err(os(io::ErrorKind::AlreadyExists.into()));
        }
        let name = path.file_name().ok_or_else(|| os(io::ErrorKind::InvalidInput.into()))?;
        let mut part = OsString::from(".");
        part.push(name);
        part.push(format!(".part-{}", std::process::id()));
        Ok(Self { path: path.into(), part: path.with_file_name(part) })
    }

    /// The name that the file will have.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The temporary name: create the file here.
    #[must_use]
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// The file is complete: make it durable and give it its name.
    ///
    /// # Errors
    /// [`OpenError::Os`] where the name was taken meanwhile, or the host refuses.
    pub fn finish(self) -> Result<(), OpenError> {
        self.rename().map_err(|source| OpenError::Os {
            path: self.path.clone(),
            action: "cannot finish",
            source,
        })
    }

    fn rename(&self) -> io::Result<()> {
        File::open(&self.part)?.sync_all()?;
        match renameat_with(CWD, &self.part, CWD, &self.path, RenameFlags::NOREPLACE) {
            // A file system that cannot refuse to replace can refuse a second name.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                fs::hard_link(&self.part, &self.path)?;
                fs::remove_file(&self.part)?;
            }
            done => done?,
        }
        let folder =
            self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // After it was finished there is nothing under this name.
        let _ = fs::remove_file(&self.part);
    }
}
