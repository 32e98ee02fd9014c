//! Folders for images.

use std::env;
use std::path::Path;

use tempfile::TempDir;

/// Memory as a file system: the targets flush their images often.
const IN_MEMORY: &str = "/dev/shm";

/// A temporary folder, in memory unless `TMPDIR` says where.
pub(crate) fn temporary() -> TempDir {
    let made = if env::var_os("TMPDIR").is_none() && Path::new(IN_MEMORY).is_dir() {
        tempfile::tempdir_in(IN_MEMORY)
    } else {
        tempfile::tempdir()
    };
    made.expect("a folder")
}
