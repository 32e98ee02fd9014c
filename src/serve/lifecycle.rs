//! The start and the end of every server: the line that says that clients can connect, signals, and the closing of its disks.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use facts::disk::OpenDisk;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::control::Reply;
use crate::control::server::PendingCommand;
use crate::disk;
use crate::failure::Failure;

/// How long to wait for the client of `stop` to take its answer.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// Print that clients can connect. The reader of standard output may have ended already, which is no error.
pub(super) fn announce(line: &str) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Flush and close the disks of a server that has stopped with this result. Every failure is reported, also to the client of `stop`.
pub(super) fn close(
    opened: Vec<OpenDisk>,
    served: Result<(), Failure>,
    pending: Option<PendingCommand>,
) -> Result<(), Failure> {
    let unflushed = disk::flush_all(&opened);
    // This frees their locks.
    drop(opened);
    let closed = if unflushed.is_empty() { Ok(()) } else { Err(unflushed.join("\n")) };
    if let Some(pending) = pending {
        pending.answer_and_wait(Reply::from(closed.clone().map(|()| json!("stopped"))), LAST_OUTPUT);
    }
    match (served, closed) {
        (served, Ok(())) => served,
        (Ok(()), Err(unflushed)) => Err(Failure::Failed(unflushed)),
        (Err(failure), Err(unflushed)) => {
            failure.report();
            Err(Failure::Failed(unflushed))
        }
    }
}

/// A stream that becomes readable when a signal stops the server, and its other end, where a byte stops it without a signal.
pub(super) fn ends() -> Result<(UnixStream, UnixStream), Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("signal handler: {error}"));
    let (stop, raise) = UnixStream::pair().map_err(failed)?;
    for signal in [SIGINT, SIGTERM] {
        pipe::register(signal, raise.try_clone().map_err(failed)?).map_err(failed)?;
    }
    Ok((stop, raise))
}
