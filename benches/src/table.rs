//! Results as one aligned text table.

mod disks;
mod regression;

use std::fmt::Write;

use facts::host::{CyclesSource, Host, Kvm};
use facts::units::format_size;

pub use disks::render as render_disks;
pub use regression::render as render_regression;

use crate::confidence;
use crate::grid::{Grid, Head};
use crate::result::{DEVICE_AND_KERNEL, Document, Ratio, RunResult};
use crate::stat::Stat;

struct Column {
    head: [&'static str; 2],
    left: bool,
    cell: fn(&RunResult, &Document) -> String,
}

const fn column(head: [&'static str; 2], cell: fn(&RunResult, &Document) -> String) -> Column {
    Column { head, left: false, cell }
}

const fn left(head: [&'static str; 2], cell: fn(&RunResult, &Document) -> String) -> Column {
    Column { head, left: true, cell }
}

/// The columns that identify a row.
fn facts(document: &Document) -> Vec<Column> {
    let results = &document.results;
    let varies = |value: fn(&RunResult) -> String| {
        results.first().is_some_and(|first| results.iter().any(|result| value(result) != value(first)))
    };
    let policies = |result: &RunResult| result.coalescing.clone();
    let mut policies: Vec<_> = results.iter().filter_map(policies).collect();
    policies.sort();
    policies.dedup();

    let mut columns = vec![left(["adapter", ""], |result, _| result.adapter.clone())];
    columns.extend(disk(document));
    if varies(access) {
        columns.push(ACCESS);
    }
    columns.extend(SIZES);
    if varies(|result| result.workers.to_string()) {
        columns.push(column(["work", "ers"], |result, _| result.workers.to_string()));
    }
    if policies.len() > 1 {
        columns.push(left(["coal-", "escing"], |result, _| result.coalescing.clone().unwrap_or("-".into())));
    }
    columns
}

fn columns(document: &Document) -> Vec<Column> {
    let mut columns = facts(document);
    columns.extend(SPEED);
    let each = match document.host.cycles_source {
        CyclesSource::Pmu | CyclesSource::CpuTimeXTsc => "cycles per I/O",
        CyclesSource::Instructions => "instructions per I/O",
    };
    let total = |result: &RunResult, _: &Document| spread(&result.cycles_per_io.total, grouped);
    columns.push(column([each, "median (min-max)"], total));
    columns.extend([
        column(["guest", ""], |result, _| grouped(result.cycles_per_io.guest.median)),
        column(["exit", ""], |result, _| grouped(result.cycles_per_io.exit.median)),
        column(["device", ""], |result, _| grouped(result.cycles_per_io.device.median)),
        column(["kernel", ""], |result, _| grouped(result.cycles_per_io.kernel.median)),
    ]);
    columns.extend(LATENCY);
    columns.extend([
        column(["irqs", "/IO"], |result, _| rate(result, result.interrupts_per_io)),
        column(["exits", "/IO"], |result, _| rate(result, result.exits_per_io)),
        column(["bells", "/IO"], |result, _| rate(result, result.doorbells_per_io)),
        column(["device+kernel", "/ native"], |result, document| {
            ratio_cell(result, document, DEVICE_AND_KERNEL, |ratio| ratio.short_text(2))
        }),
    ]);
    columns.extend(errors(document));
    columns
}

const ACCESS: Column = left(["access", ""], |result, _| access(result));
const SIZES: [Column; 2] = [
    column(["block", ""], |result, _| format_size(result.block_size.into())),
    column(["depth", ""], |result, _| result.queue_depth.to_string()),
];
const SPEED: [Column; 2] = [
    column(["IOPS", ""], |result, _| grouped(result.iops.median)),
    column(["MB/s", ""], |result, _| grouped(result.mb_per_s.median)),
];
const LATENCY: [Column; 2] = [
    column(["p50", "us"], |result, _| micros(result.latency_us.p50)),
    column(["p99", "us"], |result, _| micros(result.latency_us.p99)),
];

/// The disk, and its path if its name is ambiguous.
fn disk(document: &Document) -> Vec<Column> {
    let mut columns = vec![left(["disk", ""], |result, _| result.disk.name())];
    if same_name_twice(document) {
        columns.push(left(["path", ""], |result, _| match &result.disk.path {
            Some(path) => tail(path, 24),
            None => format_size(result.disk.capacity),
        }));
    }
    columns
}

/// The column of errors, if there are any.
fn errors(document: &Document) -> Option<Column> {
    let any = document.results.iter().any(|result| result.errors > 0);
    any.then(|| column(["errors", ""], |result, _| result.errors.to_string()))
}

/// The table, with lines about machine and measurement above and notes below.
#[must_use]
pub fn render(document: &Document, notes: &[String]) -> String {
    format!("{}\n{}", abilities(document), with_columns(&columns(document), document, notes))
}

fn with_columns(columns: &[Column], document: &Document, notes: &[String]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", circumstances(document));
    if !document.results.is_empty() {
        text.push('\n');
        text += &grid(columns, document);
    }
    let legend = legend(document).filter(|_| !document.results.is_empty());
    if legend.is_some() || !notes.is_empty() {
        text.push('\n');
    }
    for note in legend.iter().chain(notes) {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// The legend of the document's ratios, in one line.
pub(crate) fn legend(document: &Document) -> Option<String> {
    confidence::legend(document.ratios.iter().filter_map(|ratio| ratio.confidence.as_ref()))
}

/// A line about what the machine's figures can compare.
#[must_use]
pub(crate) fn abilities(document: &Document) -> String {
    let on = |engine: &str| document.results.iter().any(|result| result.engine == engine);
    abilities_of(&document.host, on("harness") && !on("kvm"))
}

fn abilities_of(host: &Host, harness_only: bool) -> String {
    let rows = match (host.cycles_source, host.kvm, harness_only) {
        (CyclesSource::Instructions, ..) => "lengths of I/O paths, not times: it is emulated",
        (_, Kvm::None, _) => "disks, not adapters: it has no KVM, and the harness has no exits",
        (.., true) => "disks, not adapters: the harness has no exits",
        (_, Kvm::Nested, _) => {
            "disks, not adapters: KVM has no hardware virtualization, so exits are too expensive"
        }
        (_, Kvm::Hardware, _) => "adapters and disks",
    };
    let cycles = match host.cycles_source {
        CyclesSource::CpuTimeXTsc => {
            " Cycles are CPU time, not counted by a PMU: compare them on one machine only."
        }
        CyclesSource::Pmu | CyclesSource::Instructions => "",
    };
    format!("This machine compares {rows}.{cycles}")
}

/// A line about load and machine.
#[must_use]
pub fn circumstances(document: &Document) -> String {
    let host = &document.host;
    let kvm = match host.kvm {
        Kvm::Hardware => "KVM: hardware",
        Kvm::Nested => "KVM: nested",
        Kvm::None => "no KVM",
    };
    let cycles = match host.cycles_source {
        CyclesSource::Pmu => "cycles: PMU".to_owned(),
        CyclesSource::CpuTimeXTsc => format!("cycles: CPU time x TSC ({:.2} GHz)", host.tsc_hz as f64 / 1e9),
        CyclesSource::Instructions => "instructions, of an emulated processor whose time they are".to_owned(),
    };
    let mut parts = Vec::new();
    // Dimensions with one value; the others have columns.
    let adapters = document.results.iter().any(|result| result.adapter != "native");
    let uniform = |value: fn(&RunResult) -> String| {
        let counts = |result: &&RunResult| !adapters || result.adapter != "native";
        let mut values = document.results.iter().filter(counts).map(value);
        let first = values.next()?;
        values.all(|value| value == first).then_some(first)
    };
    parts.extend(uniform(|result| format!("engine {}", result.engine)));
    parts.extend(uniform(access));
    parts.extend(uniform(|result| match result.workers {
        1 => "1 worker".to_owned(),
        workers => format!("{workers} workers"),
    }));
    if adapters {
        parts.extend(uniform(|result| format!("coalescing {}", result.coalescing.as_deref().unwrap_or("-"))));
    }
    parts.extend(uniform(|result| match result.runs {
        1 => "1 run".to_owned(),
        runs => format!("{runs} runs interleaved"),
    }));
    parts.extend([
        kvm.to_owned(),
        cycles,
        format!("{} x {}", host.cores, host.cpu),
        format!("Linux {}", host.kernel),
    ]);
    parts.join(", ")
}

fn grid(columns: &[Column], document: &Document) -> String {
    let cells = |result| columns.iter().map(|column| (column.cell)(result, document)).collect();
    Grid {
        title: String::new(),
        heads: columns.iter().map(|column| Head { lines: column.head, left: column.left }).collect(),
        rows: document.results.iter().map(cells).collect(),
    }
    .text()
}

/// The load: an access pattern, or the name of an application's.
pub(crate) fn access(result: &RunResult) -> String {
    if let Some(name) = &result.workload {
        return name.clone();
    }
    match result.rw.as_str() {
        "mix" => {
            let random = result.random_percent.unwrap_or(100);
            format!("mix {}% read {random}% random", result.read_percent)
        }
        "randrw" => format!("randrw {}% read", result.read_percent),
        other => other.to_owned(),
    }
}

/// Whether two different disks have the same name, so that rows need the path.
fn same_name_twice(document: &Document) -> bool {
    let disks: Vec<_> = document.results.iter().map(|result| &result.disk).collect();
    disks.iter().any(|a| disks.iter().any(|b| a != b && a.name() == b.name()))
}

/// The last characters of a long text.
fn tail(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let end: String = text.chars().skip(count - most + 3).collect();
    format!("...{end}")
}

/// A number rounded, in groups of three digits.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len() - index;
        if index > 0 && left % 3 == 0 && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(crate) fn spread(stat: &Stat, show: fn(f64) -> String) -> String {
    format!("{} ({}-{})", show(stat.median), show(stat.min), show(stat.max))
}

pub(crate) fn micros(us: f64) -> String {
    if us < 10.0 { format!("{us:.2}") } else { format!("{us:.0}") }
}

/// Events per I/O; a dash without an adapter.
fn rate(result: &RunResult, value: f64) -> String {
    if result.adapter == "native" { "-".to_owned() } else { format!("{value:.3}") }
}

fn ratio_cell(result: &RunResult, document: &Document, metric: &str, text: fn(&Ratio) -> String) -> String {
    let label = result.label();
    let of_result = |ratio: &&Ratio| ratio.candidate == label && ratio.metric == metric;
    match document.ratios.iter().find(of_result) {
        Some(ratio) => text(ratio),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn numbers_in_groups() {
        assert_eq!(
            [0.0, 999.4, 1000.0, 1234567.0, -1234.0].map(grouped),
            ["0", "999", "1,000", "1,234,567", "-1,234"]
        );
    }

    #[test]
    fn columns_are_aligned_and_rows_are_there() {
        let text = render(&sample(), &["a note".to_owned()]);
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].starts_with("This machine compares disks, not adapters: KVM has no hardware"),
            "{}",
            lines[0]
        );
        assert!(lines[1].starts_with(
            "engine kvm, randread, 1 worker, coalescing batch, 5 runs interleaved, KVM: nested, cycles: CPU time x TSC"
        ));
        let rule = lines.iter().position(|line| line.starts_with("---")).unwrap();
        let (native, pvscsi) = (lines[rule + 1], lines[rule + 2]);
        assert!(native.starts_with("native ") && pvscsi.starts_with("pvscsi "));
        // Right-aligned: all lines end with the rule, and none is too wide for a terminal.
        for line in &lines[rule..rule + 3] {
            assert_eq!(line.len(), lines[rule].len(), "{line}");
            assert!(line.len() <= 160, "{}", line.len());
        }
        assert!(
            pvscsi.contains("9,000 (8,999-9,001)") && pvscsi.ends_with("1.25 [1.12-1.50] slower"),
            "{pvscsi}"
        );
        assert!(native.ends_with(" -"));
        assert!(
            ["ers", "escing", "errors"]
                .iter()
                .all(|word| !lines[rule - 2].contains(word) && !lines[rule - 1].contains(word))
        );
        assert_eq!(lines.last(), Some(&"a note"));
    }

    #[test]
    fn what_varies_gets_a_column() {
        let mut document = sample();
        let mut more = document.results[1].clone();
        more.workers = 4;
        more.coalescing = Some("oio".into());
        more.rw = "randrw".into();
        more.read_percent = 70;
        more.errors = 3;
        more.disk.path = Some("/a/very/long/path/to/an/image/other.vhd".into());
        document.results.push(more);
        let text = render(&document, &[]);
        for expected in ["work", "escing", "randrw 70% read", "errors", "path", "...", "image/other.vhd"] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn instructions_are_not_called_cycles() {
        let mut document = sample();
        document.host.cycles_source = CyclesSource::Instructions;
        let text = render(&document, &[]);
        assert!(text.contains("instructions per I/O") && !text.contains("cycles"), "{text}");
        let page = crate::html::render(&[("d".into(), document)]);
        assert!(page.contains("instructions/IO: median") && page.contains("CPU instructions per I/O"));
    }

    #[test]
    fn no_results_no_grid() {
        let mut document = sample();
        document.results.clear();
        assert_eq!(render(&document, &["why".into()]).lines().count(), 4);
    }

    #[test]
    fn the_first_line_says_what_the_machine_compares() {
        use CyclesSource::{CpuTimeXTsc, Instructions, Pmu};
        let cpu_time = " Cycles are CPU time, not counted by a PMU: compare them on one machine only.";
        for (kvm, cycles_source, harness_only, expected) in [
            (Kvm::Hardware, Pmu, false, "adapters and disks."),
            (Kvm::Hardware, Pmu, true, "disks, not adapters: the harness has no exits."),
            (Kvm::Hardware, CpuTimeXTsc, false, &format!("adapters and disks.{cpu_time}")),
            (
                Kvm::Nested,
                Pmu,
                false,
                "disks, not adapters: KVM has no hardware virtualization, so exits are too expensive.",
            ),
            (
                Kvm::None,
                CpuTimeXTsc,
                true,
                &format!("disks, not adapters: it has no KVM, and the harness has no exits.{cpu_time}"),
            ),
            (Kvm::Nested, Instructions, false, "lengths of I/O paths, not times: it is emulated."),
        ] {
            let host = Host { kvm, cycles_source, ..sample().host };
            let line = abilities_of(&host, harness_only);
            assert_eq!(line, format!("This machine compares {expected}"));
            assert!(line.len() <= 170, "{}", line.len());
        }
        // Rows of the harness beside those of KVM do not limit the latter.
        let mut document = sample();
        document.host.kvm = Kvm::Hardware;
        document.results.push(RunResult { engine: "harness".into(), ..document.results[1].clone() });
        assert!(abilities(&document).starts_with("This machine compares adapters and disks."));
        document.results.retain(|result| result.engine != "kvm");
        assert!(abilities(&document).starts_with("This machine compares disks, not adapters: the harness"));
    }
}
