//! `paradisk image merge`.

use std::path::PathBuf;

use disk_formats::vhd::{self, MergeError};

use super::stopped;
use crate::failure::Failure;
use crate::output;
use crate::parents::Parents;
use crate::progress::Progress;

/// Write what a differencing disk holds into its parent, and delete it.
#[derive(clap::Args)]
#[command(after_help = "Example:
  paradisk image merge child.vhd

Disks that stood on the child must then be told of the parent: paradisk image rebase GRANDCHILD --parent PARENT.
To leave all images as they are, and have the contents in a new one: paradisk image convert child.vhd new.vhd --format vhd.")]
pub(super) struct Args {
    /// The differencing disk. Nobody may use it, or its parent, meanwhile.
    child: PathBuf,
    /// Merge although other disks stand on the same parent: they lose what they saw
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    parents: Parents,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let progress = Progress::blocks("merging");
    let merged =
        vhd::merge(&args.child, &args.parents.rules(), args.force, |done, total| progress.step(done, total));
    drop(progress);
    match merged {
        Ok(parent) => output::print(&format!("merged into {}\n", parent.display())),
        Err(MergeError::Stopped) => Err(stopped()),
        Err(error) => Err(Failure::Failed(error.to_string())),
    }
}
