//! `paradisk image rebase`.

use std::path::PathBuf;

use disk_formats::image::{ImageError, RebaseError};
use disk_formats::{FormatName, ParentRules, vhd, vhdx};
use facts::units::format_size;

use super::open::{failed, format_of, no_kinds, on_its_own, stopped};
use crate::failure::Failure;
use crate::output;
use crate::parents::Parents;
use crate::progress::Progress;

/// Give a differencing disk another parent. Without --safe only its reference is changed, so the new parent must have the content of the
/// old one: after a move or a merge. With --safe it may have any content: where the two differ, the old content is copied into the disk
/// first.
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
    /// Its parent from now on.
    #[arg(long, value_name = "FILE")]
    parent: PathBuf,
    /// Copy into the disk what differs between the old parent, which must be there, and the new one: the disk reads the same
    /// afterwards
    #[arg(long)]
    safe: bool,
    #[command(flatten)]
    parents: Parents,
}

const NO_PARENTS: &str = "differencing disks and their parents are files";

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    on_its_own(&args.child, NO_PARENTS)?;
    on_its_own(&args.parent, NO_PARENTS)?;
    let mut rules = args.parents.rules();
    if args.safe {
        return safe(args, &rules);
    }
    rules.any_time = true;
    match format_of(&args.child, None)? {
        FormatName::Vhd => vhd::rebase(&args.child, &args.parent, &rules).map_err(failed),
        FormatName::Vhdx => vhdx::rebase(&args.child, &args.parent, &rules).map_err(failed),
        name => Err(no_kinds(name)),
    }
}

fn safe(args: &Args, rules: &ParentRules) -> Result<(), Failure> {
    let progress = Progress::bytes("comparing");
    let step = |done, total| progress.step(done, total);
    let copied = match format_of(&args.child, None)? {
        FormatName::Vhd => vhd::rebase_keeping(&args.child, &args.parent, rules, step),
        FormatName::Vhdx => vhdx::rebase_keeping(&args.child, &args.parent, rules, step),
        name => return Err(no_kinds(name)),
    };
    drop(progress);
    let copied = copied.map_err(|error| match error {
        RebaseError::Image(ImageError::Cancelled) => stopped(),
        error => Failure::Failed(error.to_string()),
    })?;
    output::print(&format!("{} copied\n", format_size(copied)))
}
