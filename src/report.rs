//! `paradisk report`: results as one page.

use std::fs;
use std::path::PathBuf;

use benches::html;
use benches::result::Document;
use facts::SCHEMA;

use crate::failure::Failure;
use crate::output;

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
    let mut documents = Vec::new();
    for path in &args.results {
        let text = fs::read_to_string(path).map_err(|error| Failure::on(path, "cannot read", error))?;
        let document: Document = serde_json::from_str(&text)
            .map_err(|error| Failure::on(path, "not results of `bench --json`", error))?;
        if document.schema != SCHEMA {
            let found = format!("schema is {}, expected {SCHEMA}", document.schema);
            return Err(Failure::on(path, "cannot be shown", found));
        }
        documents.push((path.display().to_string(), document));
    }
    output::file(&args.html, &html::render(&documents))
}
