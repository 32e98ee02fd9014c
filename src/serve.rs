//! `paradisk serve`: disks and adapters for other programs.

mod control;
mod nbd;
mod vfio_user;
mod vhost_user_blk;

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::Subcommand;
use facts::disk::OpenDisk;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::control::Reply;
use crate::control::server::Asked;
use crate::disk;
use crate::failure::Failure;

/// How long the answer to who ends a server may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serve a disk, or an adapter with disks, to other programs, until SIGTERM or SIGINT.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Nbd(nbd::Args),
    VfioUser(vfio_user::Args),
    VhostUserBlk(vhost_user_blk::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    raise_descriptor_limit();
    match &args.command {
        Command::Nbd(args) => nbd::run(args),
        Command::VfioUser(args) => vfio_user::run(args),
        Command::VhostUserBlk(args) => vhost_user_blk::run(args),
    }
}

/// Have as many descriptors as are allowed: each map of a vfio-user client is one. Where more are refused, fewer will do.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Say that clients can connect. Who reads it may have left: the server is for others.
fn announce(line: &str) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Close the disks of a server that has ended so. All that went wrong is said, also to who asked for the end.
fn close(opened: Vec<OpenDisk>, served: Result<(), Failure>, asked: Option<Asked>) -> Result<(), Failure> {
    let unflushed = disk::flush_all(&opened);
    // Their locks go with them.
    drop(opened);
    let closed = if unflushed.is_empty() { Ok(()) } else { Err(unflushed.join("\n")) };
    if let Some(asked) = asked {
        asked.answer_last(Reply::from(closed.clone().map(|()| json!("stopped"))), LAST_WORDS);
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

/// A stream with a byte for each signal that is to end the server, and where to write a byte to end the server without a signal.
fn ends() -> Result<(UnixStream, UnixStream), Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("signal handler: {error}"));
    let (stop, raise) = UnixStream::pair().map_err(failed)?;
    for signal in [SIGINT, SIGTERM] {
        pipe::register(signal, raise.try_clone().map_err(failed)?).map_err(failed)?;
    }
    Ok((stop, raise))
}
