//! `paradisk report`: results as one page.

use std::path::PathBuf;

use benches::html;
use paradisk_disk_formats::escaped;

use crate::failure::Failure;
use crate::{documents, output, units};

/// Make one self-contained HTML page, with tables and plots, of results that `bench --json FILE` wrote.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  paradisk bench --json results.json\n  paradisk report results.json --html report.html"
)]
pub(crate) struct Args {
    /// Results of `bench --json FILE`.
    #[arg(required = true, value_name = "RESULTS.json")]
    results: Vec<PathBuf>,
    /// The page to write.
    #[arg(long, value_name = "FILE", value_parser = output::html_target())]
    html: PathBuf,
    /// Bytes of the page at the most, as 400K; what does not fit is left out with a note, full tables first [default: 2 MB]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    most: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut pages = Vec::new();
    for path in &args.results {
        pages.push((escaped(path).to_string(), documents::read(path)?));
    }
    let most = args.most.map_or(html::MOST, |most| most.try_into().unwrap_or(usize::MAX).min(html::MOST));
    output::file(&args.html, &html::render_within(&pages, most))
}
