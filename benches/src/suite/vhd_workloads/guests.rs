//! The loads in a guest, compared with the same loads on the host.

use super::study::{DISKS, Group, best, grid, is_of, short_name};
use crate::compare::Metric;
use crate::result::{Document, NATIVE, Ratio, RunResult};
use crate::stat::Stat;
use crate::suite::report::Report;
use crate::suite::view::short_ratio_cell;
use crate::svg::{Chart, Key, Panel, Scale, Style};
use crate::table::{grouped, micros};

/// The rows of an adapter on an engine.
struct Guest<'a> {
    document: &'a Document,
    engine: &'a str,
    adapter: &'a str,
}

impl<'a> Guest<'a> {
    /// One for each adapter and engine, in the document's order.
    fn all(document: &'a Document) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for RunResult { engine, adapter, .. } in document.results.iter().filter(|row| row.adapter != NATIVE) {
            if !all.iter().any(|guest| (guest.engine, guest.adapter) == (engine, adapter)) {
                all.push(Self { document, engine, adapter });
            }
        }
        all
    }

    fn name(&self) -> String {
        format!("{}, engine {}", self.adapter, self.engine)
    }

    /// The row of a load over a target with the best median throughput.
    fn peak(&self, target: usize, mix: &str) -> Option<&'a RunResult> {
        let rows = self.document.results.iter();
        best(rows.filter(|row| {
            (row.engine.as_str(), row.adapter.as_str()) == (self.engine, self.adapter)
                && is_of(row, target, mix)
        }))
    }

    /// The row of the same load on the host.
    fn native(&self, row: &RunResult) -> Option<&'a RunResult> {
        self.document.results.iter().find(|other| {
            other.adapter == NATIVE
                && other.disk == row.disk
                && (&other.workload, other.queue_depth) == (&row.workload, row.queue_depth)
        })
    }

    /// The ratio of the peak to the same load on the host.
    fn ratio(&self, target: usize, mix: &str, metric: Metric) -> Option<&'a Ratio> {
        let peak = self.peak(target, mix)?;
        let (native, peak) = (self.native(peak)?.label(), peak.label());
        self.document.ratios.iter().find(|ratio| {
            ratio.metric == metric.as_str() && ratio.candidate == peak && ratio.baseline == native
        })
    }

    /// A value of the peak, and of the same load on the host.
    fn beside(&self, target: usize, mix: &str, value: fn(&RunResult) -> String) -> Option<String> {
        let peak = self.peak(target, mix)?;
        Some(format!("{} | {}", value(peak), self.native(peak).map_or_else(|| "-".to_owned(), value)))
    }

    fn report(&self, group: &Group, report: &mut Report) {
        let (name, unit) = (self.name(), if group.bytes { "MB/s" } else { "IOPS" });
        let each = self.document.host.cycles_source.unit();
        let mut add = |what: String, cell: &dyn Fn(usize, &str) -> Option<String>| {
            report.grids.push(grid(group, &format!("{name}: {what}"), cell));
        };
        add(format!("peak {unit} @ its depth"), &|target, mix| {
            self.peak(target, mix).map(|row| {
                let value = if group.bytes { row.mb_per_s.median } else { row.iops.median };
                format!("{} @{}", grouped(value), row.queue_depth)
            })
        });
        add("peak / the same load and depth on the host".to_owned(), &|target, mix| {
            Some(short_ratio_cell(self.ratio(target, mix, Metric::Iops)))
        });
        add("mean latency at the peak, us: guest | host".to_owned(), &|target, mix| {
            self.beside(target, mix, |row| micros(row.latency_us.mean))
        });
        add(format!("{each} per I/O at the peak: guest | host"), &|target, mix| {
            self.beside(target, mix, |row| grouped(row.cycles_per_io.total.median))
        });
    }

    /// For each disk, the median load of each group, with the range.
    fn chart(&self, groups: &[Group; 3]) -> Chart {
        let line = |group: &Group| {
            let of = |target: usize| {
                let ratios = group.mixes.iter().filter_map(|mix| self.ratio(target, &mix.name, Metric::Iops));
                Stat::of(ratios.map(|ratio| ratio.median))
            };
            (0..DISKS).map(of).collect()
        };
        let key = |(colour, group): (usize, &Group)| Key {
            label: format!("{} loads, lowest to highest", group.title),
            colour,
            style: Style::Points,
        };
        Chart {
            title: format!("Peaks in a guest over the same loads on the host ({})", self.name()),
            x_title: "disk",
            y_title: "guest / host",
            categories: (0..DISKS).map(short_name).collect(),
            scale: Scale::Log,
            reference: Some(1.0),
            keys: groups.iter().enumerate().map(key).collect(),
            panels: vec![Panel { title: String::new(), lines: groups.iter().map(line).collect() }],
            ..Chart::default()
        }
    }

    /// The range of all ratios to the host.
    fn finding(&self, groups: &[Group; 3]) -> Option<String> {
        let mixes = groups.iter().flat_map(|group| &group.mixes);
        let ratios = mixes.flat_map(|mix| {
            (0..DISKS).filter_map(|target| self.ratio(target, &mix.name, Metric::Iops)).collect::<Vec<_>>()
        });
        let mut medians: Vec<f64> = ratios.map(|ratio| ratio.median).collect();
        medians.sort_by(f64::total_cmp);
        let (low, high) = (medians.first()?, medians.last()?);
        let middle = medians.get(medians.len() / 2)?;
        Some(format!(
            "Here: {}: the peak in the guest is {low:.2} to {high:.2} of the same load's throughput on the host, {middle:.2} in the middle \
             of {} loads on disks.",
            self.name(),
            medians.len()
        ))
    }
}

/// Add tables, charts and findings of all guests.
pub(super) fn report(document: &Document, groups: &[Group; 3], report: &mut Report) {
    for guest in Guest::all(document) {
        groups.iter().for_each(|group| guest.report(group, report));
        let name = format!("guest-{}-{}", guest.adapter, guest.engine);
        report.charts.push((name, guest.chart(groups)));
        report.findings.extend(guest.finding(groups));
    }
}

#[cfg(test)]
mod tests {
    use super::super::study::groups;
    use super::*;
    use crate::result::tests::sample;
    use crate::stat::Stat;

    #[test]
    fn a_guest_stands_beside_the_same_load_and_depth_on_the_host() {
        let mut document = sample();
        let plain = document.results.remove(0);
        let mut pair = document.ratios.remove(0);
        (document.results, document.ratios) = (Vec::new(), Vec::new());
        let mut row = |adapter: &str, engine: &str, queue_depth: u32, iops: f64| {
            let mut row = RunResult { queue_depth, workload: Some("OLTP".into()), ..plain.clone() };
            (row.adapter, row.engine, row.iops) = (adapter.into(), engine.into(), Stat::at(iops));
            row.latency_us.mean = 1e6 / iops;
            document.results.push(row);
        };
        // The host's best depth differs from the guest's.
        row("native", "native", 1, 1000.0);
        row("native", "native", 32, 8000.0);
        row("native", "native", 256, 9000.0);
        for engine in ["kvm", "harness"] {
            row("pvscsi", engine, 1, 500.0);
            row("pvscsi", engine, 32, 2000.0);
        }
        let results = &document.results;
        (pair.metric, pair.baseline, pair.candidate) =
            (Metric::Iops.as_str().into(), results[1].label(), results[4].label());
        (pair.median, pair.min, pair.max) = (0.25, 0.2, 0.3);
        document.ratios.push(pair);
        let mut report = Report::default();
        super::report(&document, &groups(), &mut report);
        assert_eq!(report.charts.len(), 2);
        assert_eq!(report.charts[0].0, "guest-pvscsi-kvm");
        let oltp = |title: &str| {
            let of = report.grids.iter().find(|grid| grid.title == format!("Applications: {title}"));
            let text = of.unwrap_or_else(|| panic!("{title}")).text();
            text.lines().find(|line| line.starts_with("OLTP")).unwrap().to_owned()
        };
        assert!(oltp("pvscsi, engine kvm: peak IOPS @ its depth").contains("2,000 @32"));
        let over_host = "peak / the same load and depth on the host";
        assert!(oltp(&format!("pvscsi, engine kvm: {over_host}")).contains("0.25 (0.20-0.30)"));
        assert!(!oltp(&format!("pvscsi, engine harness: {over_host}")).contains("0.25"));
        let latency = oltp("pvscsi, engine harness: mean latency at the peak, us: guest | host");
        assert!(latency.contains("500 | 125"), "{latency}");
        let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
        assert!(finding.contains("pvscsi, engine kvm") && finding.contains("0.25 to 0.25"), "{finding}");
    }
}
