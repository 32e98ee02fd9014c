//! The report of a suite's results.

use crate::grid::Grid;
use crate::svg::Chart;

/// The tables, findings and charts of a suite's results.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) grids: Vec<Grid>,
    /// Conclusions as text.
    pub(crate) findings: Vec<String>,
    /// Charts with their names.
    pub(crate) charts: Vec<(String, Chart)>,
}
