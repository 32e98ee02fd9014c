//! `paradisk image merge`.

use std::path::{Path, PathBuf};

use facts::units::format_size;
use paradisk_disk_formats::image::{ImageError, MergeError};
use paradisk_disk_formats::{FormatName, OpenOptions, ParentRules, Scope, Siblings, escaped};

use super::convert::{self, Target};
use super::create::Format;
use super::open::{failed, format_of, on_its_own, source, with_blocks};
use crate::failure::{Failure, Options};
use crate::output;
use crate::parents::Parents;
use crate::progress::Progress;

/// Write the data of a differencing disk into its parent, and delete the disk; or, with --to, copy the contents into a new image and change
/// nothing else.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk image merge child.vhd
  paradisk image merge child.vhd --to whole.vhd

Children of the merged disk need a new parent then: paradisk image rebase GRANDCHILD --parent PARENT.")]
pub(super) struct Args {
    /// The differencing disk. Neither it nor its parent may be in use
    child: PathBuf,
    /// The image to merge into, if it is not the direct parent: all images in between are deleted, too
    #[arg(long, value_name = "PARENT", conflicts_with = "to")]
    into: Option<PathBuf>,
    /// Create a dynamic disk of the same format with the content of the chain, and change nothing else
    #[arg(long, value_name = "NEWFILE")]
    to: Option<PathBuf>,
    /// Merge even if the parent has other children, which are refused from then on
    #[arg(long, conflicts_with = "to")]
    force: bool,
    /// Its format: vhd, vhdx [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
    #[command(flatten)]
    parents: Parents,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    for image in [Some(&args.child), args.into.as_ref()].into_iter().flatten() {
        on_its_own(image, "differencing disks and their parents are files")?;
    }
    let mut rules = args.parents.rules();
    if let Some(new) = &args.to {
        let name = format_of(&args.child, args.format)?;
        let options = OpenOptions { format: Some(name), parents: rules, ..OpenOptions::new(&args.child) };
        let from = source(&options, &Options::IMAGE)?;
        let format = if name == FormatName::Vhdx { Format::Vhdx } else { Format::Vhd };
        return convert::copy(&*from, &Target::dynamic(new, format), &None);
    }
    let steps = match &args.into {
        Some(parent) => steps_down(args, parent, &rules)?,
        None => 1,
    };
    let progress = Progress::bytes("merging");
    let mut child = args.child.clone();
    for _ in 0..steps {
        if progress.stopped() {
            return Err(stopped(&args.child, &child));
        }
        let parent = merge(&child, args, &rules, &progress)?;
        // --parent-file is of the first image.
        rules = rules.below(&child);
        child = parent;
    }
    Ok(())
}

/// Merge an image into its parent. Returns the parent.
fn merge(child: &Path, args: &Args, rules: &ParentRules, progress: &Progress) -> Result<PathBuf, Failure> {
    let siblings = if args.force { Siblings::Orphan } else { Siblings::Refuse };
    let image = with_blocks(child, args.format, rules.clone())?;
    let merged = image.merge(siblings, |done, total| progress.step(done, total));
    progress.clear();
    let merged = merged.map_err(|error| match error {
        MergeError::Image(ImageError::Cancelled) => interrupted(child),
        MergeError::Open(error) => failed(error),
        error => Failure::Failed(error.to_string()),
    })?;
    let parent = escaped(&merged.parent);
    let [shared, written, zeros] =
        [merged.copied.shared, merged.copied.written, merged.copied.zeros].map(format_size);
    output::print(&format!(
        "{} merged into {parent}: {written} copied, {shared} shared, {zeros} zeros\n",
        escaped(child)
    ))?;
    for orphan in &merged.orphans {
        let orphan = escaped(orphan);
        let child = escaped(child);
        tell!("note: the parent of {orphan} was {child}: paradisk image rebase {orphan} --parent {parent}");
    }
    Ok(merged.parent)
}

/// The error for merging `first` down its chain, stopped before `next` is merged.
fn stopped(first: &Path, next: &Path) -> Failure {
    if first == next {
        return interrupted(first);
    }
    let left = escaped(next);
    Failure::Failed(format!("stopped: {left} holds what was merged so far; merge it to continue"))
}

/// The error for a copy that was interrupted: the parent may have changed already.
fn interrupted(child: &Path) -> Failure {
    Failure::Failed(format!(
        "stopped: {} reads as before and can be merged again; other children of its parent are refused if any data were copied",
        escaped(child)
    ))
}

/// The number of merges from the child down to `parent`.
fn steps_down(args: &Args, parent: &Path, rules: &ParentRules) -> Result<usize, Failure> {
    let wanted = parent.canonicalize().map_err(|error| Failure::on(parent, "cannot open", error))?;
    let chain = with_blocks(&args.child, args.format, rules.clone())?.info(Scope::Chain).map_err(failed)?;
    let mut parents = chain.iter().skip(1);
    let found = parents.position(|image| image.path.canonicalize().is_ok_and(|path| path == wanted));
    found.map(|index| index + 1).ok_or_else(|| {
        Failure::Failed(format!("{}: its parents do not include {}", escaped(&args.child), escaped(parent)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_stop_leaves_the_child() {
        let begins = |next: &str, text: &str| {
            let failure = stopped(Path::new("child.vhd"), Path::new(next));
            assert!(matches!(&failure, Failure::Failed(found) if found.starts_with(text)), "{failure:?}");
        };
        begins("child.vhd", "stopped: child.vhd reads as before");
        begins("parent.vhd", "stopped: parent.vhd holds what was merged");
    }
}
