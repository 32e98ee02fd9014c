//! `paradisk image check`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use paradisk_disk_formats::{
    Finding, FormatName, Image, OpenError, OpenOptions, Repair, Scope, Severity, escaped, is_nested,
};
use serde::Serialize;

use super::open::failed;
use crate::failure::{Failure, Options};
use crate::output::{self, FileName};
use crate::parents::Parents;
use crate::tell;

/// Find all errors of images; exit status 0 if no data is in danger.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  paradisk image check disk.vhd --repair\n  paradisk image check *.vhdx --json"
)]
pub(super) struct Args {
    /// The images.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Its format: raw, vhd, vhdx [default: probed]
    #[arg(long)]
    format: Option<FormatName>,
    /// Repair errors if possible, and report lost data
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    parents: Parents,
    /// Print JSON, or write it to OUT. Of several images a list.
    #[arg(long, value_name = "OUT", num_args = 0..=1, default_missing_value = "-", value_parser = output::json_target())]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    path: FileName,
    format: &'static str,
    allocated_blocks: u64,
    total_blocks: u64,
    leaked_bytes: u64,
    findings: Vec<Entry>,
    /// The number of findings beyond those listed.
    more_findings: u64,
    /// Why parents were not checked: what could not be read, or is not allowed. That says nothing about the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    parents_not_checked: Option<String>,
    /// Whether all data of what was checked can be read and written. Leaks and lost copies do no harm.
    ok: bool,
    /// Parents could not be read.
    #[serde(skip)]
    unread: bool,
}

#[derive(Serialize)]
struct Entry {
    severity: &'static str,
    field: String,
    value: String,
    expected: String,
    repaired: Option<&'static str>,
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Leak => "leak",
        Severity::Redundancy => "redundancy",
        Severity::Damage => "damage",
    }
}

impl Entry {
    fn new(finding: Finding) -> Self {
        Self {
            severity: word(finding.severity),
            field: finding.field.to_owned(),
            value: finding.value,
            expected: finding.expected,
            repaired: finding.repaired,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.parents.is_named() && args.files.len() > 1 {
        let why = "--parent-file names the parent of one image: check one FILE at a time, or allow a directory (--parent-dir DIR)";
        return Err(Failure::Usage(why.to_owned()));
    }
    let mut reports = Vec::new();
    let mut unread = false;
    for file in &args.files {
        match check(args, file) {
            Ok(report) => reports.push(report),
            Err(failure) if args.files.len() == 1 => return Err(failure),
            Err(failure) => {
                tell::failure(&failure);
                unread = true;
            }
        }
    }
    let text: String = reports.iter().map(text).collect();
    match &reports[..] {
        [report] if args.files.len() == 1 => output::json_or_text(&args.json, report, &text)?,
        _ => output::json_or_text(&args.json, &reports, &text)?,
    }
    let good = |report: &Report| report.ok && !report.unread;
    if !unread && reports.iter().all(good) { Ok(()) } else { Err(Failure::Reported) }
}

fn check(args: &Args, file: &Path) -> Result<Report, Failure> {
    let name = format(args, file)?;
    let image = Image::of_format(file, name).with_parents(args.parents.rules());
    let found = image.check(if args.repair { Repair::Repair } else { Repair::ReportOnly }).map_err(failed)?;
    let worst = found.worst();
    let mut report = Report {
        path: file.into(),
        format: name.as_str(),
        allocated_blocks: found.allocated_blocks,
        total_blocks: found.total_blocks,
        leaked_bytes: found.leaked,
        findings: found.findings.into_iter().map(Entry::new).collect(),
        more_findings: found.more.0,
        parents_not_checked: None,
        ok: worst < Some(Severity::Damage),
        unread: false,
    };
    // Parents are opened only if the image itself is not damaged.
    if worst < Some(Severity::Damage)
        && let Err(error) = chain(args, file, &image)
    {
        let why = Options::IMAGE.text(&error);
        if error.is_access() {
            report.unread = !matches!(error, OpenError::ParentNotAllowed { .. });
            let kind = if report.unread { "error" } else { "note" };
            tell!("{kind}: {}: its parents were not checked: {why}", escaped(file));
            report.parents_not_checked = Some(why);
            return Ok(report);
        }
        report.ok = false;
        let (severity, field) = (word(Severity::Damage), "chain".to_owned());
        report.findings.push(Entry { severity, field, value: why, expected: String::new(), repaired: None });
    }
    Ok(report)
}

/// The format of the image. A damaged image may not be recognised, so the file name decides, unless the content is something else.
fn format(args: &Args, file: &Path) -> Result<FormatName, Failure> {
    if let Some(name) = args.format {
        return Ok(name);
    }
    match (FormatName::probe(file), FormatName::claimed(file)) {
        (Err(OpenError::FormatUnclear { formats, .. }), Some(claimed))
            if formats.contains(&claimed.as_str()) =>
        {
            Ok(claimed)
        }
        (probed, _) => probed.map_err(failed),
    }
}

/// Whether the parents of the image open.
fn chain(args: &Args, file: &Path, image: &Image) -> Result<(), OpenError> {
    if is_nested(file) {
        let options = OpenOptions {
            format: Some(image.format()),
            read_only: true,
            parents: args.parents.rules(),
            ..OpenOptions::new(file)
        };
        return options.open_format().map(drop);
    }
    if image.format().has_blocks() { image.info(Scope::Chain).map(drop) } else { Ok(()) }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for entry in &report.findings {
        let Entry { severity, field, value, expected, repaired } = entry;
        let repaired = repaired.map(|what| format!(" (repaired: {what})")).unwrap_or_default();
        // Writing to a string does not fail.
        let _ = match expected.is_empty() {
            // An error, which is escaped.
            true => writeln!(text, "{severity}: {field}: {value}"),
            false => {
                let (value, expected) = (escaped(value), escaped(expected));
                writeln!(text, "{severity}: {field} is {value}, expected {expected}{repaired}")
            }
        };
    }
    if report.more_findings > 0 {
        let _ = writeln!(text, "and {} more", report.more_findings);
    }
    let blocks = match report.total_blocks {
        0 => String::new(),
        total => format!(
            ", {} of {total} blocks allocated, {} bytes leaked",
            report.allocated_blocks, report.leaked_bytes
        ),
    };
    let lost = report.findings.iter().any(|entry| entry.severity == "redundancy" && entry.repaired.is_none());
    let verdict = match (report.ok, lost) {
        (true, false) if report.unread => "good, its parents unknown",
        (true, false) => "good",
        (true, true) => "usable (--repair makes it whole)",
        (false, _) => "NOT good",
    };
    let _ = writeln!(text, "{}: {verdict}{blocks}", report.path);
    text
}
