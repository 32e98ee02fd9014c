//! `paradisk image rebase`.

use std::path::PathBuf;

use disk_formats::vhd;

use super::failed;
use crate::failure::Failure;
use crate::parents::Parents;

/// Name the parent of a differencing disk anew: after it was moved, merged, or changed. No data is compared or copied.
#[derive(clap::Args)]
#[command(
    visible_alias = "connect",
    after_help = "Example:\n  paradisk image rebase child.vhd --parent moved/base.vhd"
)]
pub(super) struct Args {
    /// The differencing disk. Nobody may use it meanwhile.
    child: PathBuf,
    /// Its parent from now on.
    #[arg(long, value_name = "FILE")]
    parent: PathBuf,
    #[command(flatten)]
    parents: Parents,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut rules = args.parents.rules();
    rules.any_time = true;
    vhd::rebase(&args.child, &args.parent, &rules).map_err(failed)
}
