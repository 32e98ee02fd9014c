//! The start and the end of every server: the line that says that clients can connect, signals, and the closing of its disks.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use facts::disk::OpenDisk;
use paradisk_serve::ReportLimit;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::control::server::PendingCommand;
use crate::deadline::StopTimeout;
use crate::disk;
use crate::failure::Failure;
use crate::service_manager::Manager;
use crate::tell;

/// Say that clients can connect, and tell the service manager. Standard output is not ours: under socket activation it is that of the
/// client, which may write a disk's data there.
pub(super) fn announce(manager: &Manager, line: &str) {
    tell!("{line}");
    manager.ready(line);
}

/// Say that a client was disconnected, and why. A client that connects again and again does not fill the log.
pub(super) fn say_disconnected(reason: &dyn Display) {
    static LIMIT: ReportLimit = ReportLimit::new();
    say(&LIMIT, &format!("disconnected a client: {reason}"));
}

/// Say something that a client is the reason for, as often as `limit` allows.
pub(super) fn say(limit: &ReportLimit, line: &str) {
    match limit.admit() {
        None => {}
        Some(0) => tell!("{line}"),
        Some(withheld) => tell!("{line} (such lines left out since the last one: {withheld})"),
    }
}

/// Flush and close the disks of a server that has stopped with this result. Every failure is reported, also to the client of `stop`.
pub(super) fn close(
    manager: &Manager,
    opened: Vec<OpenDisk>,
    served: Result<(), Failure>,
    pending: Option<PendingCommand>,
) -> Result<(), Failure> {
    manager.stopping();
    let closed = disk::flush_all(&opened);
    // Closes the files, which releases their locks.
    drop(opened);
    if let Some(pending) = pending {
        pending.stopped(&closed);
    }
    match (served, closed) {
        (served, Ok(())) => served,
        (Ok(()), Err(unflushed)) => Err(Failure::Failed(unflushed)),
        (Err(failure), Err(unflushed)) => {
            tell::failure(&failure);
            Err(Failure::Failed(unflushed))
        }
    }
}

/// When a server ends without a signal, and how long that may take.
#[derive(clap::Args)]
pub(super) struct Lifetime {
    /// End when the first client disconnects; serve nbd: when the last client that used a disk disconnects
    #[arg(long)]
    exit_on_disconnect: bool,
    #[command(flatten)]
    stop_timeout: StopTimeout,
}

impl Lifetime {
    /// `stop` becomes readable when a byte is written to `end`, or by a signal. The caller leaves the byte there.
    pub(super) fn watch(&self, stop: &UnixStream, end: &UnixStream) -> Result<Clients, Failure> {
        self.stop_timeout.start_at(stop)?;
        let end = self.exit_on_disconnect.then(|| end.try_clone()).transpose();
        end.map(Clients).map_err(|error| Failure::Failed(format!("--exit-on-disconnect: {error}")))
    }
}

/// Stops the server when a client has disconnected, if `--exit-on-disconnect` is given.
pub(super) struct Clients(Option<UnixStream>);

impl Clients {
    /// A client has disconnected.
    pub(super) fn disconnected(&self) {
        if let Some(mut end) = self.0.as_ref() {
            // Fails only if the server is ending already.
            let _ = end.write_all(&[0]);
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
