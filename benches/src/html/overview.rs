//! The overview: a card for each claim, and for documents without claims one for each metric that is compared.

use std::fmt::Write;

use super::section::Section;
use super::space::Budget;
use crate::confidence::Verdict;
use crate::result::{DEVICE_AND_KERNEL, Document, Ratio};
use crate::stat::Stat;
use crate::suite::{Claim, Standing};
use crate::svg::{Chart, Key, Panel, Style, escape};

/// Cards of a document without claims at the most.
const MOST_CARDS: usize = 3;
/// Candidates of a small chart at the most.
const MOST_CANDIDATES: usize = 8;

const STANDINGS: [Standing; 3] = [Standing::Holds, Standing::DoesNotHold, Standing::NotDecided];

/// Class, mark and words of a standing.
const fn words(standing: Standing) -> (&'static str, &'static str, &'static str) {
    match standing {
        Standing::Holds => ("holds", "\u{2713}", "Holds"),
        Standing::DoesNotHold => ("fails", "\u{2717}", "Does not hold"),
        Standing::NotDecided => ("open", "?", "Not decided here"),
    }
}

pub(super) fn render(sections: &[Section<'_>], budget: &mut Budget) -> String {
    let mut html = "<section aria-labelledby=\"overview\">\n<h2 id=\"overview\">Overview</h2>\n".to_owned();
    let claims: Vec<&Claim> = sections.iter().flat_map(|section| &section.claims).collect();
    if !claims.is_empty() {
        let count = |standing| claims.iter().filter(|claim| claim.standing == standing).count();
        let counts = STANDINGS.map(|standing| {
            let (class, mark, _) = words(standing);
            let text = match standing {
                Standing::Holds => "hold",
                Standing::DoesNotHold => "do not hold",
                Standing::NotDecided => "are not decided here",
            };
            format!("<li class=\"{class}\"><b>{mark} {}</b> {text}</li>", count(standing))
        });
        let _ = writeln!(
            html,
            "<p>Published claims, and whether they hold here:</p>\n<ul class=\"counts\">{}</ul>",
            counts.concat()
        );
    }
    let claims = sections.iter().flat_map(|section| section.claims.iter().map(|claim| card(section, claim)));
    html += &format!("<div class=\"cards\">\n{}</div>\n", budget.take(claims));
    let compared = sections.iter().filter(|section| section.claims.is_empty());
    let compared: Vec<String> = compared.flat_map(comparisons).collect();
    if !compared.is_empty() {
        let cards = budget.take(compared);
        let _ = writeln!(
            html,
            "<p>Comparisons without a published figure:</p>\n<div class=\"cards\">\n{cards}</div>"
        );
    }
    let rows = |document: &Document| !document.results.is_empty() || !document.timings.is_empty();
    if !sections.iter().any(|section| rows(section.document)) {
        html += "<p>No row has been measured.</p>\n";
    }
    html + "</section>\n"
}

fn card(section: &Section<'_>, claim: &Claim) -> String {
    let (class, mark, text) = words(claim.standing);
    let limit = claim.limit.map(|limit| format!("<p class=\"why\">{}</p>\n", escape(limit)));
    format!(
        "<article class=\"card {class}\"><p class=\"badge\">{mark} {text}</p>\n<h3>{}</h3>\n<p>{}</p>\n{}{}<p class=\"from\"><a href=\"#{}\">{}</a>, engine {}</p></article>\n",
        escape(&claim.statement),
        escape(&claim.measured),
        claim.chart.small(),
        limit.unwrap_or_default(),
        section.id(),
        escape(section.title()),
        escape(&claim.engine)
    )
}

/// A card for each metric that the document's ratios compare.
fn comparisons(section: &Section<'_>) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&Ratio>)> = Vec::new();
    for ratio in &section.document.ratios {
        match groups.iter_mut().find(|(metric, _)| *metric == ratio.metric) {
            Some((_, ratios)) => ratios.push(ratio),
            None => groups.push((&ratio.metric, vec![ratio])),
        }
    }
    let card = |(metric, ratios): (&str, Vec<&Ratio>)| {
        let metric = words_of(metric, section.document.host.cycles_source.unit());
        let (against, chart) = summary(&metric, &ratios);
        format!(
            "<article class=\"card\"><h3>{}{}</h3>\n<p>{}</p>\n{}<p class=\"from\"><a href=\"#{}\">{}</a></p></article>\n",
            escape(&metric),
            escape(&against),
            escape(&verdicts(&ratios)),
            chart.small(),
            section.id(),
            escape(section.title())
        )
    };
    groups.into_iter().take(MOST_CARDS).map(card).collect()
}

/// A metric for readers.
fn words_of(metric: &str, unit: &str) -> String {
    match metric {
        "iops" => "Throughput",
        "cycles_per_io.total" => return format!("CPU {unit} per I/O"),
        DEVICE_AND_KERNEL => return format!("CPU {unit} of device and kernel per I/O"),
        "latency_us.mean" => "Mean latency",
        "latency_us.p50" => "Median latency",
        "interrupts_per_io" => "Interrupts per I/O",
        other => return other.to_owned(),
    }
    .to_owned()
}

/// `Of 30 ratios, 3 are better, 20 worse, 2 equal and 5 not decided.`
fn verdicts(ratios: &[&Ratio]) -> String {
    let count = |wanted: Option<Verdict>| {
        ratios.iter().filter(|ratio| ratio.confidence.map(|each| each.verdict) == wanted).count()
    };
    if count(None) == ratios.len() {
        return format!("{} ratios, without intervals.", ratios.len());
    }
    let [faster, slower, equal, open] =
        [Verdict::Faster, Verdict::Slower, Verdict::Equal, Verdict::NotDecided].map(|each| count(Some(each)));
    let open = open + count(None);
    format!(
        "Of {} ratios, {faster} are better, {slower} worse, {equal} equal and {open} not decided.",
        ratios.len()
    )
}

/// The baseline, if all have the same, and a point for each candidate: the median over its ratios, from the smallest to the largest.
fn summary(metric: &str, ratios: &[&Ratio]) -> (String, Chart) {
    let mut candidates: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut baselines: Vec<&str> = Vec::new();
    for ratio in ratios {
        let (candidate, rest) = ratio.name.split_once(" against ").unwrap_or((&ratio.name, ""));
        let baseline = rest.split(", ").next().unwrap_or_default();
        if !baselines.contains(&baseline) && baselines.len() < 2 {
            baselines.push(baseline);
        }
        let full = candidates.len() == MOST_CANDIDATES;
        match candidates.iter_mut().find(|(name, _)| *name == candidate) {
            Some((_, values)) => values.push(ratio.median),
            None if full => {}
            None => candidates.push((candidate, vec![ratio.median])),
        }
    }
    let against = match baselines[..] {
        [baseline] if !baseline.is_empty() => format!(" against {baseline}"),
        _ => ", compared".to_owned(),
    };
    let line = candidates.iter().map(|(_, values)| Stat::of(values.iter().copied())).collect();
    let chart = Chart {
        title: format!("{metric}{against}"),
        x_title: "candidate",
        y_title: "ratio",
        categories: candidates.iter().map(|(name, _)| (*name).to_owned()).collect(),
        reference: Some(1.0),
        keys: vec![Key {
            label: "median over its rows, min to max".to_owned(),
            colour: 0,
            style: Style::Points,
        }],
        panels: vec![Panel { title: String::new(), lines: vec![line] }],
        ..Chart::default()
    };
    (against, chart)
}
