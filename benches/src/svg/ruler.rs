//! An axis for plotters: linear or logarithmic, with labels at given values.

use std::ops::Range;

use plotters::coord::combinators::{IntoLogRange, LogCoord};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;

/// An axis.
pub(super) struct Ruler {
    scale: Scale,
    /// Values with a label.
    labels: Vec<(f64, String)>,
}

enum Scale {
    Linear(RangedCoordf64),
    Log(LogCoord<f64>),
}

impl Ruler {
    pub(super) fn linear((low, high): (f64, f64), labels: Vec<(f64, String)>) -> Self {
        Self { scale: Scale::Linear((low..high).into()), labels }
    }

    /// From a positive value to a larger one.
    pub(super) fn log((low, high): (f64, f64), labels: Vec<(f64, String)>) -> Self {
        Self { scale: Scale::Log((low..high).log_scale().into()), labels }
    }
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match &self.scale {
            Scale::Linear(scale) => scale.map(value, limit),
            Scale::Log(scale) => scale.map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Grid lines are only at labels.
        let labelled = !hint.weight().allow_light_points();
        self.labels.iter().filter(|_| labelled).map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        match &self.scale {
            Scale::Linear(scale) => scale.range(),
            Scale::Log(scale) => scale.range(),
        }
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format_ext(&self, value: &f64) -> String {
        let label = self.labels.iter().find(|(other, _)| other == value);
        label.map_or_else(String::new, |(_, label)| label.clone())
    }
}
