//! `paradisk image compare`.

use std::path::PathBuf;

use paradisk_disk_formats::image::{Content, compare};
use paradisk_disk_formats::{FormatName, OpenOptions};
use serde::Serialize;

use super::open::source;
use crate::failure::Failure;
use crate::output;
use crate::parents::Parents;
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
    #[command(flatten)]
    parents: Parents,
    /// Print JSON
    #[arg(long, value_name = "OUT", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Verdict {
    equal: bool,
    first_difference: Option<u64>,
    sizes: [u64; 2],
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let open = |path, format, option| {
        let options = OpenOptions { format, parents: args.parents.rules(), ..OpenOptions::new(path) };
        source(&options, option)
    };
    let one = open(&args.a, args.format_a, "--format-a ")?;
    let other = open(&args.b, args.format_b, "--format-b ")?;
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
