//! `paradisk bench --list`: what a suite would run, and for how long.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use benches::matrix::Candidate;
use benches::suite::{Form, Suite, creation_size};
use facts::units::format_size;

use super::args::Args;
use super::suite::about;
use super::suites::Suites;
use crate::failure::Failure;

/// The suite of `--suite` in detail, or all of them.
pub(super) fn render(args: &Args) -> Result<String, Failure> {
    let mut text = String::new();
    let one = match args.suite {
        Some(Suites::One(suite)) => Some(suite),
        Some(Suites::All) | None => None,
    };
    for suite in one.map_or_else(|| Suite::ALL.to_vec(), |suite| vec![suite]) {
        let [(full, full_time), (quick, quick_time)] =
            [Form::Full, Form::Quick].map(|form| size(args, suite, form));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<16}  {full:>5} rows, {:<18}  --quick {quick:>5} rows, {}",
            suite.as_str(),
            about(full_time),
            about(quick_time)
        );
    }
    if let Some(suite) = one.filter(|suite| *suite != Suite::Creation) {
        text += &rows(suite, args);
    }
    Ok(text)
}

/// Number of rows of a suite, and their time, if the host has all of its disks.
pub(super) fn size(args: &Args, suite: Suite, form: Form) -> (usize, Duration) {
    if suite == Suite::Creation {
        return creation_size(form, args.runs);
    }
    // If KVM opens, suites with guests run on both engines.
    let both = args.engine.is_none() && paradisk_vmm::Host::open().is_ok();
    let plan = suite.plan(suite.disks(), &args.wanted(form, suite));
    suite.size(&plan, if both { 2 } else { 1 })
}

/// Loads of a suite: a line for each, with its depths, and the path to the disks.
fn rows(suite: Suite, args: &Args) -> String {
    let plan = suite.plan(suite.disks(), &args.wanted(args.form(), suite));
    let mut order = Vec::new();
    let mut depths: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in plan.matrix.combinations() {
        let load = &row.load;
        let what = plan.matrix.mix_of(load).map_or_else(
            || format!("{} {}", load.access, format_size(load.block_size.into())),
            |mix| format!("{} ({})", mix.name, mix.summary()),
        );
        let candidate = match row.candidate {
            Candidate::Native => "native".to_owned(),
            Candidate::Adapter(adapter, policy) => format!("{adapter} ({policy})"),
        };
        let line = format!("{candidate}: {what}");
        let depth = load.queue_depth.to_string();
        let seen = depths.entry(line.clone()).or_insert_with(|| {
            order.push(line);
            Vec::new()
        });
        if !seen.contains(&depth) {
            seen.push(depth);
        }
    }
    let mut text = format!("\nOn {} disks, {} runs of {:?} each:\n", suite.disks(), plan.runs, plan.duration);
    for line in order {
        let _ = writeln!(text, "  {line}, depth {}", depths[&line].join(","));
    }
    text
}
