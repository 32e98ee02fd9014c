//! `paradisk image`: tools for image files.

#[cfg(feature = "bench")]
mod bench;
mod check;
mod compact;
mod compare;
mod convert;
mod create;
mod info;
mod map;
mod merge;
mod open;
mod rebase;
mod resize;

use clap::Subcommand;

use crate::failure::Failure;

/// Create, inspect, check and change images.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(create::Args),
    Info(info::Args),
    Check(check::Args),
    Map(map::Args),
    Compare(compare::Args),
    Convert(convert::Args),
    Resize(resize::Args),
    Compact(compact::Args),
    Merge(merge::Args),
    Rebase(rebase::Args),
    #[cfg(feature = "bench")]
    Bench(bench::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Create(args) => create::run(args),
        Command::Info(args) => info::run(args),
        Command::Check(args) => check::run(args),
        Command::Map(args) => map::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Resize(args) => resize::run(args),
        Command::Compact(args) => compact::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Rebase(args) => rebase::run(args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(args),
    }
}
