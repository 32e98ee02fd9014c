//! `paradisk image map`.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use paradisk_disk_formats::image::{Content, Run, Runs};
use paradisk_disk_formats::{FormatName, OpenOptions, Place, Status};
use serde::Serialize;

use super::open::source;
use crate::failure::{Failure, Options};
use crate::output::FileName;
use crate::parents::Parents;

/// Show the location of a disk's data: for each range, the file and the offset.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  paradisk image map child.vhd --json")]
pub(super) struct Args {
    /// The disk.
    file: PathBuf,
    /// Its format: raw, passthrough, vhd, vhdx [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
    #[command(flatten)]
    parents: Parents,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

/// An entry in the format of `qemu-img map`, with the file name.
#[derive(Serialize)]
struct Entry<'a> {
    start: u64,
    length: u64,
    /// Index of the image in the chain, from the top down.
    depth: u32,
    zero: bool,
    data: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filename: Option<&'a FileName>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let options =
        OpenOptions { format: args.format, parents: args.parents.rules(), ..OpenOptions::new(&args.file) };
    let format = source(&options, &Options::IMAGE)?;
    let names: Vec<FileName> = format.files().iter().map(|file| file.path().into()).collect();
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = |done: io::Result<()>| match done {
        // A closed pipe is no failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("standard output: {error}")))
        }
        Err(_) => Ok(false),
        Ok(()) => Ok(true),
    };
    let head = if args.json { "[" } else { "offset           length           place in file    file\n" };
    let mut go_on = printed(out.write_all(head.as_bytes()))?;
    for (number, run) in Runs::new(Content::new(&*format)).enumerate() {
        let run = run.map_err(|error| Failure::Failed(error.to_string()))?;
        go_on = go_on && printed(line(&mut out, &run, &names, number, args.json))?;
        if !go_on {
            return Ok(());
        }
    }
    printed(out.write_all(if args.json { b"]\n" } else { b"" }).and_then(|()| out.flush())).map(drop)
}

fn line(out: &mut impl Write, run: &Run, names: &[FileName], number: usize, json: bool) -> io::Result<()> {
    let (place, stored) = match run.place {
        Place::File { file, offset } => (Some((file, offset)), run.status == Status::Mapped),
        Place::Zeros => (None, false),
    };
    let name = place.and_then(|(file, _)| names.get(file as usize));
    if json {
        let entry = Entry {
            start: run.offset,
            length: run.len,
            depth: place.map_or(0, |(file, _)| file),
            zero: !stored,
            data: stored,
            offset: place.map(|(_, offset)| offset),
            filename: name,
        };
        if number > 0 {
            out.write_all(b",\n ")?;
        }
        return serde_json::to_writer(out, &entry).map_err(Into::into);
    }
    match (place, name) {
        (Some((_, offset)), Some(name)) => {
            let hole = if stored { "" } else { " (hole)" };
            writeln!(out, "{:#016x} {:#016x} {offset:#016x} {name}{hole}", run.offset, run.len)
        }
        _ => writeln!(out, "{:#016x} {:#016x} -                zeros", run.offset, run.len),
    }
}
