//! `paradisk image convert`.

use std::path::{Path, PathBuf};

use facts::units::format_size;
use paradisk_disk_formats::image::{Content, Converted, ImageError, Output, convert, write_difference};
use paradisk_disk_formats::{Access, FormatName, OpenError, OpenOptions, SectorSize, escaped, vhd, vhdx};
use serde::Serialize;

use super::create::{self, Format, New, Subformat};
use super::open::{failed, not_created, source};
use crate::failure::{Failure, Options};
use crate::output;
use crate::parents::Parents;
use crate::progress::Progress;
use crate::units;

/// Copy a disk into a new image of any format. Zeros take no space if the format allows it; data that the file system
/// can share are not copied. The new image is complete under its name, or absent.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk image convert disk.raw disk.vhd --format vhd --subformat dynamic
  paradisk image convert child.vhd whole.raw --format raw
  paradisk image convert disk.vhd disk.vhdx --format vhdx --block-size 2M
  paradisk image convert new.raw new.vhdx --format vhdx --parent old.vhdx")]
pub(super) struct Args {
    /// The disk to copy: an image, a chain of images, or a block device.
    source: PathBuf,
    /// The image to create. An existing file is never overwritten.
    destination: PathBuf,
    /// Format of the new image.
    #[arg(long)]
    format: Format,
    /// Kind of disk, of vhd and vhdx [default: dynamic; differencing with --parent]
    #[arg(long)]
    subformat: Option<Subformat>,
    /// The parent of the new disk, of the same format and size: only differences from it are written. It must not
    /// change from now on.
    #[arg(long, value_name = "FILE")]
    parent: Option<PathBuf>,
    /// Bytes of a block, a power of two [default: 2M; 32M for a VHDX without --parent]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    block_size: Option<u64>,
    /// Smallest unit that guests address, of a VHDX: 512 or 4096 [default: the source's]
    #[arg(long, value_name = "BYTES", value_parser = create::sector_size)]
    logical_sector_size: Option<SectorSize>,
    /// Allocate no space for zeros of a fixed vhd (--subformat fixed). Windows does not attach sparse files
    #[arg(long)]
    sparse: bool,
    /// Format of the source: raw, passthrough, vhd, vhdx [default: probed]
    #[arg(long)]
    from_format: Option<FormatName>,
    /// Read and write past the host's page cache
    #[arg(long)]
    direct: bool,
    #[command(flatten)]
    parents: Parents,
    /// Print JSON
    #[arg(long, value_name = "OUT", num_args = 0..=1, default_missing_value = "-", value_parser = output::json_target())]
    json: Option<PathBuf>,
}

/// Bytes by how they were copied.
#[derive(Serialize)]
struct Report {
    capacity: u64,
    written: u64,
    cloned: u64,
    copied_by_server: u64,
    zeros: u64,
}

const SOURCE: Options = Options { format: "--from-format ", ..Options::IMAGE };

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let options = OpenOptions {
        format: args.from_format,
        direct: args.direct.then_some(true),
        parents: args.parents.rules(),
        ..OpenOptions::new(&args.source)
    };
    let from = source(&options, &SOURCE)?;
    let target = Target {
        path: &args.destination,
        format: args.format,
        subformat: args.subformat,
        block_size: args.block_size,
        logical_sector: args.logical_sector_size,
        sparse: args.sparse,
        direct: args.direct,
    };
    match (&args.parent, args.subformat) {
        (Some(parent), None | Some(Subformat::Differencing)) => difference(&*from, parent, args, &target),
        (Some(_), Some(_)) => Err(Failure::Usage("--parent is for --subformat differencing".to_owned())),
        (None, _) => copy(&*from, &target, &args.json),
    }
}

/// Create a differencing disk with the content of `from`.
fn difference(
    from: &dyn paradisk_disk_formats::Format,
    parent: &Path,
    args: &Args,
    target: &Target<'_>,
) -> Result<(), Failure> {
    let progress = Progress::bytes("comparing");
    let output = Output::new(target.path).map_err(failed)?;
    let new = New {
        format: target.format,
        subformat: Some(Subformat::Differencing),
        size: None,
        parent: Some(parent),
        block_size: target.block_size,
        logical_sector: target.logical_sector,
        sparse: target.sparse,
    };
    create::make(&output, &new, &progress)?;
    let options = OpenOptions {
        format: Some(target.format.name()),
        direct: args.direct.then_some(true),
        // --parent-file is of the source.
        parents: args.parents.places.rules(None),
        ..OpenOptions::new(parent)
    };
    let base = source(&options, &Options { parent: None, ..SOURCE })?;
    let [own, other] = [from, &*base].map(|disk| disk.info().capacity);
    if own != other {
        let why = format!("{}: it has {other} bytes, the source {own}: resize one", escaped(parent));
        return Err(Failure::Failed(why));
    }
    let name = |error: OpenError| failed(error.renamed(output.part(), output.path()));
    let child = match target.format {
        Format::Vhdx => vhdx::open_alone(output.part(), Access::default()),
        _ => vhd::open_alone(output.part(), Access::default()),
    };
    let child = child.map_err(name)?;
    let step = |done, total| progress.step(done, total);
    let [source, base, to] = [from, &*base, &*child].map(Content::new);
    let written = write_difference(source, base, to, step).map_err(|error| match error {
        ImageError::Cancelled => not_created(),
        error => Failure::Failed(error.renamed(output.part(), output.path()).to_string()),
    })?;
    drop((child, progress));
    output.finish().map_err(failed)?;
    create::note_place(target.path, parent);
    let report = Report { capacity: own, written, cloned: 0, copied_by_server: 0, zeros: 0 };
    output::json_or_text(&args.json, &report, &format!("{} differ\n", format_size(written)))
}

/// The image to be created by a copy.
pub(super) struct Target<'a> {
    pub(super) path: &'a Path,
    pub(super) format: Format,
    /// Of a VHD or VHDX; `None`: dynamic.
    pub(super) subformat: Option<Subformat>,
    pub(super) block_size: Option<u64>,
    /// Of a VHDX; `None`: the source's.
    pub(super) logical_sector: Option<SectorSize>,
    /// Of a fixed VHD: without space for zeros.
    pub(super) sparse: bool,
    /// Write with direct I/O.
    pub(super) direct: bool,
}

impl<'a> Target<'a> {
    /// A dynamic disk with default options.
    pub(super) fn dynamic(path: &'a Path, format: Format) -> Self {
        Self {
            path,
            format,
            subformat: None,
            block_size: None,
            logical_sector: None,
            sparse: false,
            direct: false,
        }
    }
}

/// The sector size of the new image, checked against the content.
fn sectors(
    from: &dyn paradisk_disk_formats::Format,
    target: &Target<'_>,
) -> Result<Option<SectorSize>, Failure> {
    let (info, capacity) = (from.info(), from.info().capacity);
    let new = match target.format {
        Format::Vhdx => match target.logical_sector {
            Some(sector) => sector,
            // A raw disk does not say how it was used; its partition table may.
            None if !has_own_sectors(info.kind.format) => {
                partition_sector(from)?.unwrap_or(info.logical_sector)
            }
            None => info.logical_sector,
        },
        // A raw image has no sector size.
        Format::Raw => return Ok(target.logical_sector),
        Format::Vhd => target.logical_sector.unwrap_or(SectorSize::B512),
    };
    let bytes = u64::from(new.bytes());
    if !capacity.is_multiple_of(bytes) {
        let why = format!("the disk has {capacity} bytes: not whole sectors of {bytes} (resize it first)");
        return Err(Failure::Failed(why));
    }
    let Some(counted) = partition_sector(from)?.filter(|counted| *counted != new) else {
        return Ok(Some(new));
    };
    let why = format!(
        "the disk has a partition table that counts in sectors of {}: with sectors of {bytes} it would mean other places",
        counted.bytes()
    );
    Err(Failure::Failed(why))
}

/// Whether the sector size is part of the image.
fn has_own_sectors(format: &str) -> bool {
    format.parse().is_ok_and(FormatName::has_blocks)
}

/// The size of the sectors that the partition table counts in, if there is one: an MBR does not say it.
fn partition_sector(from: &dyn paradisk_disk_formats::Format) -> Result<Option<SectorSize>, Failure> {
    let content = Content::new(from);
    let failed = |error: ImageError| Failure::Failed(error.to_string());
    if let Some(sector) = content.gpt_sector().map_err(failed)? {
        return Ok(Some(sector));
    }
    let mut mbr = [0; 512];
    if from.info().capacity >= 512 {
        content.read_at(&mut mbr, 0).map_err(failed)?;
    }
    Ok((mbr[510..] == [0x55, 0xAA]).then_some(from.info().logical_sector))
}

/// Copy the disk `from` into a new image.
pub(super) fn copy(
    from: &dyn paradisk_disk_formats::Format,
    target: &Target<'_>,
    json: &Option<PathBuf>,
) -> Result<(), Failure> {
    let subformat = match (target.format, target.subformat) {
        (Format::Vhd | Format::Vhdx, None) => Some(Subformat::Dynamic),
        (_, Some(Subformat::Differencing)) => {
            let why = "--subformat differencing needs --parent FILE";
            return Err(Failure::Usage(why.to_owned()));
        }
        (_, chosen) => chosen,
    };
    let logical_sector = sectors(from, target)?;
    // From now on, a signal leaves no incomplete file.
    let progress = Progress::bytes("allocating");
    let output = Output::new(target.path).map_err(failed)?;
    let capacity = from.info().capacity;
    let new = New {
        format: target.format,
        subformat,
        size: Some(capacity),
        parent: None,
        block_size: target.block_size,
        logical_sector,
        sparse: target.sparse,
    };
    create::make(&output, &new, &progress)?;
    progress.now("converting");
    let done = fill(from, &output, target, &progress);
    drop(progress);
    let done = done?;
    output.finish().map_err(failed)?;
    if target.sparse {
        create::note_sparse(target.path);
    }
    let moved = done.written + done.cloned + done.copied_by_server;
    let report = Report {
        capacity,
        written: done.written,
        cloned: done.cloned,
        copied_by_server: done.copied_by_server,
        // A block that was shared only in part is counted twice.
        zeros: capacity.saturating_sub(moved),
    };
    let [copied, cloned, zeros] =
        [done.written + done.copied_by_server, done.cloned, report.zeros].map(format_size);
    let text = format!("{copied} copied, {cloned} shared, {zeros} zeros left out\n");
    output::json_or_text(json, &report, &text)
}

/// Copy into the new image, which is closed when this returns.
fn fill(
    from: &dyn paradisk_disk_formats::Format,
    output: &Output,
    target: &Target<'_>,
    progress: &Progress,
) -> Result<Converted, Failure> {
    let format = Some(target.format.name());
    let options = OpenOptions { format, direct: Some(target.direct), ..OpenOptions::new(output.part()) };
    let to = options.open_format().map_err(|error| failed(error.renamed(output.part(), output.path())))?;
    let converted = progress.control(|control| convert(Content::new(from), Content::new(&*to), control));
    converted.map_err(|error| match error {
        ImageError::Cancelled => not_created(),
        error => Failure::Failed(error.renamed(output.part(), output.path()).to_string()),
    })
}
