//! The files that a measurement writes.

use std::path::PathBuf;

use benches::result::Document;
use benches::{csv, html};

use super::args::Args;
use crate::failure::Failure;
use crate::output;

/// Write the JSON, CSV and HTML files of the options; their paths.
pub(super) fn write_results(args: &Args, document: &Document, name: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    output::json(&args.json, document)?;
    written.extend(args.json.clone().filter(|_| !output::json_on_stdout(&args.json)));
    if let Some(path) = &args.csv {
        output::file(path, &csv::render(document))?;
        written.push(path.clone());
    }
    if let Some(path) = &args.html {
        output::file(path, &html::render(&[(name.to_owned(), document.clone())]))?;
        written.push(path.clone());
    }
    Ok(written)
}
