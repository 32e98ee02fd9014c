//! `paradisk image compare`.

use std::path::{Path, PathBuf};

use paradisk_disk_formats::image::{Content, compare};
use paradisk_disk_formats::{FormatName, OpenOptions};
use serde::Serialize;

use super::open::source;
use crate::failure::{Failure, Options};
use crate::output;
use crate::parents::Places;
use crate::progress::Progress;

/// Compare the contents of two disks of any format. Exit status 0 if they are equal, else 1.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  paradisk image compare disk.raw disk.vhd")]
pub(super) struct Args {
    /// A disk.
    a: PathBuf,
    /// Another disk. If one is longer, the rest must be zeros.
    b: PathBuf,
    /// Format of the first: raw, passthrough, vhd, vhdx [default: probed]
    #[arg(long)]
    format_a: Option<FormatName>,
    /// Format of the second
    #[arg(long)]
    format_b: Option<FormatName>,
    /// The parent of the first, wherever it is
    #[arg(long, value_name = "FILE")]
    parent_file_a: Option<PathBuf>,
    /// The parent of the second
    #[arg(long, value_name = "FILE")]
    parent_file_b: Option<PathBuf>,
    #[command(flatten)]
    places: Places,
    /// Print JSON
    #[arg(long, value_name = "OUT", num_args = 0..=1, default_missing_value = "-", value_parser = output::json_target())]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Verdict {
    equal: bool,
    first_difference: Option<u64>,
    sizes: [u64; 2],
}

const FIRST: Options =
    Options { format: "--format-a ", parent: Some("--parent-file-a FILE"), ..Options::IMAGE };
const SECOND: Options =
    Options { format: "--format-b ", parent: Some("--parent-file-b FILE"), ..Options::IMAGE };

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let open = |path: &Path, format, parent: &Option<PathBuf>, names| {
        let parents = args.places.rules(parent.as_deref());
        source(&OpenOptions { format, parents, ..OpenOptions::new(path) }, names)
    };
    let one = open(&args.a, args.format_a, &args.parent_file_a, &FIRST)?;
    let other = open(&args.b, args.format_b, &args.parent_file_b, &SECOND)?;
    let progress = Progress::bytes("comparing");
    let compared = progress.control(|control| compare(Content::new(&*one), Content::new(&*other), control));
    drop(progress);
    let compared = compared.map_err(|error| Failure::Failed(error.to_string()))?;
    let (first_difference, sizes) = (compared.first_difference, compared.capacities);
    let text = match first_difference {
        None if sizes[0] == sizes[1] => "the same\n".to_owned(),
        None => format!("the same, and zeros where one is longer ({} and {} bytes)\n", sizes[0], sizes[1]),
        Some(first) => format!("different from byte {first} on\n"),
    };
    let verdict = Verdict { equal: first_difference.is_none(), first_difference, sizes };
    output::json_or_text(&args.json, &verdict, &text)?;
    if first_difference.is_none() { Ok(()) } else { Err(Failure::Reported) }
}
