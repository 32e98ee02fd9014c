//! Creation of a queue: the choice of the engine, and the limit of the depth.
//!
//! If the kernel refuses io_uring, the queue uses the thread engine: for the caller that is no error.

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::{FileQueue, REFUSED};
use crate::contract::error::{OpenError, escaped};
use crate::contract::queue::{DiskQueue, EngineKind, QueueConfig};
use crate::map::format::{Format, path_of};
#[cfg(feature = "io-uring")]
use crate::queue::engine::Uring;
use crate::queue::engine::{Engine, Threads};

/// Maximum number of requests in flight.
pub(crate) const MAX_DEPTH: u32 = 4096;

/// A queue for `format` with the requested engine, or with threads if the kernel refuses io_uring.
///
/// # Errors
/// [`OpenError::Os`] if the host refuses memory, descriptors or threads; [`OpenError::Unsupported`] for a depth of 0 or
/// above 4,096.
pub fn file_queue(format: &Arc<dyn Format>, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
    #[cfg(feature = "io-uring")]
    let ring = |depth| Uring::new(format.files(), depth);
    #[cfg(not(feature = "io-uring"))]
    let ring = |_| Err::<Threads, _>(Errno::NOSYS);
    file_queue_with(format, config, ring)
}

/// As [`file_queue`], with `ring` to create the io_uring engine: tests inject a failure.
pub(crate) fn file_queue_with<E: Engine + 'static>(
    format: &Arc<dyn Format>,
    config: &QueueConfig,
    ring: impl FnOnce(u32) -> Result<E, Errno>,
) -> Result<Box<dyn DiskQueue>, OpenError> {
    let path = path_of(&**format);
    let depth = check_depth(path, config)?;
    if config.engine == EngineKind::IoUring {
        match ring(depth) {
            Ok(ring) => return Ok(Box::new(FileQueue::new(format, ring, depth)?)),
            Err(errno) => {
                tracing::warn!(path = %escaped(path), %errno, "io_uring is not available: the queue uses the thread engine");
            }
        }
    }
    let threads = Threads::new(format.files(), depth).map_err(OpenError::os(path, REFUSED))?;
    Ok(Box::new(FileQueue::new(format, threads, depth)?))
}

/// The depth of a queue of the disk at `path`, if it is valid.
pub(crate) fn check_depth(path: impl AsRef<Path>, config: &QueueConfig) -> Result<u32, OpenError> {
    match config.depth {
        depth @ 1..=MAX_DEPTH => Ok(depth),
        depth => {
            let reason = format!("queue depth is {depth}, expected 1 to {MAX_DEPTH}");
            Err(OpenError::unsupported(path, reason))
        }
    }
}
