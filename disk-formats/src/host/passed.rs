//! Passed files: open descriptors in place of paths, for a process that may not open images itself.
//!
//! A passed file has a name, `/proc/self/fd/N`. [`BackingFile::open`](super::backing::BackingFile::open) of that name uses a copy of the
//! descriptor, so the permissions of the file's path do not matter, and the path need not exist. Copies share one open file description.
//! Its position is not used. Its locks belong to all copies, and each open sets or clears `O_DIRECT` for all copies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
#[expect(clippy::disallowed_types, reason = "files are passed and opened outside of the I/O path")]
use std::sync::Mutex;
use std::sync::PoisonError;

/// The passed files by name. They stay open until the process ends, because images are opened again, for example to resize them.
#[expect(clippy::disallowed_types, reason = "files are passed and opened outside of the I/O path")]
static PASSED: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());

/// Pass an open file or block device. Returns the path under which it can be opened until the process ends. Parents and other files
/// beside an image are not found from this path; a parent must be in a folder of [`ParentRules`](crate::ParentRules).
#[must_use]
pub fn pass(file: File) -> PathBuf {
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    PASSED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone(), file);
    path
}

/// A copy of the descriptor that was passed under this name; `None` if there is none.
pub(crate) fn copy_of(path: &Path) -> Option<io::Result<File>> {
    PASSED.lock().unwrap_or_else(PoisonError::into_inner).get(path).map(File::try_clone)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::backing::{Access, BackingFile};

    const WRITE: Access = Access { read_only: false, direct: false };

    #[test]
    fn a_passed_file_needs_no_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        fs::write(&path, vec![7; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let passed = pass(file);
        for access in [Access::READ_ONLY, WRITE, Access { direct: true, ..WRITE }, WRITE] {
            let backing = BackingFile::open(&passed, access).unwrap();
            assert_eq!((backing.size(), backing.writable()), (8192, !access.read_only));
            let mut data = [0; 100];
            backing.read_at(&mut data, 5000).unwrap();
            assert_eq!(data, [7; 100]);
        }
    }

    #[test]
    fn what_the_descriptor_does_not_allow_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        fs::write(&path, vec![0; 4096]).unwrap();
        let options = || File::options();
        let reader = pass(options().read(true).open(&path).unwrap());
        assert!(BackingFile::open(&reader, Access::READ_ONLY).is_ok());
        for (file, expected) in [
            (reader, "read-only"),
            (pass(options().write(true).open(&path).unwrap()), "not open for reading"),
            (pass(options().read(true).append(true).open(&path).unwrap()), "open for appending"),
        ] {
            let error = BackingFile::open(&file, WRITE).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
