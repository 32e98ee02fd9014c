//! `paradisk image compact`.

use std::path::PathBuf;

use facts::units::format_size;
use paradisk_disk_formats::{FormatName, ParentRules};

use super::open::{failed, on_its_own, stopped, with_blocks};
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

/// Make a dynamic or differencing disk as small as its content allows: blocks of zeros are freed, others are moved down. A fixed VHDX keeps
/// its blocks, and frees unused space.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  paradisk image compact disk.vhd")]
pub(super) struct Args {
    /// The image. It must not be in use
    file: PathBuf,
    /// Its format: vhd, vhdx [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    on_its_own(&args.file, "compact makes files smaller")?;
    let progress = Progress::blocks("looking for empty blocks");
    let image = with_blocks(&args.file, args.format, ParentRules::default())?;
    let done = image.compact(|done, total| progress.step(done, total)).map_err(failed)?;
    if progress.stopped() {
        return Err(stopped());
    }
    drop(progress);
    let (before, after) = (format_size(done.before), format_size(done.after));
    output::print(&format!(
        "{} blocks released, {} moved; file {before} before, {after} now\n",
        done.released, done.moved
    ))
}
