//! What a suite concludes from its results.

use crate::grid::Grid;
use crate::svg::{Chart, escape};

/// The tables, findings and charts of a suite's results.
#[derive(Default)]
pub(crate) struct Report {
    pub(super) grids: Vec<Grid>,
    /// Conclusions as text.
    pub(super) findings: Vec<String>,
    /// Each under its name.
    pub(super) charts: Vec<(String, Chart)>,
}

impl Report {
    /// As HTML for a page.
    pub(crate) fn html(&self) -> String {
        let findings = self.findings.iter().map(|line| format!("<p>{}</p>\n", escape(line)));
        let charts = self.charts.iter().map(|(_, chart)| chart.render() + "\n");
        findings.chain(charts).chain(self.grids.iter().map(Grid::html)).collect()
    }
}
