//! The overview: a card for each claim; for documents without claims, a card for each compared metric.

use std::fmt::Write;

use super::section::Section;
use super::space::Budget;
use crate::confidence::Verdict;
use crate::result::{DEVICE_AND_KERNEL, Document, Ratio};
use crate::stat::Stat;
use crate::suite::{Claim, Observation, Standing};
use crate::svg::{Chart, Key, Panel, Style, escape};

/// Maximum number of cards of a document without claims.
const MOST_CARDS: usize = 3;
/// Maximum number of candidates of a small chart.
const MOST_CANDIDATES: usize = 8;

const STANDINGS: [Standing; 3] = [Standing::Holds, Standing::DoesNotHold, Standing::NotDecided];

/// CSS class, mark and text of a standing.
const fn words(standing: Standing) -> (&'static str, &'static str, &'static str) {
    match standing {
        Standing::Holds => ("holds", "\u{2713}", "Holds"),
        Standing::DoesNotHold => ("fails", "\u{2717}", "Does not hold"),
        Standing::NotDecided => ("open", "?", "Not decided here"),
    }
}

pub(super) fn render(sections: &[Section<'_>], budget: &mut Budget) -> String {
    let mut html = "<section aria-labelledby=\"overview\">\n<h2 id=\"overview\">Overview</h2>\n".to_owned();
    let (published, own): (Vec<_>, Vec<_>) =
        judged(sections).into_iter().partition(|judged| judged.lead.1.source.is_some());
    let mut cards = 0;
    for (heading, claims) in
        [("Published claims, and whether they hold here:", published), ("Claims of this project:", own)]
    {
        if !claims.is_empty() {
            let _ = writeln!(html, "<p>{heading}</p>\n<ul class=\"counts\">{}</ul>", counts(&claims));
            cards += claims.len();
            html += &row(claims.iter().map(card), budget);
        }
    }
    let compared: Vec<String> = sections.iter().flat_map(without_claim).collect();
    if !compared.is_empty() {
        cards += compared.len();
        html += "<p>Without a published figure:</p>\n";
        html += &row(compared, budget);
    }
    let rows = |document: &Document| !document.results.is_empty() || !document.timings.is_empty();
    if !sections.iter().any(|section| rows(section.document)) {
        html += "<p>No row has been measured.</p>\n";
    } else if cards == 0 {
        html += "<p>No comparison yet: a ratio needs two runs of each of its rows. The rows that have been measured are below.</p>\n";
    }
    html + "</section>\n"
}

/// Cards of measurements without a claim.
fn without_claim(section: &Section<'_>) -> Vec<String> {
    if section.observations.is_empty() && section.claims.is_empty() {
        return comparisons(section);
    }
    section.observations.iter().map(|each| observation(section, each)).collect()
}

/// A claim, and all measurements of it.
struct Judged<'a> {
    /// The deciding measurement: one that contradicts the claim, else one that supports it.
    lead: (&'a Section<'a>, &'a Claim),
    others: Vec<(&'a Section<'a>, &'a Claim)>,
}

/// The claims grouped by statement, in the order of the sections.
fn judged<'a>(sections: &'a [Section<'a>]) -> Vec<Judged<'a>> {
    let mut all: Vec<Judged<'a>> = Vec::new();
    let weight = |claim: &Claim| match claim.standing {
        Standing::DoesNotHold => 2,
        Standing::Holds => 1,
        Standing::NotDecided => 0,
    };
    for (section, claim) in
        sections.iter().flat_map(|section| section.claims.iter().map(move |claim| (section, claim)))
    {
        let next = (section, claim);
        match all.iter_mut().find(|judged| judged.lead.1.statement == claim.statement) {
            Some(judged) if weight(claim) > weight(judged.lead.1) => {
                judged.others.push(std::mem::replace(&mut judged.lead, next));
            }
            Some(judged) => judged.others.push(next),
            None => all.push(Judged { lead: next, others: Vec::new() }),
        }
    }
    all
}

/// How many claims hold, do not hold, and are not decided.
fn counts(claims: &[Judged<'_>]) -> String {
    let counts = STANDINGS.map(|standing| {
        let count = claims.iter().filter(|judged| judged.lead.1.standing == standing).count();
        let (class, mark, _) = words(standing);
        let text = match (standing, count) {
            (Standing::Holds, 1) => "holds",
            (Standing::Holds, _) => "hold",
            (Standing::DoesNotHold, 1) => "does not hold",
            (Standing::DoesNotHold, _) => "do not hold",
            (Standing::NotDecided, 1) => "is not decided here",
            (Standing::NotDecided, _) => "are not decided here",
        };
        format!("<li class=\"{class}\"><b>{mark} {count}</b> {text}</li>")
    });
    counts.concat()
}

/// Cards beside each other.
fn row(cards: impl IntoIterator<Item = String>, budget: &mut Budget) -> String {
    format!("<div class=\"cards\">\n{}</div>\n", budget.take(cards))
}

fn card(judged: &Judged<'_>) -> String {
    let (section, claim) = judged.lead;
    let (class, mark, text) = words(claim.standing);
    let source = claim.source.map(|source| format!("<p class=\"from\">Source: {}</p>\n", escape(source)));
    let others = judged.others.iter().map(|(section, claim)| {
        let (class, mark, text) = words(claim.standing);
        let limit = claim.limit.map(|limit| format!(" {}", escape(limit)));
        format!(
            "<div class=\"also {class}\"><p><b>{mark} {text}</b>: {}{}</p>\n{}</div>\n",
            escape(&claim.measured),
            limit.unwrap_or_default(),
            origin(section, &claim.engine)
        )
    });
    format!(
        "<article class=\"card {class}\"><p class=\"badge\">{mark} {text}</p>\n<h3>{}</h3>\n{}<p>{}</p>\n{}{}{}\n{}</article>\n",
        escape(&claim.statement),
        source.unwrap_or_default(),
        escape(&claim.measured),
        claim.chart.small(),
        why(claim.limit),
        origin(section, &claim.engine),
        others.collect::<String>()
    )
}

fn observation(section: &Section<'_>, observation: &Observation) -> String {
    format!(
        "<article class=\"card\"><h3>{}</h3>\n<p>{}</p>\n{}{}{}</article>\n",
        escape(&observation.title),
        escape(&observation.measured),
        observation.chart.small(),
        why(observation.limit),
        origin(section, &observation.engine)
    )
}

/// The text of an environment's limit.
fn why(limit: Option<&str>) -> String {
    limit.map_or_else(String::new, |limit| format!("<p class=\"why\">{}</p>\n", escape(limit)))
}

/// The section of a card.
fn origin(section: &Section<'_>, engine: &str) -> String {
    let engine = if engine.is_empty() { String::new() } else { format!(", engine {}", escape(engine)) };
    format!("<p class=\"from\"><a href=\"#{}\">{}</a>{engine}</p>", section.id(), escape(section.title()))
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
            "<article class=\"card\"><h3>{}{}</h3>\n<p>{}</p>\n{}{}</article>\n",
            escape(&metric),
            escape(&against),
            escape(&verdicts(&ratios)),
            chart.small(),
            origin(section, "")
        )
    };
    groups.into_iter().take(MOST_CARDS).map(card).collect()
}

/// The name of a metric for readers.
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

/// The baseline, if all have the same, and a point for each candidate: the median of its ratios, with the range.
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
