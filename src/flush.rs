//! The flush of a disk that nobody uses any more.

use paradisk_disk_formats::{Disk, EngineKind, IoError, Op, QueueConfig, Request};

/// Flush a disk by a queue of its own.
pub(crate) fn flush_disk(disk: &dyn Disk, engine: EngineKind) -> Result<(), String> {
    if disk.info().read_only {
        return Ok(());
    }
    let failed = |error: IoError| error.to_string();
    let mut queue = disk.queue(&QueueConfig { depth: 1, engine }).map_err(|error| error.to_string())?;
    queue
        .push(&Request { tag: 0, op: Op::Flush, offset: 0, len: 0, bufs: &[] })
        .map_err(|error| format!("{error:?}"))?;
    queue.submit();
    let mut ended = Vec::new();
    loop {
        queue.reap(&mut ended);
        if let Some(completion) = ended.pop() {
            return completion.result.map_err(failed);
        }
        queue.wait();
    }
}
