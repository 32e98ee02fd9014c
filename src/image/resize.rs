//! `paradisk image resize`.

use std::path::PathBuf;

use paradisk_disk_formats::{FormatName, Image, OpenOptions, Shrink, escaped};

use super::open::{failed, format_of, on_its_own};
use crate::failure::Failure;
use crate::parents::Parents;
use crate::units;

/// Change the size of a disk. New space reads as zeros. What is cut off a VHD or VHDX must read as zeros; a raw image loses the data there.
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
    /// Resize even if the image has children; those of a VHDX are refused from then on
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
    let format = format_of(&args.file, args.format)?;
    let image = Image::of_format(&args.file, format).with_parents(args.parents.rules());
    if !args.force {
        no_children(&image)?;
    }
    if format == FormatName::Passthrough {
        return Err(Failure::Usage("the host determines the size of a block device".to_owned()));
    }
    let shrink = if args.shrink { Shrink::Allow } else { Shrink::Refuse };
    if args.shrink && shrinks(args, format)? && image.move_gpt_backup(args.size).map_err(failed)? {
        tell!("note: the partition table was adapted to the new end of the disk");
    }
    image.resize(args.size, shrink).map_err(failed)
}

/// Whether the disk is larger than the size that it is to have.
fn shrinks(args: &Args, format: FormatName) -> Result<bool, Failure> {
    let options = OpenOptions {
        format: Some(format),
        read_only: true,
        parents: args.parents.rules(),
        ..OpenOptions::new(&args.file)
    };
    Ok(options.open_format().map_err(failed)?.info().capacity > args.size)
}

/// Refuse an image that is a parent of others: it must not change.
fn no_children(image: &Image) -> Result<(), Failure> {
    let children = image.children().map_err(failed)?;
    match children.is_empty() {
        true => Ok(()),
        false => {
            let children: Vec<_> = children.iter().map(|path| escaped(path).to_string()).collect();
            let effect = match image.format() {
                FormatName::Vhdx => "they are refused if it changes",
                _ => "they may not read the same data if it changes",
            };
            let (path, children) = (escaped(image.path()), children.join(", "));
            Err(Failure::Failed(format!(
                "{path}: other disks have it as their parent: {children} ({effect}; allow it with --force)"
            )))
        }
    }
}
