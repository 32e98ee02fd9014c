//! `paradisk bench compare`: a gate for regressions.

use std::path::PathBuf;

use benches::confidence::Verdict;
use benches::regression::{self, Margins, Named};
use benches::table;
use paradisk_disk_formats::escaped;

use crate::failure::Failure;
use crate::{documents, output};

/// Exit status if a row got slower.
const SLOWER: u8 = 3;

/// Compare two results of `bench --json FILE` row by row: which rows got faster or slower from A to B.
///
/// Rows match by adapter, disk, engine, access, sizes and policy. For cycles per I/O, IOPS and the 99th percentile of latency, the ratio B
/// / A of the medians has a 95% bootstrap interval and a verdict: equal (the whole interval is within the margin), faster or slower (the
/// interval excludes 1, and the ratio is outside the margin), or not decided. Rows that only one file has are listed.
///
/// Exit status: 0; 3 if a row got slower; 1 if a file cannot be read, no row can be compared or accesses failed; 2 for invalid arguments.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk bench --json before.json
  paradisk bench --json after.json
  paradisk bench compare before.json after.json; [ $? = 3 ] && echo slower
  paradisk bench compare before.json after.json --margin 2 --json")]
pub(super) struct Args {
    /// The baseline
    #[arg(value_name = "A.json")]
    baseline: PathBuf,
    /// The candidate
    #[arg(value_name = "B.json")]
    candidate: PathBuf,
    /// Differences up to this count as equal, in percent [default: 5, and 10 for latencies]
    #[arg(long, value_name = "PERCENT", value_parser = margin)]
    margin: Option<f64>,
    /// Write the comparison as JSON to FILE, or to standard output in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = output::json_target())]
    json: Option<PathBuf>,
}

/// A margin in percent, as a fraction.
fn margin(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.1..=100.0).contains(percent));
    percent
        .map(|percent: f64| percent / 100.0)
        .ok_or_else(|| format!("margin `{text}`: expected 0.1 to 100 percent"))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let documents = (documents::read(&args.baseline)?, documents::read(&args.candidate)?);
    let names = (escaped(&args.baseline).to_string(), escaped(&args.candidate).to_string());
    let baseline = Named { name: &names.0, document: &documents.0 };
    let candidate = Named { name: &names.1, document: &documents.1 };
    let usual = Margins::default();
    let margins = args.margin.map_or(usual, |margin| Margins { means: margin, percentiles: margin });
    let regression = regression::compare(baseline, candidate, margins)
        .map_err(|refusal| Failure::Failed(refusal.to_string()))?;
    output::json(&args.json, &regression)?;
    let text = table::render_regression(&regression, baseline, candidate);
    output::conclude(&args.json, &text, &regression.notes, false)?;
    let (slower, failed) = (regression.count(Verdict::Slower), regression.failed.len());
    let of = regression.comparisons.len();
    match (slower, failed) {
        (1.., _) => {
            Err(Failure::Ended { status: SLOWER, text: format!("slower: {slower} of {of} comparisons") })
        }
        (0, 1..) => Err(Failure::Failed(format!("{failed} rows have failed accesses"))),
        (0, 0) if regression.is_blind() => Err(Failure::Failed(
            "nothing is judged: no row has the values of 2 runs or more in both files".to_owned(),
        )),
        (0, 0) => Ok(()),
    }
}
