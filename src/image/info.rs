//! `paradisk image info`.

use std::fmt::Write;
use std::path::PathBuf;

use benches::table;
use disk_formats::vhd::{self, Description};
use disk_formats::{DiskInfo, FormatName, OpenOptions};
use serde::Serialize;

use super::failed;
use crate::failure::Failure;
use crate::output;
use crate::parents::Parents;

/// Say what a disk is: an image or a block device.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  paradisk image info disk.vhd --json\n  paradisk image info child.vhd --chain"
)]
pub(super) struct Args {
    /// The image or block device.
    file: PathBuf,
    /// Its format: raw, passthrough, vhd [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
    /// Tell of all images that a differencing disk stands on, too
    #[arg(long)]
    chain: bool,
    #[command(flatten)]
    parents: Parents,
    /// Print JSON, or write it to OUT.
    #[arg(long, value_name = "OUT", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// What `info --json` prints.
#[derive(Serialize)]
struct Info {
    path: String,
    format: &'static str,
    subformat: Option<&'static str>,
    capacity: u64,
    logical_sector_size: u32,
    physical_sector_size: u32,
    discard_granularity: Option<u64>,
    /// Of a VHD: itself, and with --chain what it stands on, from the top down.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<Image>,
}

#[derive(Serialize)]
struct Image {
    path: String,
    subformat: &'static str,
    size: u64,
    file_size: u64,
    block_size: Option<u64>,
    allocated_blocks: Option<u64>,
    total_blocks: Option<u64>,
    unique_id: String,
    creator: String,
    time_stamp: u64,
    footer_from_copy: bool,
    parent_unique_id: Option<String>,
    parent_candidates: Vec<String>,
}

impl Image {
    fn new(image: Description) -> Self {
        let (id, candidates) = image.parent.map_or((None, Vec::new()), |(id, paths)| (Some(id), paths));
        Self {
            path: image.path.display().to_string(),
            subformat: image.subformat,
            size: image.size,
            file_size: image.file_size,
            block_size: image.block_size,
            allocated_blocks: image.blocks.map(|(allocated, _)| allocated),
            total_blocks: image.blocks.map(|(_, total)| total),
            unique_id: image.unique_id,
            creator: image.creator,
            time_stamp: image.time_stamp,
            footer_from_copy: image.footer_from_copy,
            parent_unique_id: id,
            parent_candidates: candidates.iter().map(|path| path.display().to_string()).collect(),
        }
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\nimage: {}", self.path)?;
        writeln!(text, "  kind: {}, made by \"{}\" at @{}", self.subformat, self.creator, self.time_stamp)?;
        writeln!(text, "  size: {}, file {}", bytes(self.size), bytes(self.file_size))?;
        if let (Some(size), Some(allocated), Some(total)) =
            (self.block_size, self.allocated_blocks, self.total_blocks)
        {
            writeln!(text, "  blocks: {allocated} of {total} allocated, {} each", table::size(size))?;
        }
        writeln!(text, "  identity: {}", self.unique_id)?;
        if self.footer_from_copy {
            writeln!(
                text,
                "  footer: missing or damaged at the end, read from the start (`image check --repair`)"
            )?;
        }
        if let Some(id) = &self.parent_unique_id {
            writeln!(text, "  parent: {id}, looked for at {}", self.parent_candidates.join(", "))?;
        }
        Ok(())
    }
}

fn bytes(count: u64) -> String {
    let short = table::size(count);
    if short == count.to_string() { format!("{short} bytes") } else { format!("{short} ({count} bytes)") }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let rules = args.parents.rules();
    let name = match args.format {
        Some(name) => name,
        None => FormatName::probe(&args.file).map_err(failed)?,
    };
    let images = match name {
        FormatName::Vhd => vhd::inspect(&args.file, args.chain, &rules).map_err(failed)?,
        FormatName::Raw | FormatName::Passthrough if args.chain => {
            return Err(Failure::Usage(format!("--chain: a {name} disk stands on nothing")));
        }
        FormatName::Raw | FormatName::Passthrough => Vec::new(),
    };
    let info = match images.first() {
        // Without --chain it need not have its parents here.
        Some(top) if !args.chain => of_image(top),
        _ => {
            let options = OpenOptions {
                format: Some(name),
                read_only: true,
                parents: rules,
                ..OpenOptions::new(&args.file)
            };
            of_disk(args, options.open_format().map_err(failed)?.info())
        }
    };
    let info = Info { images: images.into_iter().map(Image::new).collect(), ..info };
    output::json(&args.json, &info)?;
    if output::json_on_stdout(&args.json) {
        return Ok(());
    }
    output::print(&text(&info))
}

fn of_image(image: &Description) -> Info {
    Info {
        path: image.path.display().to_string(),
        format: "vhd",
        subformat: Some(image.subformat),
        capacity: image.size,
        logical_sector_size: 512,
        physical_sector_size: 4096,
        discard_granularity: None,
        images: Vec::new(),
    }
}

fn of_disk(args: &Args, info: &DiskInfo) -> Info {
    Info {
        path: args.file.display().to_string(),
        format: info.kind.format,
        subformat: info.kind.subformat,
        capacity: info.capacity,
        logical_sector_size: info.logical_sector.bytes(),
        physical_sector_size: info.physical_sector,
        discard_granularity: info.discard.map(|discard| discard.granularity),
        images: Vec::new(),
    }
}

fn text(info: &Info) -> String {
    let mut text = format!(
        "image: {}\nformat: {}\nsize: {}\nsectors: {} bytes logical, {} bytes physical\n",
        info.path,
        [info.format, info.subformat.unwrap_or_default()].join(" ").trim_end(),
        bytes(info.capacity),
        info.logical_sector_size,
        info.physical_sector_size,
    );
    if let Some(granularity) = info.discard_granularity {
        let _ = writeln!(text, "discard: in steps of {granularity} bytes");
    }
    for image in &info.images {
        // Writing to a string does not fail.
        let _ = image.write(&mut text);
    }
    text
}
