//! The data of a chart.

use crate::stat::Stat;

/// Style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Solid,
    Dashed,
    /// Markers without a line.
    Points,
}

/// The key of a line, in all panels.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) label: String,
    /// Index of the colour.
    pub(crate) colour: usize,
    pub(crate) style: Style,
}

/// A range of values, shaded in all panels.
#[derive(Clone, Debug)]
pub(crate) struct Band {
    pub(crate) label: String,
    pub(crate) colour: usize,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The vertical axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero, or logarithmic if values are far apart.
    #[default]
    Auto,
    /// Logarithmic, over the range of the values.
    Log,
}

/// One plot area.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    /// For each key, a value for each category.
    pub(crate) lines: Vec<Vec<Option<Stat>>>,
}

/// Panels side by side, two to a row where there is space.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// With units.
    pub(crate) x_title: &'static str,
    pub(crate) y_title: &'static str,
    /// Numbers and sizes in ascending order are on a logarithmic axis.
    pub(crate) categories: Vec<String>,
    pub(crate) scale: Scale,
    /// Whether all panels have the same vertical axis.
    pub(crate) shared: bool,
    /// A value to compare with, drawn as a line across.
    pub(crate) reference: Option<f64>,
    pub(crate) keys: Vec<Key>,
    pub(crate) bands: Vec<Band>,
    pub(crate) panels: Vec<Panel>,
}
