//! Results as comma-separated values (RFC 4180): one line for each result.

use crate::result::{Document, RunResult};
use crate::stat::Stat;

type Cell = fn(&RunResult) -> String;
type StatOf = fn(&RunResult) -> &Stat;
type Number = fn(&RunResult) -> f64;

const FACTS: [(&str, Cell); 14] = [
    ("adapter", |r| r.adapter.clone()),
    ("format", |r| r.disk.format.clone()),
    ("subformat", |r| r.disk.subformat.clone().unwrap_or_default()),
    ("path", |r| r.disk.path.clone().unwrap_or_default()),
    ("capacity", |r| r.disk.capacity.to_string()),
    ("engine", |r| r.engine.clone()),
    ("rw", |r| r.rw.clone()),
    ("read_percent", |r| r.read_percent.to_string()),
    ("block_size", |r| r.block_size.to_string()),
    ("queue_depth", |r| r.queue_depth.to_string()),
    ("workers", |r| r.workers.to_string()),
    ("coalescing", |r| r.coalescing.clone().unwrap_or_default()),
    ("runs", |r| r.runs.to_string()),
    ("errors", |r| r.errors.to_string()),
];

const STATS: [(&str, StatOf); 7] = [
    ("iops", |r| &r.iops),
    ("mb_per_s", |r| &r.mb_per_s),
    ("cycles_total", |r| &r.cycles_per_io.total),
    ("cycles_guest", |r| &r.cycles_per_io.guest),
    ("cycles_exit", |r| &r.cycles_per_io.exit),
    ("cycles_device", |r| &r.cycles_per_io.device),
    ("cycles_kernel", |r| &r.cycles_per_io.kernel),
];

/// After all others, so that the positions of those do not change.
const MORE: [(&str, Cell); 4] = [
    ("workload", |r| r.workload.clone().unwrap_or_default()),
    ("random_percent", |r| r.random_percent.map(|percent| percent.to_string()).unwrap_or_default()),
    ("latency_p90_us", |r| r.latency_us.p90.map(|us| us.to_string()).unwrap_or_default()),
    ("latency_p9999_us", |r| r.latency_us.p9999.map(|us| us.to_string()).unwrap_or_default()),
];

const NUMBERS: [(&str, Number); 7] = [
    ("latency_mean_us", |r| r.latency_us.mean),
    ("latency_p50_us", |r| r.latency_us.p50),
    ("latency_p99_us", |r| r.latency_us.p99),
    ("latency_p999_us", |r| r.latency_us.p999),
    ("interrupts_per_io", |r| r.interrupts_per_io),
    ("exits_per_io", |r| r.exits_per_io),
    ("doorbells_per_io", |r| r.doorbells_per_io),
];

/// The document's results.
#[must_use]
pub fn render(document: &Document) -> String {
    let mut head: Vec<String> = FACTS.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (name, _) in STATS {
        head.extend(["median", "min", "max"].map(|which| format!("{name}_{which}")));
    }
    head.extend(NUMBERS.iter().map(|(name, _)| (*name).to_owned()));
    head.extend(MORE.iter().map(|(name, _)| (*name).to_owned()));
    text(std::iter::once(head).chain(document.results.iter().map(cells)))
}

fn cells(result: &RunResult) -> Vec<String> {
    let mut cells: Vec<String> = FACTS.iter().map(|(_, cell)| cell(result)).collect();
    for (_, stat) in STATS {
        let Stat { median, min, max } = stat(result);
        cells.extend([median, min, max].map(f64::to_string));
    }
    cells.extend(NUMBERS.iter().map(|(_, number)| number(result).to_string()));
    cells.extend(MORE.iter().map(|(_, cell)| cell(result)));
    cells
}

fn text(lines: impl Iterator<Item = Vec<String>>) -> String {
    let mut builder = csv::WriterBuilder::new();
    let mut writer = builder.terminator(csv::Terminator::CRLF).flexible(true).from_writer(Vec::new());
    for line in lines {
        // Writing to memory cannot fail.
        let _ = writer.write_record(&line);
    }
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn a_line_for_each_result_with_as_many_cells_as_the_head() {
        let mut document = sample();
        document.results[0].disk.path = None;
        document.results[1].disk.path = Some("/tmp/plain".into());
        let text = render(&document);
        let lines: Vec<_> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 3);
        let head: Vec<_> = lines[0].split(',').collect();
        for row in &lines[1..] {
            assert_eq!(row.split(',').count(), head.len(), "{row}");
        }
        let at = |name| head.iter().position(|each| *each == name).unwrap();
        let pvscsi: Vec<_> = lines[2].split(',').collect();
        assert_eq!(pvscsi[at("cycles_device_max")], "901");
        assert_eq!(pvscsi[at("doorbells_per_io")], "0.04");
        assert_eq!(pvscsi[at("path")], "/tmp/plain");
    }

    #[test]
    fn quoting() {
        let line = ["a", "a,b", "a\"b", "", "a\r\nb"].map(str::to_owned).to_vec();
        assert_eq!(text(std::iter::once(line)), "a,\"a,b\",\"a\"\"b\",,\"a\r\nb\"\r\n");
    }
}
