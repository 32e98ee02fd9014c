//! The published claim on coalescing by outstanding I/Os alone.

use facts::names::Coalescing;

use super::super::claim::{Claim, Standing};
use super::super::coalescing::{DEPTHS, find, rises, worst};
use super::super::published::{FLAW_SOURCE, MANY_OUTSTANDING, SLOW_IOPS};
use super::super::view::View;
use crate::compare::Metric;
use crate::result::{Document, Ratio, RunResult};
use crate::svg::{Chart, Key, Panel, Scale, Style};

/// The policy with the flaw, and the one without.
const POLICIES: [Coalescing; 2] = [Coalescing::Oio, Coalescing::OioIops];

pub(in super::super) fn claims(document: &Document) -> Vec<Claim> {
    View::of(document).into_iter().filter_map(of_engine).collect()
}

fn of_engine(view: View<'_>) -> Option<Claim> {
    let [oio, both] = POLICIES.map(|policy| worst(view, policy));
    let ((slow, oio), (_, both)) = (oio?, both?);
    let standing = Standing::of_all([rises(oio), rises(both).map(|rises| !rises)]);
    Some(Claim {
        statement: format!(
            "Coalescing by outstanding I/Os alone (oio) raises latency over slow storage ({MANY_OUTSTANDING} or more I/Os outstanding, fewer \
             than {SLOW_IOPS} IOPS); by the rate as well (oio-iops) it does not."
        ),
        source: Some(FLAW_SOURCE),
        standing,
        engine: view.engine.to_owned(),
        measured: format!(
            "Here mean latency is at most {:.3} of off's with oio and {:.3} with oio-iops.",
            oio.median, both.median
        ),
        // Storage with latencies of milliseconds is slow on any host.
        limit: None,
        chart: chart(view, slow),
    })
}

/// Ratio of the mean latency to that of `off`, by depth, on this load's disk.
fn chart(view: View<'_>, load: &RunResult) -> Chart {
    let line = |policy| {
        let ratio = |depth| {
            let [off, other] = [Coalescing::Off, policy].map(|each| find(view, &load.disk, depth, each));
            view.ratio(off, other, Metric::LatencyMean).map(Ratio::stat)
        };
        DEPTHS.iter().map(|&depth| ratio(depth)).collect()
    };
    // The colours of the suite's other charts.
    let colour = |policy| Coalescing::ALL.iter().position(|other| *other == policy).unwrap_or(0);
    let key =
        |policy: Coalescing| Key { label: policy.to_string(), colour: colour(policy), style: Style::Solid };
    Chart {
        title: format!("Mean latency over that of off, by depth ({}, {})", view.engine, load.disk.name()),
        x_title: "queue depth (I/Os)",
        y_title: "latency / off",
        categories: DEPTHS.iter().map(u32::to_string).collect(),
        scale: Scale::Auto,
        reference: Some(1.0),
        keys: POLICIES.map(key).into(),
        panels: vec![Panel { title: String::new(), lines: POLICIES.map(line).into() }],
        ..Chart::default()
    }
}
