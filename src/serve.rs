//! `paradisk serve`: disks and adapters for other programs.

mod client_memory;
mod control;
mod conventions;
mod lifecycle;
mod listen;
mod nbd;
mod vfio_user;
mod vhost_user_blk;

use clap::Subcommand;

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
    VfioUser(vfio_user::Args),
    VhostUserBlk(vhost_user_blk::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Nbd(args) => nbd::run(args),
        Command::VfioUser(args) => vfio_user::run(args),
        Command::VhostUserBlk(args) => vhost_user_blk::run(args),
    }
}
