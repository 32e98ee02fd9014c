//! Flushes of a file: one at a time. After a failed flush, no flush of the file succeeds.
//!
//! Linux reports a failed writeback only once: the next flush fails, and the flush after it succeeds although the data
//! are lost (fsync(2), "NOTES"; Documentation/filesystems/vfs.rst, "Handling errors during writeback"). So a failed
//! flush is recorded here for as long as the file is open. From then on:
//! - Every flush fails with [`IoError::FlushLost`], which has the file's name.
//! - Every change of metadata fails in the same way: [`BackingFile::write_at`](super::BackingFile::write_at), and
//!   changes of allocation and size.
//! - Reads succeed, as do payload writes to blocks that are already mapped, but no flush acknowledges them. Metadata
//!   that were written and not flushed are not read again
//!   ([`Store::check_flushes`](crate::host::store::Store::check_flushes)).
//!
//! The kernel reports an error once for each *open file description*. If two flushes of one `BackingFile` ran at the
//! same time, one might succeed because the kernel has just reported the error to the other. So a lock covers each
//! flush and the recording of its result. RWF_DSYNC also flushes. So payload that goes through the page cache is not
//! written with RWF_DSYNC, but written and then flushed by [`BackingFile::sync`](super::BackingFile::sync).

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::{OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::contract::error::{IoError, escaped};
use crate::host;
use crate::host::shared_flush::StickyFlush;

#[allow(clippy::disallowed_types, reason = "names of files whose flush failed")]
type Mutex<T> = std::sync::Mutex<T>;

/// Maximum number of retries of a flush after EAGAIN, and the delay before each.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);

/// Names of files with a failed flush. Each is leaked once, so that errors can refer to it.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Called at the first failed flush of a file.
static REPORT: OnceLock<fn(IoError)> = OnceLock::new();

/// Set the function that is called at the first failed flush of each file. It runs on the thread that flushed. Programs
/// report the failure to their user with it, because the guest or client of the disk only sees an I/O error. Only the
/// first call has an effect, for the life of the process.
pub fn on_flush_lost(report: fn(IoError)) {
    let _ = REPORT.set(report);
}

/// Flush state of a file.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// The error is [`IoError::FlushLost`].
    shared: StickyFlush<IoError>,
}

impl Flushes {
    /// Flush `file`, whose name is `path`.
    pub(super) fn sync(&self, file: &File, path: &Path) -> Result<(), IoError> {
        self.shared.run(|| fdatasync(file).map_err(|errno| self.failed(path, errno)))
    }

    pub(super) fn start_writeback(&self, file: &File, path: &Path, offset: u64, len: u64) {
        // If the file system has no space for accepted writes, it may drop them and report that only here.
        if let Err(errno @ (Errno::IO | Errno::NOSPC | Errno::DQUOT)) =
            host::start_writeback(file, offset, len)
        {
            let _ = self.failed(path, errno);
        }
    }

    pub(super) fn failed(&self, path: &Path, cause: Errno) -> IoError {
        let error = IoError::FlushLost { file: name(path), cause };
        if !self.shared.fail(error) {
            return self.check().err().unwrap_or(error);
        }
        tracing::error!(%error, "flush lost");
        if let Some(report) = REPORT.get() {
            report(error);
        }
        error
    }

    #[inline]
    pub(super) fn check(&self) -> Result<(), IoError> {
        self.shared.check()
    }

    /// After a failed flush, evict the file from the page cache: the next open then reads what the medium has, and not
    /// the data that were lost.
    pub(super) fn forget_lost_writes(&self, file: &File) {
        if self.check().is_err() {
            // If this fails, pages stay in the cache; no data are lost by that.
            let _ = host::drop_cache(file);
        }
    }
}

/// fdatasync(2). EINTR and EAGAIN are retried: they report no error of the medium.
fn fdatasync(file: &File) -> Result<(), Errno> {
    let mut tries = 0;
    loop {
        match host::fdatasync(file) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if tries < TRIES => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

fn name(path: &Path) -> &'static str {
    let name = escaped(path).to_string();
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name.as_str()) {
        Some(known) => known,
        None => {
            let kept: &'static str = Box::leak(name.into_boxed_str());
            names.insert(kept);
            kept
        }
    }
}

#[cfg(test)]
mod tests;
