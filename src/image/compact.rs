//! `paradisk image compact`.

use std::path::PathBuf;

use benches::table;
use disk_formats::vhd;

use super::{failed, stopped};
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

/// Make a dynamic or differencing VHD as small as its content allows: blocks of zeros go, others move down.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  paradisk image compact disk.vhd")]
pub(super) struct Args {
    /// The image. Nobody may use it meanwhile.
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let progress = Progress::blocks("looking for empty blocks");
    let done = vhd::compact(&args.file, |done, total| progress.step(done, total)).map_err(failed)?;
    if progress.stopped() {
        return Err(stopped());
    }
    drop(progress);
    let (before, after) = (table::size(done.before), table::size(done.after));
    output::print(&format!(
        "{} blocks released, {} moved; file {before} before, {after} now\n",
        done.released, done.moved
    ))
}
