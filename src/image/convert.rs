//! `paradisk image convert`.

use std::path::PathBuf;

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
    let output = Output::new(&args.destination).map_err(failed)?;
    let name = make(args, &output, from.info().capacity)?;
    let options = OpenOptions { format: Some(name), direct: Some(false), ..OpenOptions::new(output.part()) };
    let to = options.open_format().map_err(failed)?;
    let progress = Progress::bytes("converting");
    let total = from.info().capacity;
    let step = |done| {
        progress.step(done, total);
    };
    let done = convert(&*from, &*to, progress.flag(), step);
    drop(progress);
    let done = done.map_err(|error| match error {
        ConvertError::Stopped => Failure::Failed("stopped: nothing was created".to_owned()),
        ConvertError::Read(_) => Failure::on(&args.source, "cannot convert", error),
        ConvertError::Write(_) | ConvertError::TooSmall => {
            Failure::on(&args.destination, "cannot convert", error)
        }
    })?;
    // Closed before it gets its name.
    drop(to);
    output.finish().map_err(failed)?;
    let [copied, cloned, skipped] = [done.copied, done.cloned, done.skipped].map(table::size);
    output::print(&format!("{copied} copied, {cloned} shared, {skipped} zeros left out\n"))
}

/// Create the empty destination.
fn make(args: &Args, output: &Output, size: u64) -> Result<FormatName, Failure> {
    let subformat = match (args.format, args.subformat) {
        (Format::Vhd, None) => Some(Subformat::Dynamic),
        (_, Some(Subformat::Differencing)) => {
            return Err(Failure::Usage(
                "--subformat: expected fixed or dynamic: a copy stands on nothing".to_owned(),
            ));
        }
        (_, chosen) => chosen,
    };
    create::make(output, args.format, subformat, Some(size), None, args.block_size)?;
    Ok(match args.format {
        Format::Raw => FormatName::Raw,
        Format::Vhd => FormatName::Vhd,
    })
}
