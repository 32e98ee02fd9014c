//! `paradisk serve`: disks and adapters for other programs.

mod nbd;
mod vhost_user_blk;

use std::io;
use std::os::unix::net::UnixStream;

use clap::Subcommand;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::failure::Failure;

/// Serve a disk, or an adapter with disks, to other programs, until SIGTERM or SIGINT.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Nbd(nbd::Args),
    VhostUserBlk(vhost_user_blk::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Nbd(args) => nbd::run(args),
        Command::VhostUserBlk(args) => vhost_user_blk::run(args),
    }
}

/// A stream with a byte for each signal that is to end a server.
fn signals() -> Result<UnixStream, Failure> {
    let make = || -> io::Result<UnixStream> {
        let (stop, raise) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            pipe::register(signal, raise.try_clone()?)?;
        }
        Ok(stop)
    };
    make().map_err(|error| Failure::Failed(format!("signal handler: {error}")))
}
