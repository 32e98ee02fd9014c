//! `paradisk image resize`.

use std::path::{Path, PathBuf};

use disk_formats::image::MergeError;
use disk_formats::{FormatName, Raw, vhd, vhdx};

use super::open::{failed, format_of, on_its_own};
use crate::failure::Failure;
use crate::parents::Parents;
use crate::units;

/// Give an image another size. What is added reads as zeros; what is cut off must read as zeros.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  paradisk image resize disk.vhd 20G")]
pub(super) struct Args {
    /// The image. It must not be in use
    file: PathBuf,
    /// The new size of the disk, whole sectors, as 512M or 10G
    #[arg(value_parser = units::size)]
    size: u64,
    /// Allow a smaller size. The guest must have freed the end of the disk before.
    #[arg(long)]
    shrink: bool,
    /// Resize although it has children: those of a VHDX are refused from then on
    #[arg(long)]
    force: bool,
    /// Its format: raw, vhd, vhdx [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
    #[command(flatten)]
    parents: Parents,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    on_its_own(&args.file, "resize changes the length of files")?;
    let rules = args.parents.rules();
    let format = format_of(&args.file, args.format)?;
    if !args.force {
        no_children(&args.file, format)?;
    }
    match format {
        FormatName::Vhdx => vhdx::resize(&args.file, args.size, args.shrink, &rules).map_err(failed),
        FormatName::Vhd => vhd::resize(&args.file, args.size, args.shrink, &rules).map_err(failed),
        FormatName::Raw => Raw::resize(&args.file, args.size, args.shrink).map_err(failed),
        _ => Err(Failure::Usage("a block device has the size that its host gives it".to_owned())),
    }
}

/// Refuse an image that is a parent of others: it must not change.
fn no_children(image: &Path, format: FormatName) -> Result<(), Failure> {
    let children = match format {
        FormatName::Vhdx => vhdx::children(image),
        FormatName::Vhd => vhd::children(image),
        _ => return Ok(()),
    }
    .map_err(failed)?;
    match children.is_empty() {
        true => Ok(()),
        // The message of a merge fits.
        false => {
            Err(Failure::Failed(MergeError::Siblings { path: image.into(), siblings: children }.to_string()))
        }
    }
}
