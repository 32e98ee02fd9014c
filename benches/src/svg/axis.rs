//! Positions of values on the axes of a chart, and the labels.

use super::model::{Chart, Panel, Scale};

/// From this ratio of values on, small values would be indistinguishable on an axis from zero.
const FAR_APART: f64 = 8.0;
/// Smaller values are drawn at the end of the axis, which must be a finite number.
const LEAST: f64 = 1e-300;
const MOST: f64 = 1e300;
/// Largest ratio of the ends of an axis with automatic scale.
const LARGEST_RATIO: f64 = 1e4;
/// With more decades, only powers of ten have a label.
const FEW_DECADES: f64 = 4.0;

/// Places of categories on the horizontal axis. The distance of neighbours is about 1.
///
/// Labels that are numbers or sizes (`8`, `64K`) are placed by their logarithm. Others follow at equal distances, and are not part of a
/// line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Places {
    pub(super) at: Vec<f64>,
    /// Number of leading categories on a logarithmic axis.
    pub(super) scaled: usize,
}

impl Places {
    pub(super) fn of(categories: &[String]) -> Self {
        let mut values: Vec<f64> = categories.iter().map_while(|label| number(label)).collect();
        let ascending = values.windows(2).all(|pair| pair[0] < pair[1]);
        if values.len() < 2 || !ascending {
            values.clear();
        }
        let scaled = values.len();
        let first = values.first().copied().unwrap_or(1.0);
        let mut at: Vec<f64> = values.iter().map(|value| (value / first).log2()).collect();
        // Neighbours are one apart on average.
        let step = at.last().map_or(1.0, |last| last / (scaled - 1) as f64);
        at.iter_mut().for_each(|place| *place /= step);
        let next = at.last().map_or(0.0, |last| last + 1.0);
        at.extend((scaled..categories.len()).map(|index| next + (index - scaled) as f64));
        Self { at, scaled }
    }

    /// The ends of the axis.
    pub(super) fn range(&self) -> (f64, f64) {
        (-0.5, self.at.last().copied().unwrap_or(0.0) + 0.5)
    }

    /// The categories with a label, where a label is `width` of the axis's length wide.
    pub(super) fn labelled(&self, width: f64) -> Vec<usize> {
        let (low, high) = self.range();
        let (gap, mut free, mut shown) = (width * (high - low), f64::NEG_INFINITY, Vec::new());
        for (index, place) in self.at.iter().enumerate() {
            if *place >= free || index >= self.scaled {
                shown.push(index);
                free = place + gap;
            }
        }
        shown
    }
}

/// A positive number with or without a binary suffix.
fn number(label: &str) -> Option<f64> {
    let (digits, factor) = match label.char_indices().next_back()? {
        (at, 'K') => (label.get(..at)?, 1024.0),
        (at, 'M') => (label.get(..at)?, 1024.0 * 1024.0),
        (at, 'G') => (label.get(..at)?, 1024.0 * 1024.0 * 1024.0),
        (at, 'T') => (label.get(..at)?, 1024.0 * 1024.0 * 1024.0 * 1024.0),
        _ => (label, 1.0),
    };
    let plain = digits.starts_with(|first: char| first.is_ascii_digit());
    let value = digits.parse::<f64>().ok().filter(|value| plain && value.is_finite() && *value > 0.0)?;
    Some(value * factor)
}

/// A vertical axis: its ends, and the step of a linear one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Axis {
    Linear {
        end: f64,
        step: f64,
    },
    /// Exponents of ten.
    Log {
        low: f64,
        high: f64,
    },
}

impl Axis {
    /// For all values of these panels.
    pub(super) fn of(chart: &Chart, panels: &[Panel]) -> Self {
        let stats = || panels.iter().flat_map(|panel| panel.lines.iter().flatten().flatten());
        let marks = || chart.bands.iter().flat_map(|band| [band.low, band.high]).chain(chart.reference);
        let values = || stats().flat_map(|stat| [stat.min, stat.median, stat.max]).chain(marks());
        let positive = || values().filter(|value| *value > 0.0).map(|value| value.clamp(LEAST, MOST));
        let (least, most) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
        if chart.scale == Scale::Auto && most <= FAR_APART * least {
            let (end, step) = linear(most);
            return Self::Linear { end, step };
        }
        if least > most {
            return Self::Log { low: 0.0, high: 1.0 };
        }
        // Very small components would leave no space for the others, so they are drawn at the lower end.
        let least = if chart.scale == Scale::Auto { least.max(most / LARGEST_RATIO) } else { least };
        // Extend to the next of 1, 2 and 5 times a power of ten, so that both ends have a label. Inverted, these steps
        // are the same: 1/2 is 5/10.
        let (mut low, mut high) = (below(least.log10()), -below(-most.log10()));
        if high - low > FEW_DECADES {
            (low, high) = (low.floor(), high.ceil());
        }
        Self::Log { low, high: high.max(low + 2f64.log10()) }
    }

    pub(super) fn range(&self) -> (f64, f64) {
        match *self {
            Self::Linear { end, .. } => (0.0, end),
            Self::Log { low, high } => (10f64.powf(low), 10f64.powf(high)),
        }
    }

    pub(super) fn ticks(&self) -> Vec<f64> {
        match *self {
            Self::Linear { end, step } => {
                (0..=(end / step).round() as u32).map(|index| f64::from(index) * step).collect()
            }
            Self::Log { low, high } => {
                let decades = high - low;
                // All of 1, 2 and 5 over few decades, else powers of ten, at most about ten of them.
                let factors: &[f64] = if decades <= FEW_DECADES { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let stride = (decades / 10.0).ceil().max(1.0) as usize;
                let powers = (low.floor() as i32..=high.ceil() as i32).step_by(stride);
                let values =
                    powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
                let inside = |value: &f64| (low - 1e-9..=high + 1e-9).contains(&value.log10());
                values.filter(inside).collect()
            }
        }
    }

    pub(super) fn label(&self, value: f64) -> String {
        let digits = (-value.log10().floor()).clamp(0.0, 9.0) as usize;
        match self {
            // Values below 0.01 keep their first digit.
            Self::Log { .. } if digits > 2 => format!("{value:.digits$}"),
            _ => tick_label(value),
        }
    }
}

/// The largest logarithm of 1, 2 or 5 times a power of ten that is not above this one.
fn below(exponent: f64) -> f64 {
    let floor = exponent.floor();
    let steps = [2f64.log10(), 5f64.log10()];
    floor + steps.into_iter().filter(|step| floor + step <= exponent + 1e-9).fold(0.0, f64::max)
}

/// The end of an axis from 0 that includes `most`, and its step: 1, 2 or 5 times a power of ten.
fn linear(most: f64) -> (f64, f64) {
    if !(most.is_finite() && most > 0.0) {
        return (1.0, 1.0);
    }
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    ((most / step).ceil() * step, step)
}

fn tick_label(value: f64) -> String {
    match value {
        v if v >= 1e15 => format!("{v:.0e}"),
        v if v >= 1e9 => format!("{}G", round(v / 1e9)),
        v if v >= 1e6 => format!("{}M", round(v / 1e6)),
        v if v >= 1e3 => format!("{}k", round(v / 1e3)),
        v => round(v),
    }
}

fn round(value: f64) -> String {
    let text = format!("{value:.2}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::Stat;

    fn places(labels: &[&str]) -> Places {
        Places::of(&labels.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn numbers_and_sizes_are_placed_by_their_logarithm() {
        assert_eq!(places(&["1K", "2K", "4K"]), Places { at: vec![0.0, 1.0, 2.0], scaled: 3 });
        // 1 to 8 is three times as far as from 8 to 16.
        let uneven = places(&["1", "8", "16"]);
        assert_eq!(uneven.scaled, 3);
        assert!((uneven.at[1] - 3.0 * (uneven.at[2] - uneven.at[1])).abs() < 1e-9, "{uneven:?}");
        assert_eq!(places(&["512", "1K", "1M"]).range(), (-0.5, 2.5));
        // A category after the numbers is separate from them, and names are at equal distances.
        assert_eq!(places(&["1", "1024", "1024 spread"]), Places { at: vec![0.0, 1.0, 2.0], scaled: 2 });
        for names in [&["ide", "lsi"][..], &["8"], &["8", "4"], &["0", "1"], &["inf", "nan"], &["K", "é"]] {
            let Places { at, scaled } = places(names);
            assert_eq!((at, scaled), ((0..names.len()).map(|index| index as f64).collect(), 0), "{names:?}");
        }
    }

    #[test]
    fn labels_have_space_between_them() {
        let crowded = places(&["1", "2", "4", "8", "16", "32"]);
        assert_eq!(crowded.labelled(0.1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(crowded.labelled(0.3), [0, 2, 4]);
        assert_eq!(places(&["a", "b", "c"]).labelled(0.9), [0, 1, 2], "names are never left out");
    }

    #[test]
    fn linear_axes_hold_their_values_in_round_steps() {
        assert_eq!(linear(9.0), (10.0, 2.0));
        assert_eq!(linear(100.0), (100.0, 20.0));
        assert_eq!(linear(2_300_000.0), (2_500_000.0, 500_000.0));
        assert_eq!(linear(0.0), (1.0, 1.0));
        assert_eq!(linear(f64::NAN), (1.0, 1.0));
    }

    #[test]
    fn axes_reach_out_to_labelled_ends() {
        let labels = |axis: &Axis| -> Vec<String> {
            axis.ticks().into_iter().map(|value| axis.label(value)).collect()
        };
        let of = |scale, medians: &[f64]| {
            let line = medians.iter().map(|median| Some(Stat::at(*median))).collect();
            let panels = [Panel { title: String::new(), lines: vec![line] }];
            Axis::of(&Chart { scale, ..Chart::default() }, &panels)
        };
        assert_eq!(labels(&of(Scale::Log, &[0.9, 3.3])), ["0.5", "1", "2", "5"]);
        assert_eq!(labels(&of(Scale::Log, &[0.004, 3.3]))[..4], ["0.002", "0.005", "0.01", "0.02"]);
        assert_eq!(labels(&of(Scale::Log, &[2.0, 40_000.0])), ["1", "10", "100", "1k", "10k", "100k"]);
        // Far apart.
        assert_eq!(labels(&of(Scale::Auto, &[2.0, 900.0]))[..4], ["2", "5", "10", "20"]);
        assert_eq!(of(Scale::Auto, &[1e-9, 100.0]).range().0, of(Scale::Auto, &[0.01, 100.0]).range().0);
        assert_eq!(labels(&of(Scale::Auto, &[2.0, 4.4])), ["0", "1", "2", "3", "4", "5"]);
        // Nothing measured: still an axis.
        assert_eq!(labels(&of(Scale::Log, &[])).len(), 4);
        // For any values, there are few ticks.
        for values in [[f64::MIN_POSITIVE, f64::MAX], [-1.0, 0.0], [f64::MAX, f64::MAX]] {
            for scale in [Scale::Auto, Scale::Log] {
                assert!((2..=16).contains(&of(scale, &values).ticks().len()), "{values:?}");
            }
        }
    }
}
