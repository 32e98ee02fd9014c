//! Flushes of a file: one at a time, and none succeeds after one has failed.
//!
//! Linux reports a write that it could not bring to the medium once: the flush that comes first fails, and the next one succeeds
//! although the data are gone (fsync(2), "NOTES"; Documentation/filesystems/vfs.rst, "Handling errors during writeback"). So a
//! failed flush is noted here, for as long as the file is open. From then on:
//! - every flush fails with [`IoError::FlushLost`], which names the file;
//! - everything that changes metadata fails likewise: writes by [`BackingFile::write_at`](super::BackingFile::write_at), and changes of space and size;
//! - reads succeed, and so do plain writes of payload to places that are known. No flush acknowledges them. Metadata
//!   that were written and not flushed are not read again ([`Store::intact`](crate::host::store::Store::intact)).
//!
//! The kernel reports an error once for each *open file description*. Two flushes of one `BackingFile` at the same time
//! could not be distinguished: one may succeed because the kernel has just reported the error to the other. So a flush
//! is made, and its result recorded, under a lock. For the same reason payload that goes through the page cache is not
//! written with RWF_DSYNC, which also flushes, but written and then flushed by [`BackingFile::sync`](super::BackingFile::sync).

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::error::IoError;
use crate::host;

#[allow(clippy::disallowed_types, reason = "held by a flush, never by a read or write")]
type Mutex<T> = std::sync::Mutex<T>;

/// Times that a flush is tried again after EAGAIN, and the pause before each.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);

/// Names of files whose flushes have failed: kept until the process ends, each once, so that an error can carry them.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Called when a flush fails first.
static REPORT: OnceLock<fn(IoError)> = OnceLock::new();

/// Set the function that is called when a flush of any file fails for the first time. It runs on the thread that
/// flushed. Programs use it to tell their user: the guest or client of the disk only sees an I/O error. The first call
/// sets it for the life of the process; later calls do nothing.
pub fn on_flush_lost(report: fn(IoError)) {
    let _ = REPORT.set(report);
}

/// What has become of the flushes of a file.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// [`IoError::FlushLost`], once there was a failure.
    lost: OnceLock<IoError>,
    /// Flushes that have begun.
    begun: AtomicU64,
    /// The number of the last one that succeeded. Held while a flush is made.
    done: Mutex<u64>,
}

impl Flushes {
    /// Flush `file`, whose name is `path`.
    pub(super) fn sync(&self, file: &File, path: &Path) -> Result<(), IoError> {
        // A flush that begins after this moment covers this one.
        let wanted = self.begun.load(Ordering::Acquire) + 1;
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        if *done >= wanted {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        match fdatasync(file) {
            Ok(()) => {
                // Writeback may have reported an error meanwhile.
                self.check()?;
                *done = number;
                Ok(())
            }
            Err(errno) => Err(self.failed(path, errno)),
        }
    }

    pub(super) fn start_writeback(&self, file: &File, path: &Path, offset: u64, len: u64) {
        // A file system that has no space for what it has accepted may drop it, and reports that here alone.
        if let Err(errno @ (Errno::IO | Errno::NOSPC | Errno::DQUOT)) =
            host::start_writeback(file, offset, len)
        {
            let _ = self.failed(path, errno);
        }
    }

    pub(super) fn failed(&self, path: &Path, cause: Errno) -> IoError {
        let error = IoError::FlushLost { file: name(path), cause };
        match self.lost.set(error) {
            Ok(()) => {
                tracing::error!(%error, "flush lost");
                if let Some(report) = REPORT.get() {
                    report(error);
                }
                error
            }
            Err(_) => self.check().err().unwrap_or(error),
        }
    }

    #[inline]
    pub(super) fn check(&self) -> Result<(), IoError> {
        match self.lost.get() {
            None => Ok(()),
            Some(error) => Err(*error),
        }
    }

    /// After a failed flush: have the page cache forget the file, so that the next one who opens it reads what is on the medium and
    /// not what never came there.
    pub(super) fn forget_lost_writes(&self, file: &File) {
        if self.check().is_err() {
            // Where it fails, pages stay in the cache: nothing is lost by that.
            let _ = host::forget(file);
        }
    }
}

/// fdatasync(2), again where it had nothing to report: a signal came first, or the host was short of something.
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
    let name = path.display().to_string();
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
