//! `paradisk image rebase`.

use std::path::PathBuf;

use facts::units::format_size;
use paradisk_disk_formats::image::{ImageError, RebaseError};
use paradisk_disk_formats::{FormatName, RebaseData};

use super::create::note_place;
use super::open::{on_its_own, stopped, with_blocks};
use crate::failure::{Failure, Options};
use crate::output;
use crate::parents::Parents;
use crate::progress::Progress;

/// Give a differencing disk another parent. Without --safe only the reference changes, so the new parent must have the content of the old
/// one, as after a move or a merge. With --safe the new parent may have any content: where the two differ, the old content is first copied
/// into the disk.
#[derive(clap::Args)]
#[command(
    visible_alias = "connect",
    after_help = "Examples:
  paradisk image rebase child.vhd --parent moved/base.vhd
  paradisk image rebase child.vhd --parent grandparent.vhd --safe"
)]
pub(super) struct Args {
    /// The differencing disk. It must not be in use
    child: PathBuf,
    /// The new parent.
    #[arg(long, value_name = "FILE")]
    parent: PathBuf,
    /// Copy the differences between the old parent, which must exist, and the new one into the disk, so that it reads the same afterwards
    #[arg(long)]
    safe: bool,
    /// Its format: vhd, vhdx [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
    #[command(flatten)]
    parents: Parents,
}

const NO_PARENTS: &str = "differencing disks and their parents are files";

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    on_its_own(&args.child, NO_PARENTS)?;
    on_its_own(&args.parent, NO_PARENTS)?;
    let mut rules = args.parents.rules();
    if !args.safe {
        rules.any_time = true;
        let image = with_blocks(&args.child, args.format, rules)?;
        image.rebase(&args.parent, RebaseData::Assume, |_, _| true).map_err(failed)?;
        note_place(&args.child, &args.parent);
        return Ok(());
    }
    let progress = Progress::bytes("comparing");
    let image = with_blocks(&args.child, args.format, rules)?;
    let copied = image.rebase(&args.parent, RebaseData::Copy, |done, total| progress.step(done, total));
    drop(progress);
    let copied = copied.map_err(failed)?;
    note_place(&args.child, &args.parent);
    output::print(&format!("{} copied\n", format_size(copied)))
}

fn failed(error: RebaseError) -> Failure {
    match error {
        RebaseError::Image(ImageError::Cancelled) => stopped(),
        // The parents of either parent may be meant, so no option names one.
        RebaseError::Open(error) => Failure::opening(&error, &Options { parent: None, ..Options::IMAGE }),
        error => Failure::Failed(error.to_string()),
    }
}
