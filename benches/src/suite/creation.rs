//! Creation of images and operations on whole images: time by size and file system, compared with filling with zeros.

use std::time::Duration;

use facts::units::format_size;

use super::form::{Form, QUICK_RUNS};
use super::published::{CREATION, CREATION_SOURCE};
use super::report::Report;
use crate::creation::Plan;
use crate::grid::{Grid, Head, left, right};
use crate::result::{Document, Timing};
use crate::stat::Stat;
use crate::svg::{Chart, Key, Panel, Scale, Style};

/// Rounds.
const RUNS: u32 = 3;
pub(super) const FILE_SYSTEMS: [&str; 4] = ["ext4", "xfs", "btrfs", "host"];

pub(super) fn plan(form: Form, runs: Option<u32>) -> Plan {
    match form {
        Form::Full => Plan::full(runs.unwrap_or(RUNS)),
        Form::Quick => Plan::quick(runs.unwrap_or(QUICK_RUNS)),
    }
}

/// The row of an operation on each file system.
struct Row<'a> {
    first: &'a Timing,
    on: [Option<&'a Timing>; FILE_SYSTEMS.len()],
}

impl Row<'_> {
    /// Whether all space of the disk is allocated from the start.
    fn is_fixed(&self) -> bool {
        self.first.subformat.as_deref().is_none_or(|kind| kind == "fixed")
    }
}

fn rows(document: &Document) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for timing in &document.timings {
        let Some(place) = FILE_SYSTEMS.iter().position(|name| *name == timing.file_system) else { continue };
        let at = rows.iter().position(|row| row.first.label() == timing.label()).unwrap_or_else(|| {
            rows.push(Row { first: timing, on: [None; FILE_SYSTEMS.len()] });
            rows.len() - 1
        });
        rows[at].on[place] = Some(timing);
    }
    rows
}

pub(super) fn report(document: &Document) -> Report {
    let rows = rows(document);
    let mut report = Report { grids: vec![grid(&rows)], ..Report::default() };
    report.charts.push(("creation".to_owned(), chart(&rows)));
    report.findings = findings(&rows);
    report
}

/// Seconds, or milliseconds for short times.
pub(super) fn time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

fn cell(timing: Option<&Timing>) -> String {
    let Some(timing) = timing else { return "-".to_owned() };
    match timing.seconds {
        None if timing.failed.is_some() => "failed".to_owned(),
        None => "skipped".to_owned(),
        Some(Stat { median, min, max }) => format!("{} ({}-{})", time(median), time(min), time(max)),
    }
}

fn grid(rows: &[Row<'_>]) -> Grid {
    let shown: Vec<usize> = (0..FILE_SYSTEMS.len())
        .filter(|place| rows.iter().any(|row| row.on[*place].is_some_and(|timing| timing.seconds.is_some())))
        .collect();
    let mut heads: Vec<Head> = vec![left(["operation", ""]), left(["disk", ""]), right(["size", ""])];
    heads.extend(shown.iter().map(|place| right([FILE_SYSTEMS[*place], "median (min-max)"])));
    heads.push(left(["published", ""]));
    let cells = |row: &Row<'_>| {
        let Timing { operation, format, subformat, size, .. } = row.first;
        let disk = subformat.as_ref().map_or_else(|| format.clone(), |kind| format!("{format} {kind}"));
        let mut cells = vec![operation.clone(), disk, format_size(*size)];
        cells.extend(shown.iter().map(|place| cell(row.on[*place])));
        cells.push(published(row.first));
        cells
    };
    Grid {
        title: "Time until the result is on stable storage".to_owned(),
        heads,
        rows: rows.iter().map(cells).collect(),
    }
}

/// The published times of creating a disk like this one.
fn published(timing: &Timing) -> String {
    let fixed = timing.operation == "create" && timing.subformat.as_deref() == Some("fixed");
    let all =
        CREATION.iter().filter(|each| fixed && each.format == timing.format && each.size == timing.size);
    let all: Vec<String> = all.map(|each| format!("{} s ({})", each.seconds, each.storage)).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// Time by size: fixed disks and files of zeros, a panel for each file system.
fn chart(rows: &[Row<'_>]) -> Chart {
    const LINES: [(&str, &str, &str); 3] = [
        ("fixed VHD", "create", "vhd"),
        ("fixed VHDX", "create", "vhdx"),
        ("zeros written", "zero-fill", "raw"),
    ];
    let of = |row: &&Row<'_>, operation: &str, format: &str| {
        row.is_fixed() && row.first.operation == operation && row.first.format == format
    };
    let any = |row: &&Row<'_>| LINES.iter().any(|(_, operation, format)| of(row, operation, format));
    let mut sizes: Vec<u64> = rows.iter().filter(any).map(|row| row.first.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let line = |place: usize, operation: &str, format: &str| -> Vec<Option<Stat>> {
        let at = |size: &u64| {
            let row = rows.iter().find(|row| row.first.size == *size && of(row, operation, format))?;
            row.on[place]?.seconds
        };
        sizes.iter().map(at).collect()
    };
    let places = (0..FILE_SYSTEMS.len()).filter(|place| rows.iter().any(|row| row.on[*place].is_some()));
    Chart {
        title: "Creation of fixed disks by size".to_owned(),
        x_title: "bytes of the disk",
        y_title: "seconds",
        categories: sizes.iter().map(|size| format_size(*size)).collect(),
        scale: Scale::Log,
        keys: LINES
            .iter()
            .enumerate()
            .map(|(colour, (label, ..))| Key { label: (*label).to_owned(), colour, style: Style::Solid })
            .collect(),
        panels: places
            .map(|place| Panel {
                title: FILE_SYSTEMS[place].to_owned(),
                lines: LINES.map(|(_, operation, format)| line(place, operation, format)).into(),
            })
            .collect(),
        ..Chart::default()
    }
}

fn findings(rows: &[Row<'_>]) -> Vec<String> {
    let mut findings = Vec::new();
    for (place, name) in FILE_SYSTEMS.iter().enumerate() {
        let measured = |operation: &str| {
            rows.iter()
                .filter(|row| row.first.operation == operation && row.is_fixed())
                .filter_map(|row| row.on[place])
                .filter_map(|timing| Some((timing, timing.seconds?.median)))
                .max_by_key(|(timing, _)| timing.size)
        };
        if let (Some((fixed, seconds)), Some((zeros, filled))) = (measured("create"), measured("zero-fill")) {
            findings.push(format!(
                "{name}: {} takes {}; writing {} of zeros takes {} ({:.0} MB/s).",
                fixed.label(),
                time(seconds),
                format_size(zeros.size),
                time(filled),
                zeros.size as f64 / 1e6 / filled
            ));
        }
    }
    findings.push(format!("Published: {CREATION_SOURCE}."));
    findings
}

/// Expected time of the plan.
pub(super) fn expected(form: Form, runs: Option<u32>) -> Duration {
    plan(form, runs).expected()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::tests::host;

    fn timing(operation: &str, format: &str, size: u64, place: &str, seconds: Option<f64>) -> Timing {
        Timing {
            operation: operation.into(),
            format: format.into(),
            subformat: (operation == "create").then(|| "fixed".into()),
            size,
            data: 0,
            file_system: place.into(),
            seconds: seconds.map(Stat::at),
            values: seconds.into_iter().collect(),
            skipped: seconds.is_none().then(|| "needs".into()),
            failed: None,
        }
    }

    #[test]
    fn times_stand_beside_the_published_ones() {
        let document = Document {
            timings: vec![
                timing("create", "vhdx", 1 << 40, "ext4", Some(0.25)),
                timing("create", "vhdx", 16 << 40, "ext4", None),
                timing("zero-fill", "raw", 1 << 30, "ext4", Some(2.0)),
                timing("create", "vhdx", 1 << 40, "xfs", Some(0.01)),
            ],
            ..Document::empty(Some("creation".into()), host())
        };
        let report = report(&document);
        let text = report.grids[0].text();
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        assert!(text.contains("xfs") && !text.contains("btrfs"), "{text}");
        assert!(line("create     vhdx fixed    1T").contains("250.0 ms (250.0 ms-250.0 ms)"), "{text}");
        assert!(line("create     vhdx fixed    1T").contains("1 s (ReFS), 5 s (NTFS, ODX)"), "{text}");
        assert!(line("create     vhdx fixed   16T").contains("skipped"), "{text}");
        let expected =
            "ext4: create vhdx fixed 1T takes 250.0 ms; writing 1G of zeros takes 2.00 s (537 MB/s).";
        assert_eq!(report.findings[0], expected);
        assert_eq!(report.findings.len(), 2, "{:?}", report.findings);
    }
}
