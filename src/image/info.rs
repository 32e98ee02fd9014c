//! `paradisk image info`.

use std::fmt::Write;
use std::path::PathBuf;

use facts::units::format_size;
use paradisk_disk_formats::{
    DiskInfo, FormatInfo, FormatName, ImageInfo, OpenOptions, Scope, escaped, is_nested,
};
use serde::Serialize;

use super::open::{failed, format_of};
use crate::failure::Failure;
use crate::output::{self, FileName};
use crate::parents::Parents;

/// Describe a disk: an image or a block device.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  paradisk image info disk.vhd --json\n  paradisk image info child.vhd --chain"
)]
pub(super) struct Args {
    /// The image or block device.
    file: PathBuf,
    /// Its format: raw, passthrough, vhd, vhdx [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
    /// Describe the parents of a differencing disk, too
    #[arg(long)]
    chain: bool,
    #[command(flatten)]
    parents: Parents,
    /// Print JSON, or write it to OUT.
    #[arg(long, value_name = "OUT", num_args = 0..=1, default_missing_value = "-", value_parser = output::json_target())]
    json: Option<PathBuf>,
}

/// The output of `info --json`.
#[derive(Serialize)]
struct Info {
    path: FileName,
    format: &'static str,
    subformat: Option<&'static str>,
    capacity: u64,
    logical_sector_size: u32,
    physical_sector_size: u32,
    discard_granularity: Option<u64>,
    /// Of a VHD or VHDX: itself, and with --chain its parents, from the top down.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<Image>,
}

#[derive(Serialize)]
struct Image {
    path: FileName,
    subformat: &'static str,
    size: u64,
    file_size: u64,
    block_size: Option<u64>,
    allocated_blocks: Option<u64>,
    total_blocks: Option<u64>,
    unique_id: String,
    creator: String,
    /// Of a VHD: seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    time_stamp: Option<u64>,
    /// Of a VHD: the footer at the end is missing or damaged, and the copy at the start was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    footer_from_copy: Option<bool>,
    /// Of a VHDX: the identifier of its content, which children record.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_write_guid: Option<String>,
    /// Of a VHDX: number of log entries to be replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_entries: Option<usize>,
    /// The parent's identity that the child has recorded.
    parent_unique_id: Option<String>,
    parent_candidates: Vec<FileName>,
}

impl Image {
    fn new(image: ImageInfo) -> Self {
        let (id, candidates) =
            image.parent.map_or((None, Vec::new()), |parent| (Some(parent.id), parent.candidates));
        let new = Self {
            path: image.path.into(),
            subformat: image.subformat,
            size: image.size,
            file_size: image.file_size,
            block_size: image.block_size,
            allocated_blocks: image.blocks.map(|(allocated, _)| allocated),
            total_blocks: image.blocks.map(|(_, total)| total),
            unique_id: image.id,
            creator: image.creator,
            time_stamp: None,
            footer_from_copy: None,
            data_write_guid: None,
            log_entries: None,
            parent_unique_id: id,
            parent_candidates: candidates.into_iter().map(FileName::from).collect(),
        };
        match image.format {
            FormatInfo::Vhd { time_stamp, footer_from_copy, .. } => {
                Self { time_stamp: Some(time_stamp), footer_from_copy: Some(footer_from_copy), ..new }
            }
            FormatInfo::Vhdx { data_write_guid, log_entries, .. } => {
                Self { data_write_guid: Some(data_write_guid), log_entries: Some(log_entries), ..new }
            }
            _ => new,
        }
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\nimage: {}", self.path)?;
        let stamp = self.time_stamp.map(|stamp| format!(" at @{stamp}")).unwrap_or_default();
        writeln!(text, "  kind: {}, made by \"{}\"{stamp}", self.subformat, escaped(&self.creator))?;
        writeln!(text, "  size: {}, file {}", bytes(self.size), bytes(self.file_size))?;
        if let (Some(size), Some(allocated), Some(total)) =
            (self.block_size, self.allocated_blocks, self.total_blocks)
        {
            writeln!(text, "  blocks: {allocated} of {total} allocated, {} each", format_size(size))?;
        }
        writeln!(text, "  identity: {}", self.unique_id)?;
        if let Some(guid) = &self.data_write_guid {
            writeln!(text, "  data: {guid}")?;
        }
        if let Some(entries) = self.log_entries.filter(|entries| *entries > 0) {
            writeln!(
                text,
                "  log: {entries} entries to replay: it was not closed (opening it for writing replays them)"
            )?;
        }
        if self.footer_from_copy == Some(true) {
            writeln!(
                text,
                "  footer: missing or damaged at the end, read from the start (`image check --repair`)"
            )?;
        }
        if let Some(id) = &self.parent_unique_id {
            let candidates: Vec<String> = self.parent_candidates.iter().map(FileName::to_string).collect();
            writeln!(text, "  parent: {id}, looked for at {}", candidates.join(", "))?;
        }
        Ok(())
    }
}

fn bytes(count: u64) -> String {
    let short = format_size(count);
    if short == count.to_string() { format!("{short} bytes") } else { format!("{short} ({count} bytes)") }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let rules = args.parents.rules();
    let name = format_of(&args.file, args.format)?;
    let images = if is_nested(&args.file) {
        Vec::new()
    } else if name.has_blocks() {
        let image = paradisk_disk_formats::Image::of_format(&args.file, name).with_parents(rules.clone());
        image.info(if args.chain { Scope::Chain } else { Scope::Image }).map_err(failed)?
    } else if args.chain {
        return Err(Failure::Usage(format!("--chain: a {name} disk has no parents")));
    } else {
        Vec::new()
    };
    let info = match images.first() {
        // Without --chain, the parents need not exist.
        Some(top) if !args.chain => of_image(name, top),
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
    let images = images.into_iter().map(Image::new).collect();
    let info = Info { images, ..info };
    output::json_or_text(&args.json, &info, &text(&info))
}

fn of_image(name: FormatName, image: &ImageInfo) -> Info {
    Info {
        path: (&image.path).into(),
        format: name.as_str(),
        subformat: Some(image.subformat),
        capacity: image.size,
        logical_sector_size: image.logical_sector.bytes(),
        physical_sector_size: image.physical_sector,
        discard_granularity: None,
        images: Vec::new(),
    }
}

fn of_disk(args: &Args, info: &DiskInfo) -> Info {
    Info {
        path: (&args.file).into(),
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
