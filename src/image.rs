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
mod rebase;
mod resize;

use std::path::Path;
use std::sync::Arc;

use clap::Subcommand;
use disk_formats::ParentRules;
use disk_formats::{Format, FormatName, OpenError, OpenOptions, refuse_nested};

use crate::failure::Failure;

/// Create images, look at them, check and change them.
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

/// Open a disk for reading.
fn source(
    path: &Path,
    format: Option<FormatName>,
    direct: Option<bool>,
    parents: ParentRules,
) -> Result<Arc<dyn Format>, Failure> {
    let format = OpenOptions { format, read_only: true, direct, parents, ..OpenOptions::new(path) }
        .open_format()
        .map_err(failed)?;
    if let Some(remark) = format.remark() {
        eprintln!("note: {remark}");
    }
    Ok(format)
}

/// The format of an image: `requested`, else probed.
fn format_of(path: &Path, requested: Option<FormatName>) -> Result<FormatName, Failure> {
    requested.map_or_else(|| FormatName::probe(path), Ok).map_err(failed)
}

/// Refuse an image that lies inside another disk; `what` needs a file.
fn on_its_own(path: &Path, what: &str) -> Result<(), Failure> {
    refuse_nested(path, what).map_err(|error| Failure::Usage(error.to_string()))
}

/// The error for formats without blocks and parents.
fn no_kinds(name: FormatName) -> Failure {
    Failure::Usage(format!("a {name} disk has no blocks and no parents: expected a vhd or vhdx image"))
}

/// An image that could not be opened or changed.
fn failed(error: OpenError) -> Failure {
    Failure::Failed(error.to_string())
}

fn not_created() -> Failure {
    Failure::Failed("stopped: nothing was created".to_owned())
}

fn stopped() -> Failure {
    Failure::Failed("stopped: the image is good as it is".to_owned())
}
