//! `paradisk image convert`.

use std::path::{Path, PathBuf};

use benches::table;
use disk_formats::image::{ConvertError, Output, convert};
use disk_formats::{FormatName, OpenOptions};

use super::create::{self, Format, Subformat};
use super::{failed, source};
use crate::failure::Failure;
use crate::output;
use crate::parents::Parents;
use crate::progress::Progress;
use crate::units;

/// Copy a disk into a new image of any format. What reads as zeros takes no space where the format allows it; what the file
/// system can share is not copied. The new image is complete under its name, or not there at all.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk image convert disk.raw disk.vhd --format vhd --subformat dynamic
  paradisk image convert child.vhd whole.raw --format raw")]
pub(super) struct Args {
    /// The disk to copy: an image, a chain of images, or a block device.
    source: PathBuf,
    /// The image to create. An existing file is never overwritten.
    destination: PathBuf,
    /// Format of the new image.
    #[arg(long)]
    format: Format,
    /// Kind of VHD [default: dynamic]
    #[arg(long)]
    subformat: Option<Subformat>,
    /// Bytes of a block of a dynamic VHD, a power of two [default: 2M]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    block_size: Option<u64>,
    /// Format of the source: raw, passthrough, vhd [default: probed]
    #[arg(long)]
    from_format: Option<FormatName>,
    /// Read the source past the host's page cache
    #[arg(long)]
    direct: bool,
    #[command(flatten)]
    parents: Parents,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let from = source(&args.source, args.from_format, args.direct.then_some(true), args.parents.rules())?;
    copy(&args.source, &*from, &args.destination, args.format, args.subformat, args.block_size)
}

/// Copy the disk `from`, whose name is `source`, into a new image.
pub(super) fn copy(
    source: &Path,
    from: &dyn disk_formats::Format,
    destination: &Path,
    format: Format,
    subformat: Option<Subformat>,
    block_size: Option<u64>,
) -> Result<(), Failure> {
    let subformat = match (format, subformat) {
        (Format::Vhd, None) => Some(Subformat::Dynamic),
        (_, Some(Subformat::Differencing)) => {
            let why = "--subformat: expected fixed or dynamic: a copy stands on nothing";
            return Err(Failure::Usage(why.to_owned()));
        }
        (_, chosen) => chosen,
    };
    let total = from.info().capacity;
    let output = Output::new(destination).map_err(failed)?;
    create::make(&output, format, subformat, Some(total), None, block_size)?;
    let name = match format {
        Format::Raw => FormatName::Raw,
        Format::Vhd => FormatName::Vhd,
    };
    let options = OpenOptions { format: Some(name), direct: Some(false), ..OpenOptions::new(output.part()) };
    let to = options.open_format().map_err(failed)?;
    let progress = Progress::bytes("converting");
    let step = |done| {
        progress.step(done, total);
    };
    let done = convert(from, &*to, progress.flag(), step);
    drop(progress);
    let done = done.map_err(|error| match error {
        ConvertError::Stopped => Failure::Failed("stopped: nothing was created".to_owned()),
        ConvertError::Read(_) => Failure::on(source, "cannot convert", error),
        ConvertError::Write(_) | ConvertError::TooSmall => Failure::on(destination, "cannot convert", error),
    })?;
    // Closed before it gets its name.
    drop(to);
    output.finish().map_err(failed)?;
    let [copied, cloned, skipped] = [done.copied, done.cloned, done.skipped].map(table::size);
    output::print(&format!("{copied} copied, {cloned} shared, {skipped} zeros left out\n"))
}
