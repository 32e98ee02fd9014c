//! `paradisk image create`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use paradisk_disk_formats::image::Output;
use paradisk_disk_formats::{FormatName, OpenError, Raw, SectorSize, escaped, vhd, vhdx};

use super::open::{failed, not_created};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::units;

/// Create an image. An existing file is never overwritten.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk image create disk.vhd --format vhd --size 10G
  paradisk image create disk.vhd --format vhd --subformat dynamic --size 2040G
  paradisk image create child.vhd --format vhd --parent disk.vhd
  paradisk image create large.vhdx --format vhdx --size 64T --logical-sector-size 4096")]
pub(super) struct Args {
    /// The image to create.
    file: PathBuf,
    /// Its format.
    #[arg(long)]
    format: Format,
    /// Size of the disk, whole sectors, as 512M or 10G. A differencing disk has that of its parent: leave this out
    #[arg(long, value_parser = units::size)]
    size: Option<u64>,
    /// Kind of disk [default: fixed for vhd, dynamic for vhdx; differencing with --parent]
    #[arg(long)]
    subformat: Option<Subformat>,
    /// The parent of a differencing disk. It must not change from now on
    #[arg(long, value_name = "FILE")]
    parent: Option<PathBuf>,
    /// Bytes of a block, a power of two. VHD: at least 4K [default: 2M, differencing: the parent's]. VHDX: 1M to 256M [default: 32M,
    /// differencing: 2M]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    block_size: Option<u64>,
    /// Smallest unit that guests address, of a VHDX: 512 or 4096 [default: 512; the parent's]
    #[arg(long, value_name = "BYTES", value_parser = sector_size)]
    logical_sector_size: Option<SectorSize>,
    /// Allocate no space for the data of a fixed vhd. Windows does not attach sparse files
    #[arg(long)]
    sparse: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The file's bytes are the disk's.
    Raw,
    /// VHD.
    Vhd,
    /// VHDX.
    Vhdx,
}

impl Format {
    pub(super) const fn name(self) -> FormatName {
        match self {
            Self::Raw => FormatName::Raw,
            Self::Vhd => FormatName::Vhd,
            Self::Vhdx => FormatName::Vhdx,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Subformat {
    /// All space is in the file from the start.
    Fixed,
    /// Blocks are allocated when they are first written.
    Dynamic,
    /// As dynamic; data that were not written are read from the parent.
    Differencing,
}

fn needs_size() -> Failure {
    usage("--size SIZE is needed, as 512M or 10G")
}

fn usage(text: &str) -> Failure {
    Failure::Usage(text.to_owned())
}

/// The new image.
pub(super) struct New<'a> {
    pub(super) format: Format,
    pub(super) subformat: Option<Subformat>,
    pub(super) size: Option<u64>,
    pub(super) parent: Option<&'a Path>,
    pub(super) block_size: Option<u64>,
    pub(super) logical_sector: Option<SectorSize>,
    /// Of a fixed VHD: without space for its data.
    pub(super) sparse: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // From now on, a signal leaves no incomplete file.
    let progress = Progress::bytes("allocating");
    let output = Output::new(&args.file).map_err(failed)?;
    let new = New {
        format: args.format,
        subformat: args.subformat,
        size: args.size,
        parent: args.parent.as_deref(),
        block_size: args.block_size,
        logical_sector: args.logical_sector_size,
        sparse: args.sparse,
    };
    make(&output, &new, &progress)?;
    output.finish().map_err(failed)?;
    if args.sparse {
        note_sparse(&args.file);
    }
    if let Some(parent) = &args.parent {
        note_place(&args.file, parent);
    }
    Ok(())
}

/// Say where a sparse VHD cannot be used.
pub(super) fn note_sparse(path: &Path) {
    let path = escaped(path);
    tell!(
        "note: {path} is sparse: Windows does not attach sparse files; `cp --sparse=never` makes a copy that it attaches. Uploads to Azure take it"
    );
}

/// Say what later commands need to find a parent that is in another folder.
pub(super) fn note_place(child: &Path, parent: &Path) {
    let Ok(paths) = child.canonicalize().and_then(|child| Ok((child, parent.canonicalize()?))) else {
        return;
    };
    if let ((Some(own), parent), Some(folder)) = ((paths.0.parent(), &paths.1), paths.1.parent())
        && !parent.starts_with(own)
    {
        let (child, folder) = (escaped(child), escaped(folder));
        tell!(
            "note: the parent of {child} is in another folder: to use {child}, allow it: --parent-dir {folder}, or parent-dir={folder} of a disk"
        );
    }
}

/// `512` or `4096`.
pub(super) fn sector_size(text: &str) -> Result<SectorSize, String> {
    text.parse().ok().and_then(SectorSize::from_bytes).ok_or_else(|| "expected 512 or 4096".to_owned())
}

/// Create an image, after checking the combination of options.
pub(super) fn make(output: &Output, new: &New<'_>, progress: &Progress) -> Result<(), Failure> {
    let path = output.part();
    let failed = |error: OpenError| match progress.stopped() {
        true => not_created(),
        false => failed(error.renamed(path, output.path())),
    };
    if new.format != Format::Vhdx && new.logical_sector.is_some_and(|sector| sector != SectorSize::B512) {
        return Err(usage("--logical-sector-size is for vhdx: other images have sectors of 512 bytes"));
    }
    let fixed = matches!((new.subformat, new.parent), (None | Some(Subformat::Fixed), None));
    if new.sparse && (new.format != Format::Vhd || !fixed) {
        return Err(usage(
            "--sparse is for a fixed vhd: other images have no space before it is written, or all of it",
        ));
    }
    if new.format == Format::Raw {
        if new.subformat.is_some() || new.parent.is_some() || new.block_size.is_some() {
            return Err(usage(
                "--subformat, --parent and --block-size are for vhd and vhdx: a raw image has no kinds",
            ));
        }
        return Raw::create(path, new.size.ok_or_else(needs_size)?).map_err(failed);
    }
    let subformat = match (new.subformat, new.parent) {
        (None, Some(_)) => Subformat::Differencing,
        (None, None) if new.format == Format::Vhdx => Subformat::Dynamic,
        (chosen, _) => chosen.unwrap_or(Subformat::Fixed),
    };
    let block_size = new.block_size.map(|size| {
        u32::try_from(size).map_err(|_| usage("--block-size: expected a power of two, at most 2G"))
    });
    let block_size = block_size.transpose()?;
    let size = || new.size.ok_or_else(needs_size);
    let step = &mut |done, all| progress.step(done, all);
    let options =
        vhdx::CreateOptions { block_size, logical_sector: new.logical_sector, physical_sector: None };
    match (subformat, new.parent, new.format) {
        (Subformat::Differencing, None, _) => Err(usage("a differencing disk needs --parent FILE")),
        (Subformat::Differencing, Some(_), _) if new.size.is_some() => Err(usage(
            "a differencing disk is as large as its parent: leave out --size (and `image resize` it after)",
        )),
        (Subformat::Differencing, Some(_), _) if new.logical_sector.is_some() => {
            Err(usage("a differencing disk has the sectors of its parent: leave out --logical-sector-size"))
        }
        (Subformat::Differencing, Some(parent), Format::Vhdx) => {
            vhdx::create_differencing(path, parent, block_size).map_err(failed)
        }
        (Subformat::Differencing, Some(parent), _) => {
            vhd::create_differencing(path, parent, block_size).map_err(failed)
        }
        (_, Some(_), _) => Err(usage("--parent is for --subformat differencing")),
        (Subformat::Fixed, None, Format::Vhdx) => {
            vhdx::create_fixed_watched(path, size()?, options, step).map_err(failed)
        }
        (Subformat::Dynamic, None, Format::Vhdx) => {
            vhdx::create_dynamic(path, size()?, options).map_err(failed)
        }
        (Subformat::Fixed, None, _) if block_size.is_some() => {
            Err(usage("--block-size of a vhd is for --subformat dynamic and differencing"))
        }
        (Subformat::Fixed, None, _) if new.sparse => vhd::create_fixed_sparse(path, size()?).map_err(failed),
        (Subformat::Fixed, None, _) => vhd::create_fixed_watched(path, size()?, step).map_err(failed),
        (Subformat::Dynamic, None, _) => vhd::create_dynamic(path, size()?, block_size).map_err(failed),
    }
}
