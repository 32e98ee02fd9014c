//! `paradisk image`: virtual disks as files.

use std::path::PathBuf;

use benches::table;
use clap::{Subcommand, ValueEnum};
use disk_formats::{FormatName, OpenOptions, Raw, vhd};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;
use crate::units;

/// Create images and look at them.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(Create),
    Info(Info),
}

/// Create an image. An existing file is never overwritten.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  paradisk image create disk.vhd --format vhd --size 10G")]
struct Create {
    /// The image to create.
    file: PathBuf,
    /// Its format.
    #[arg(long)]
    format: CreateFormat,
    /// Size of the disk, whole sectors of 512 bytes, as 512M or 10G.
    #[arg(long, value_parser = units::size)]
    size: u64,
    /// Kind of VHD [default: fixed]
    #[arg(long)]
    subformat: Option<Subformat>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CreateFormat {
    /// The file's bytes are the disk's.
    Raw,
    /// VHD.
    Vhd,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Subformat {
    /// All space is in the file from the start.
    Fixed,
}

/// Say what a disk is: an image or a block device.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  paradisk image info disk.vhd --json")]
struct Info {
    /// The image or block device.
    file: PathBuf,
    /// Its format: raw, passthrough, vhd [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
    /// Print JSON, or write it to OUT.
    #[arg(long, value_name = "OUT", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// What `info --json` prints.
#[derive(Serialize)]
struct Description {
    path: String,
    format: &'static str,
    subformat: Option<&'static str>,
    capacity: u64,
    logical_sector_size: u32,
    physical_sector_size: u32,
    discard_granularity: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Create(args) => create(args),
        Command::Info(args) => info(args),
    }
}

fn create(args: &Create) -> Result<(), Failure> {
    let created = match (args.format, args.subformat) {
        (CreateFormat::Raw, Some(_)) => {
            return Err(Failure::Usage("--subformat is for vhd: a raw image has no kinds".to_owned()));
        }
        (CreateFormat::Raw, None) => Raw::create(&args.file, args.size),
        (CreateFormat::Vhd, None | Some(Subformat::Fixed)) => vhd::create_fixed(&args.file, args.size),
    };
    created.map_err(|error| Failure::Failed(error.to_string()))
}

fn info(args: &Info) -> Result<(), Failure> {
    let options = OpenOptions { format: args.format, read_only: true, ..OpenOptions::new(&args.file) };
    let format = options.open_format().map_err(|error| Failure::Failed(error.to_string()))?;
    let info = format.info();
    let description = Description {
        path: args.file.display().to_string(),
        format: info.kind.format,
        subformat: info.kind.subformat,
        capacity: info.capacity,
        logical_sector_size: info.logical_sector.bytes(),
        physical_sector_size: info.physical_sector,
        discard_granularity: info.discard.map(|discard| discard.granularity),
    };
    output::json(&args.json, &description)?;
    if output::json_on_stdout(&args.json) {
        return Ok(());
    }
    let (capacity, short) = (description.capacity, table::size(description.capacity));
    let size = if short == capacity.to_string() { short } else { format!("{short} ({capacity} bytes)") };
    output::print(&format!(
        "image: {}\nformat: {}\nsize: {size}\nsectors: {} bytes logical, {} bytes physical\ndiscard: {}\n",
        description.path,
        [description.format, description.subformat.unwrap_or_default()].join(" ").trim_end(),
        description.logical_sector_size,
        description.physical_sector_size,
        match description.discard_granularity {
            Some(granularity) => format!("in steps of {granularity} bytes"),
            None => "no".to_owned(),
        },
    ))
}
