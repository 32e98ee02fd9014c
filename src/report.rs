//! `paradisk report`: results as one page.

use std::path::PathBuf;

use benches::html;

use crate::failure::Failure;
use crate::{documents, output};

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
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut pages = Vec::new();
    for path in &args.results {
        pages.push((path.display().to_string(), documents::read(path)?));
    }
    output::file(&args.html, &html::render(&pages))
}
