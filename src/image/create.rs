//! `paradisk image create`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use disk_formats::image::Output;
use disk_formats::{OpenError, Raw, vhd};

use super::{failed, not_created};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::units;

/// Create an image. An existing file is never overwritten.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk image create disk.vhd --format vhd --size 10G
  paradisk image create disk.vhd --format vhd --subformat dynamic --size 2040G
  paradisk image create child.vhd --format vhd --parent disk.vhd")]
pub(super) struct Args {
    /// The image to create.
    file: PathBuf,
    /// Its format.
    #[arg(long)]
    format: Format,
    /// Size of the disk, whole sectors of 512 bytes, as 512M or 10G [default of a differencing disk: its parent's]
    #[arg(long, value_parser = units::size)]
    size: Option<u64>,
    /// Kind of VHD [default: fixed; differencing with --parent]
    #[arg(long)]
    subformat: Option<Subformat>,
    /// The disk that a differencing disk stands on. It must not change from now on.
    #[arg(long, value_name = "FILE")]
    parent: Option<PathBuf>,
    /// Bytes of a block of a dynamic or differencing VHD, a power of two [default: 2M; the parent's]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    block_size: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The file's bytes are the disk's.
    Raw,
    /// VHD.
    Vhd,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Subformat {
    /// All space is in the file from the start.
    Fixed,
    /// Blocks are allocated when they are first written.
    Dynamic,
    /// As dynamic; what was not written is the parent's.
    Differencing,
}

fn needs_size() -> Failure {
    usage("--size SIZE is needed, as 512M or 10G")
}

fn usage(text: &str) -> Failure {
    Failure::Usage(text.to_owned())
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // From here on a signal leaves nothing behind.
    let progress = Progress::bytes("allocating");
    let output = Output::new(&args.file).map_err(failed)?;
    let parent = args.parent.as_deref();
    make(&output, args.format, args.subformat, args.size, parent, args.block_size, &progress)?;
    output.finish().map_err(failed)
}

/// Create an image, after looking at whether the options go together.
pub(super) fn make(
    output: &Output,
    format: Format,
    subformat: Option<Subformat>,
    size: Option<u64>,
    parent: Option<&Path>,
    block_size: Option<u64>,
    progress: &Progress,
) -> Result<(), Failure> {
    let path = output.part();
    let failed = |error: OpenError| match progress.stopped() {
        true => not_created(),
        false => failed(error.renamed(path, output.path())),
    };
    if format == Format::Raw {
        if subformat.is_some() || parent.is_some() || block_size.is_some() {
            return Err(usage(
                "--subformat, --parent and --block-size are for vhd: a raw image has no kinds",
            ));
        }
        return Raw::create(path, size.ok_or_else(needs_size)?).map_err(failed);
    }
    let subformat = match (subformat, parent) {
        (None, Some(_)) => Subformat::Differencing,
        (chosen, _) => chosen.unwrap_or(Subformat::Fixed),
    };
    let block_size = block_size.map(|size| {
        u32::try_from(size).map_err(|_| usage("--block-size: expected a power of two from 512 to 2G"))
    });
    let block_size = block_size.transpose()?;
    match (subformat, parent, size) {
        (Subformat::Differencing, None, _) => Err(usage("a differencing disk needs --parent FILE")),
        (Subformat::Differencing, Some(_), Some(_)) => Err(usage(
            "a differencing disk is as large as its parent: leave out --size (and `image resize` it after)",
        )),
        (Subformat::Differencing, Some(parent), None) => {
            vhd::create_differencing(path, parent, block_size).map_err(failed)
        }
        (_, Some(_), _) => Err(usage("--parent is for --subformat differencing")),
        (Subformat::Fixed, None, _) if block_size.is_some() => {
            Err(usage("--block-size is for --subformat dynamic and differencing"))
        }
        (Subformat::Fixed, None, size) => {
            let size = size.ok_or_else(needs_size)?;
            vhd::create_fixed_watched(path, size, &mut |done, all| progress.step(done, all)).map_err(failed)
        }
        (Subformat::Dynamic, None, size) => {
            vhd::create_dynamic(path, size.ok_or_else(needs_size)?, block_size).map_err(failed)
        }
    }
}
