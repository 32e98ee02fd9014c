//! Claims on the cost of long chains of differencing disks.

use super::super::chain::dimensions::{DEPTHS, FORMATS, LONGEST, SUBJECTS};
use super::super::chain::ratio;
use super::super::claim::{Claim, Standing, at_most, range};
use super::super::view::View;
use crate::compare::Metric;
use crate::result::{Document, Ratio};
use crate::svg::{Chart, Key, Panel};

/// Upper limit for the ratio of the longest chain's cycles to those of a single image.
const MOST: f64 = 1.05;

pub(in super::super) fn claims(document: &Document) -> Vec<Claim> {
    View::of(document).into_iter().filter_map(of_engine).collect()
}

/// Rows of an engine are all without an adapter, or all with one.
fn of_engine(view: View<'_>) -> Option<Claim> {
    let lines = |metric| FORMATS.map(|(format, _)| line(view, format, metric));
    let (cycles, iops) = (lines(Metric::Cycles), lines(Metric::Iops));
    let longest = |lines: &[Vec<Option<&'_ Ratio>>]| -> Vec<Option<Ratio>> {
        lines.iter().map(|line| line.last().copied().flatten().cloned()).collect()
    };
    let decided: Vec<Ratio> = longest(&cycles).into_iter().flatten().collect();
    if decided.is_empty() {
        return None;
    }
    let throughput: Vec<Ratio> = longest(&iops).into_iter().flatten().collect();
    let range = |ratios: &[Ratio]| range(&ratios.iter().collect::<Vec<_>>());
    let counted = view.host().cycles_source.unit();
    Some(Claim {
        statement: format!(
            "Reads of {LONGEST} differencing images, one over the other, take at most 5% more CPU {counted} than reads of a single image."
        ),
        source: None,
        standing: Standing::of_all(decided.iter().map(|ratio| at_most(ratio.confidence?, MOST))),
        engine: view.engine.to_owned(),
        measured: format!(
            "Here {LONGEST} images take {} of the {counted} of one, and have {} of its throughput.",
            range(&decided),
            range(&throughput)
        ),
        limit: None,
        chart: chart(view, &cycles),
    })
}

/// Ratios to the single image of the format, by length.
fn line<'a>(view: View<'a>, format: &str, metric: Metric) -> Vec<Option<&'a Ratio>> {
    let disks = view.disks().into_iter().filter(|disk| disk.format == format).take(DEPTHS.len());
    disks.map(|disk| SUBJECTS.iter().find_map(|adapter| ratio(view, disk, adapter, metric))).collect()
}

fn chart(view: View<'_>, cycles: &[Vec<Option<&Ratio>>]) -> Chart {
    let [.., counted] = view.counted();
    let keys = FORMATS.iter().enumerate();
    Chart {
        title: format!(
            "CPU {counted} over those of a single image, by images in the chain ({})",
            view.engine
        ),
        x_title: "images in the chain",
        y_title: "chain / single image",
        categories: DEPTHS.iter().map(usize::to_string).collect(),
        reference: Some(1.0),
        keys: keys
            .map(|(colour, (format, style))| Key { label: format.to_uppercase(), colour, style: *style })
            .collect(),
        panels: vec![Panel {
            title: String::new(),
            lines: cycles
                .iter()
                .map(|line| line.iter().map(|ratio| ratio.map(Ratio::stat)).collect())
                .collect(),
        }],
        ..Chart::default()
    }
}
