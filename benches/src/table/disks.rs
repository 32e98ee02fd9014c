//! The table of disks without an adapter, each compared with raw.

use super::{ACCESS, Column, LATENCY, SIZES, SPEED, column, disk, errors, ratio_cell, with_columns};
use crate::compare::Metric;
use crate::result::Document;

const RATIOS: [Column; 2] = [
    column(["cycles per I/O", "/ raw"], |result, document| {
        ratio_cell(result, document, Metric::Cycles.as_str(), |ratio| ratio.text(3))
    }),
    column(["IOPS", "/ raw"], |result, document| {
        ratio_cell(result, document, Metric::Iops.as_str(), |ratio| ratio.text(3))
    }),
];

/// The table, with a line about the measurement above and notes below.
#[must_use]
pub fn render(document: &Document, notes: &[String]) -> String {
    let mut columns = disk(document);
    columns.push(ACCESS);
    columns.extend(SIZES.into_iter().chain(SPEED).chain(LATENCY).chain(RATIOS));
    columns.extend(errors(document));
    with_columns(&columns, document, notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn rows_stand_beside_raw_with_both_ratios() {
        let mut document = sample();
        document.results.truncate(1);
        let vhd = document.results[0].clone();
        document.results[0].disk.format = "raw".into();
        document.results[0].disk.subformat = None;
        for (metric, median) in [(Metric::Cycles, 1.25), (Metric::Iops, 0.8)] {
            let mut ratio = document.ratios[0].clone();
            (ratio.candidate, ratio.metric, ratio.median) = (vhd.label(), metric.as_str().into(), median);
            document.ratios.push(ratio);
        }
        document.ratios.remove(0);
        document.results.push(vhd);
        let text = render(&document, &["a note".to_owned()]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("engine native, randread, 1 worker, 5 runs interleaved, KVM"), "{text}");
        let row = |name: &str| lines.iter().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(row("raw ").ends_with("  -"), "{text}");
        assert!(row("vhd ").contains(" randread "), "{text}");
        assert!(
            row("vhd ").ends_with(
                "1.250 (1.125-1.500) [1.125-1.500] slower  0.800 (1.125-1.500) [1.125-1.500] slower"
            ),
            "{text}"
        );
        assert_eq!(lines.last(), Some(&"a note"));
    }
}
