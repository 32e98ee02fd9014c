//! The section of a document.

use std::fmt::Write;

use facts::host::CyclesSource;

use super::space::{Budget, clipped};
use super::{limits, lines, tables};
use crate::grid::Grid;
use crate::result::Document;
use crate::suite::{self, Claim, Observation, Report};
use crate::svg::{Chart, escape};
use crate::table::{circumstances, legend};

/// A document with its charts, tables and claims.
pub(super) struct Section<'a> {
    number: usize,
    /// The suite, or a description without one.
    title: String,
    /// The name of the file.
    name: String,
    pub(super) document: &'a Document,
    pub(super) claims: Vec<Claim>,
    pub(super) observations: Vec<Observation>,
    findings: Vec<String>,
    charts: Vec<Chart>,
    grids: Vec<Grid>,
}

impl<'a> Section<'a> {
    pub(super) fn of(number: usize, name: &str, document: &'a Document) -> Self {
        let suite = suite::of(document);
        let title = match &document.suite {
            Some(suite) => format!("Suite {}", clipped(suite)),
            None => "Measurement".to_owned(),
        };
        let title = match document.host.cycles_source {
            CyclesSource::Instructions => title + ", emulated hardware",
            CyclesSource::Pmu | CyclesSource::CpuTimeXTsc => title,
        };
        let report = match suite {
            Some(suite) => suite.report(document),
            None => Report {
                charts: lines::charts(document).into_iter().map(|chart| (String::new(), chart)).collect(),
                ..Report::default()
            },
        };
        let claims = suite.map_or_else(Vec::new, |suite| suite.claims(document));
        let observations = suite.map_or_else(Vec::new, |suite| suite.observations(document));
        let Report { grids, findings, charts } = report;
        let charts = charts.into_iter().map(|(_, chart)| chart).collect();
        Self { number, title, name: clipped(name), document, claims, observations, findings, charts, grids }
    }

    /// The ID of the section's heading.
    pub(super) fn id(&self) -> String {
        format!("section-{}", self.number)
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// Heading, command, machine and limits.
    pub(super) fn opening(&self) -> String {
        let Self { document, .. } = self;
        let id = self.id();
        let mut html = format!(
            "<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{}</h2>\n<dl><dt>Results</dt><dd>{}</dd>\n",
            escape(&self.title),
            escape(&self.name)
        );
        if let Some(command) = &document.command {
            let _ = writeln!(html, "<dt>Command</dt><dd><code>{}</code></dd>", escape(&clipped(command)));
        }
        let _ = writeln!(
            html,
            "<dt>Machine and load</dt><dd>{}</dd>\n<dt>Rows</dt><dd>{} rows, {} ratios</dd></dl>",
            escape(&clipped_long(&circumstances(document))),
            document.results.len(),
            document.ratios.len()
        );
        let limits = limits::of(document);
        let notes = document.notes.iter().take(MOST_NOTES).map(|note| clipped_long(note));
        let all: Vec<String> = limits.into_iter().chain(notes).collect();
        if !all.is_empty() {
            html += "<div class=\"limit\"><p>What limits these results:</p><ul>";
            all.iter().for_each(|line| html += &format!("<li>{}</li>\n", escape(line)));
            html += "</ul></div>\n";
        }
        html
    }

    /// Findings, charts and the suite's tables.
    pub(super) fn essential(&self, budget: &mut Budget) -> String {
        let findings = self.findings.iter().map(|line| format!("<p>{}</p>\n", escape(line)));
        let charts = self.charts.iter().map(Chart::figure);
        let legend = legend(self.document)
            .filter(|_| !self.grids.is_empty())
            .map(|line| format!("<p class=\"note\">{}</p>\n", escape(&line)));
        budget.take(findings.chain(charts).chain(self.grids.iter().map(Grid::html)).chain(legend))
    }

    /// Every row and every ratio.
    pub(super) fn full(&self, budget: &mut Budget) -> String {
        let grids = [tables::rows(self.document), tables::ratios(self.document)];
        let grids = grids.into_iter().filter(|grid| !grid.rows.is_empty());
        budget.take(grids.map(|grid| {
            // Without another table, the rows are not folded.
            let open = if self.grids.is_empty() { " open" } else { "" };
            let (title, count) = (escape(&grid.title), grid.rows.len());
            format!("<details{open}><summary>{title} ({count})</summary>\n{}</details>\n", grid.html())
        }))
    }
}

/// Maximum number of notes of a document.
const MOST_NOTES: usize = 50;

/// A line about the machine and the command, made from several texts.
fn clipped_long(text: &str) -> String {
    text.chars().take(1000).collect()
}

/// Bytes of the parts without a budget: openings, closings and the table of contents.
pub(super) fn frames(sections: &[Section<'_>]) -> usize {
    let openings: usize = sections.iter().map(|section| section.opening().len() + 500).sum();
    openings + contents(sections).len() + 2000
}

/// The table of contents.
pub(super) fn contents(sections: &[Section<'_>]) -> String {
    let mut html =
        "<nav aria-label=\"Contents\"><ol>\n<li><a href=\"#overview\">Overview</a></li>\n".to_owned();
    for section in sections {
        let _ = writeln!(
            html,
            "<li><a href=\"#{}\">{}</a> <span>{}</span></li>",
            section.id(),
            escape(&section.title),
            escape(&section.name)
        );
    }
    html + "</ol></nav>\n"
}
