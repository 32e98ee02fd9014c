//! The cost of each adapter by component. There are no published figures.

use super::super::adapters::{DEPTHS, adapters, chart, total};
use super::super::claim::{Observation, time_limit};
use super::super::view::View;
use crate::result::Document;
use crate::svg::Chart;
use crate::table::grouped;

/// Index of the largest depth.
const DEPTH: usize = DEPTHS.len() - 1;

pub(in super::super) fn observations(document: &Document) -> Vec<Observation> {
    View::of(document).into_iter().filter_map(of_engine).collect()
}

fn of_engine(view: View<'_>) -> Option<Observation> {
    let disk = *view.disks().first()?;
    let totals = adapters().filter_map(|adapter| Some((adapter, total(view, disk, adapter, DEPTHS[DEPTH])?)));
    let totals: Vec<_> = totals.collect();
    let least = totals.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let most = totals.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let [.., counted] = view.counted();
    let chart = chart(view, disk);
    Some(Observation {
        title: format!("CPU {counted} by adapter, with {} in flight", DEPTHS[DEPTH]),
        measured: format!("From {} ({}) to {} ({}).", grouped(least.1), least.0, grouped(most.1), most.0),
        engine: view.engine.to_owned(),
        limit: time_limit(view),
        chart: Chart { panels: chart.panels.into_iter().skip(DEPTH).collect(), ..chart },
    })
}
