//! `paradisk image resize`.

use std::path::PathBuf;

use disk_formats::{FormatName, Raw, vhd, vhdx};

use super::{failed, format_of, on_its_own};
use crate::failure::Failure;
use crate::parents::Parents;
use crate::units;

/// Give an image another size. What is added reads as zeros; what is cut off must read as zeros.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  paradisk image resize disk.vhd 20G")]
pub(super) struct Args {
    /// The image. Nobody may use it meanwhile.
    file: PathBuf,
    /// The new size of the disk, whole sectors, as 512M or 10G
    #[arg(value_parser = units::size)]
    size: u64,
    /// Allow a smaller size. The guest must have given up the end of the disk before.
    #[arg(long)]
    shrink: bool,
    /// Its format: raw, vhd, vhdx [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
    #[command(flatten)]
    parents: Parents,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    on_its_own(&args.file, "resize changes the length of files")?;
    let rules = args.parents.rules();
    match format_of(&args.file, args.format)? {
        FormatName::Vhdx => vhdx::resize(&args.file, args.size, args.shrink, &rules).map_err(failed),
        FormatName::Vhd => vhd::resize(&args.file, args.size, args.shrink, &rules).map_err(failed),
        FormatName::Raw => Raw::resize(&args.file, args.size, args.shrink).map_err(failed),
        _ => Err(Failure::Usage("a block device has the size that its host gives it".to_owned())),
    }
}
