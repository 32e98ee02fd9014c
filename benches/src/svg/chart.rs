//! Charts of one or more panels over the same categories: lines with their spread, published points and bands, one legend.

use std::fmt::Write;

use super::{WIDTH, axis, colour, escape, open, tick_label};
use crate::stat::Stat;

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Solid,
    Dashed,
    /// Diamonds without a line.
    Points,
}

/// What a line is, in all panels.
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
    /// From zero, or logarithmic where values are far apart.
    #[default]
    Auto,
    /// Logarithmic, over the values that there are.
    Log,
}

/// One plot area.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    /// For each key, a value for each category.
    pub(crate) lines: Vec<Vec<Option<Stat>>>,
}

/// Panels side by side, two to a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// With units.
    pub(crate) x_title: &'static str,
    pub(crate) y_title: &'static str,
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

/// Height of a plot area, and what stands above and below it.
const HEIGHT: f64 = 240.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 50.0;
/// Left of a plot area (title and labels of the axis), and right of it.
const LEFT: f64 = 68.0;
const RIGHT: f64 = 16.0;
/// From this ratio on, values on an axis from zero could not be told apart at its lower end.
const FAR_APART: f64 = 8.0;
/// Characters are about this wide at 12 px.
const CHARACTER: f64 = 6.6;

impl Chart {
    /// The chart as markup for a page; [`standalone`](super::standalone) makes a file of it.
    pub(crate) fn render(&self) -> String {
        let (entries, legend_bottom) = self.legend();
        let columns = self.panels.len().clamp(1, 2);
        let rows = self.panels.len().div_ceil(columns);
        let pitch = ABOVE + HEIGHT + BELOW;
        let mut svg = open(&self.title, legend_bottom + rows as f64 * pitch);
        svg += &entries;
        let all = Axis::of(self, &self.panels);
        for (index, panel) in self.panels.iter().enumerate() {
            let own = Axis::of(self, std::slice::from_ref(panel));
            let width = WIDTH / columns as f64;
            let area = Area {
                left: (index % columns) as f64 * width + LEFT,
                right: (index % columns + 1) as f64 * width - RIGHT,
                top: legend_bottom + (index / columns) as f64 * pitch + ABOVE,
                categories: self.categories.len(),
            };
            self.panel(&mut svg, panel, &area, if self.shared { &all } else { &own });
        }
        svg + "</svg>"
    }

    /// The legend, wrapped where a line is full, and where it ends.
    fn legend(&self) -> (String, f64) {
        let mut svg = String::new();
        let (mut x, mut y) = (0.0, 38.0);
        let mut place = |label: &str| {
            let width = 30.0 + label.chars().count() as f64 * CHARACTER + 20.0;
            if x > 0.0 && x + width > WIDTH {
                (x, y) = (0.0, y + 18.0);
            }
            let at = (x, y);
            x += width;
            at
        };
        for key in &self.keys {
            let (x, y) = place(&key.label);
            if key.style != Style::Points {
                let _ = write!(
                    svg,
                    r#"<path d="M{x:.0} {y:.0}h24" stroke="{}" stroke-width="2"{}/>"#,
                    colour(key.colour),
                    dashes(key.style)
                );
            }
            svg += &marker(x + 12.0, y, key);
            let _ =
                write!(svg, r#"<text x="{:.0}" y="{:.0}">{}</text>"#, x + 30.0, y + 4.0, escape(&key.label));
        }
        for band in &self.bands {
            let (x, y) = place(&band.label);
            svg += &shade(x, y - 6.0, 24.0, 12.0, band.colour);
            let _ =
                write!(svg, r#"<text x="{:.0}" y="{:.0}">{}</text>"#, x + 30.0, y + 4.0, escape(&band.label));
        }
        (svg, y + 8.0)
    }

    /// Lines of different colours stand a little aside from each other, so that equal values are all seen.
    fn aside(&self, key: &Key) -> f64 {
        let mut colours: Vec<usize> = self.keys.iter().map(|key| key.colour).collect();
        colours.sort_unstable();
        colours.dedup();
        let place = colours.iter().position(|colour| *colour == key.colour).unwrap_or(0);
        (place as f64 - (colours.len() as f64 - 1.0) / 2.0) * 4.0
    }

    fn panel(&self, svg: &mut String, panel: &Panel, area: &Area, axis: &Axis) {
        let (left, right, top) = (area.left, area.right, area.top);
        let bottom = top + HEIGHT;
        let y = |value: f64| bottom - axis.share(value) * HEIGHT;
        let _ = write!(
            svg,
            r#"<text x="{left:.0}" y="{:.0}" font-weight="bold">{}</text>"#,
            top - 12.0,
            escape(&panel.title)
        );
        for (value, label) in axis.ticks() {
            let y = y(value);
            let _ = write!(
                svg,
                r##"<path d="M{left:.0} {y:.1}H{right:.0}" stroke="#ddd"/><text x="{:.0}" y="{:.1}" text-anchor="end">{label}</text>"##,
                left - 6.0,
                y + 4.0
            );
        }
        for band in &self.bands {
            let (upper, lower) = (y(band.high), y(band.low));
            *svg += &shade(left, upper, right - left, lower - upper, band.colour);
        }
        if let Some(value) = self.reference {
            let _ = write!(
                svg,
                r##"<path d="M{left:.0} {:.1}H{right:.0}" stroke="#222" stroke-dasharray="2 3"/>"##,
                y(value)
            );
        }
        for (index, category) in self.categories.iter().enumerate() {
            let _ = write!(
                svg,
                r#"<text x="{:.1}" y="{:.0}" text-anchor="middle">{}</text>"#,
                area.x(index),
                bottom + 17.0,
                escape(category)
            );
        }
        let middle = (left + right) / 2.0;
        let _ = write!(
            svg,
            r#"<text x="{middle:.0}" y="{:.0}" text-anchor="middle">{}</text>"#,
            bottom + 36.0,
            escape(self.x_title)
        );
        let (x, y_middle) = (left - LEFT + 14.0, top + HEIGHT / 2.0);
        let _ = write!(
            svg,
            r#"<text transform="translate({x:.0} {y_middle:.0}) rotate(-90)" text-anchor="middle">{}</text>"#,
            escape(self.y_title)
        );
        if panel.lines.iter().flatten().all(Option::is_none) {
            let _ = write!(
                svg,
                r#"<text x="{middle:.0}" y="{y_middle:.0}" text-anchor="middle" font-style="italic">not measured</text>"#
            );
        }
        for (key, line) in self.keys.iter().zip(&panel.lines) {
            let aside = self.aside(key);
            let points: Vec<(f64, &Stat)> = line
                .iter()
                .enumerate()
                .filter_map(|(index, stat)| Some((area.x(index) + aside, stat.as_ref()?)))
                .collect();
            draw(svg, key, &points, y);
        }
    }
}

/// A line with the spread of its points and their markers.
fn draw(svg: &mut String, key: &Key, points: &[(f64, &Stat)], y: impl Fn(f64) -> f64) {
    let colour = colour(key.colour);
    let whiskers: String = points
        .iter()
        .filter(|(_, stat)| stat.max > stat.min)
        .map(|(x, stat)| format!("M{x:.1} {:.1}V{:.1}", y(stat.max), y(stat.min)))
        .collect();
    if !whiskers.is_empty() {
        let _ = write!(svg, r#"<path d="{whiskers}" stroke="{colour}" stroke-opacity=".55"/>"#);
    }
    if key.style != Style::Points && points.len() > 1 {
        let path: Vec<String> =
            points.iter().map(|(x, stat)| format!("{x:.1},{:.1}", y(stat.median))).collect();
        let _ = write!(
            svg,
            r#"<polyline fill="none" stroke="{colour}" stroke-width="2"{} points="{}"/>"#,
            dashes(key.style),
            path.join(" ")
        );
    }
    for (x, stat) in points {
        *svg += &marker(*x, y(stat.median), key);
    }
}

const fn dashes(style: Style) -> &'static str {
    match style {
        Style::Dashed => r#" stroke-dasharray="6 4""#,
        Style::Solid | Style::Points => "",
    }
}

/// Solid lines have discs, dashed ones rings, and single points diamonds.
fn marker(x: f64, y: f64, key: &Key) -> String {
    let colour = colour(key.colour);
    match key.style {
        Style::Solid => format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#),
        Style::Dashed => {
            format!(r##"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="#fff" stroke="{colour}"/>"##)
        }
        Style::Points => {
            format!(r#"<path d="M{x:.1} {:.1}l6 6l-6 6l-6 -6z" fill="{colour}"/>"#, y - 6.0)
        }
    }
}

fn shade(x: f64, y: f64, width: f64, height: f64, index: usize) -> String {
    let colour = colour(index);
    format!(
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}" fill-opacity=".16" stroke="{colour}" stroke-opacity=".5"/>"#
    )
}

/// Where a panel's plot is.
struct Area {
    left: f64,
    right: f64,
    top: f64,
    categories: usize,
}

impl Area {
    /// The middle of a category.
    fn x(&self, index: usize) -> f64 {
        self.left + (index as f64 + 0.5) * (self.right - self.left) / self.categories.max(1) as f64
    }
}

/// A vertical axis: its ends, and the step of a linear one.
enum Axis {
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
    fn of(chart: &Chart, panels: &[Panel]) -> Self {
        let stats = || panels.iter().flat_map(|panel| panel.lines.iter().flatten().flatten());
        let marks = || chart.bands.iter().flat_map(|band| [band.low, band.high]).chain(chart.reference);
        let values = || stats().flat_map(|stat| [stat.min, stat.max]).chain(marks());
        let positive = || values().filter(|value| value.is_finite() && *value > 0.0);
        let (least, most) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
        if chart.scale == Scale::Auto && most <= FAR_APART * least {
            let (end, step) = axis(most);
            return Self::Linear { end, step };
        }
        if least > most {
            return Self::Log { low: 0.0, high: 1.0 };
        }
        // Out to the next of 1, 2 and 5 times a power of ten, so that both ends have a label. Mirrored, these steps are the
        // same ones: 1/2 is 5/10.
        let (low, high) = (below(least.log10()), -below(-most.log10()));
        Self::Log { low, high: high.max(low + 2f64.log10()) }
    }

    /// How far up a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        match *self {
            Self::Linear { end, .. } => (value / end).clamp(0.0, 1.0),
            // What is not positive is at the bottom.
            Self::Log { low, high } => {
                ((value.max(f64::MIN_POSITIVE).log10() - low) / (high - low)).clamp(0.0, 1.0)
            }
        }
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match *self {
            Self::Linear { end, step } => {
                let count = (end / step).round() as u32;
                (0..=count)
                    .map(|index| f64::from(index) * step)
                    .map(|value| (value, tick_label(value)))
                    .collect()
            }
            Self::Log { low, high } => {
                // All of 1, 2 and 5 over up to four decades, else the powers of ten alone.
                let factors: &[f64] = if high - low <= 4.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let decades = low.floor() as i32..=high.ceil() as i32;
                let values =
                    decades.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
                let inside = |value: &f64| (low - 1e-9..=high + 1e-9).contains(&value.log10());
                values.filter(inside).map(|value| (value, log_label(value))).collect()
            }
        }
    }
}

/// The largest logarithm of 1, 2 or 5 times a power of ten that is not above this one.
fn below(exponent: f64) -> f64 {
    let floor = exponent.floor();
    let steps = [2f64.log10(), 5f64.log10()];
    floor + steps.into_iter().filter(|step| floor + step <= exponent + 1e-9).fold(0.0, f64::max)
}

/// Values under a hundredth keep their first digit.
fn log_label(value: f64) -> String {
    let digits = (-value.log10().floor()).clamp(0.0, 9.0) as usize;
    if digits > 2 { format!("{value:.digits$}") } else { tick_label(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::standalone;
    use crate::svg::tests::well_formed;

    fn stat(median: f64) -> Stat {
        Stat { median, min: median * 0.9, max: median * 1.1 }
    }

    fn chart(scale: Scale) -> Chart {
        let key = |label: &str, colour, style| Key { label: label.into(), colour, style };
        Chart {
            title: "a < b & c".into(),
            x_title: "block size (bytes)",
            y_title: "MB/s",
            categories: ["1K", "2K", "4K"].map(String::from).to_vec(),
            scale,
            shared: true,
            reference: Some(1.0),
            keys: vec![
                key("one", 0, Style::Solid),
                key("two", 1, Style::Dashed),
                key("old", 2, Style::Points),
            ],
            bands: vec![Band { label: "published".into(), colour: 3, low: 0.7, high: 0.9 }],
            panels: vec![
                Panel {
                    title: "1 worker".into(),
                    lines: vec![
                        vec![Some(stat(1.0)), None, Some(stat(3.0))],
                        vec![Some(stat(2.0)); 3],
                        vec![None, Some(stat(1.5)), None],
                    ],
                },
                Panel { title: "2 workers".into(), lines: vec![vec![None; 3]; 3] },
            ],
        }
    }

    #[test]
    fn values_titles_and_legend_are_there() {
        for scale in [Scale::Auto, Scale::Log] {
            let svg = chart(scale).render();
            well_formed(&svg);
            // Solid and dashed lines, with a marker for each point and one in the legend; a diamond is not a circle.
            assert_eq!(svg.matches("<polyline").count(), 2);
            assert_eq!(svg.matches("<circle").count(), (2 + 3) + 2);
            assert_eq!(svg.matches("l6 6l-6 6").count(), 1 + 1);
            // A swatch, and the band in both panels.
            assert_eq!(svg.matches("<rect").count(), 1 + 2);
            assert_eq!(svg.matches("block size (bytes)").count(), 2);
            assert_eq!(svg.matches("not measured").count(), 1);
            assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("http:") && !svg.contains("NaN"));
            let file = standalone(&svg);
            well_formed(&file);
            assert!(
                file.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-12 -12 984 "),
                "{file}"
            );
            assert!(!file.contains("viewBox=\"0 0"));
        }
    }

    #[test]
    fn a_long_legend_wraps_and_pushes_the_panels_down() {
        let mut chart = chart(Scale::Auto);
        let (_, one_line) = chart.legend();
        for _ in 0..6 {
            chart.keys.push(Key { label: "x".repeat(40), colour: 0, style: Style::Solid });
        }
        let (svg, lines) = chart.legend();
        assert!(lines >= one_line + 36.0, "{lines}");
        for text in svg.split("<text x=\"").skip(1) {
            let x: f64 = text.split('"').next().unwrap().parse().unwrap();
            let label = text.split('>').nth(1).unwrap().split('<').next().unwrap();
            assert!(x + label.len() as f64 * CHARACTER < WIDTH, "{text}");
        }
    }

    #[test]
    fn axes_reach_out_to_labelled_ends() {
        let labels = |axis: &Axis| axis.ticks().into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        let mut chart = chart(Scale::Log);
        (chart.reference, chart.bands) = (None, Vec::new());
        // 0.9 to 3.3.
        assert_eq!(labels(&Axis::of(&chart, &chart.panels)), ["0.5", "1", "2", "5"]);
        chart.panels[0].lines[0][0] = Some(stat(0.004));
        assert_eq!(labels(&Axis::of(&chart, &chart.panels))[..4], ["0.002", "0.005", "0.01", "0.02"]);
        chart.panels[0].lines[0][0] = Some(stat(40_000.0));
        assert_eq!(labels(&Axis::of(&chart, &chart.panels)), ["1", "10", "100", "1k", "10k"]);
        chart.scale = Scale::Auto;
        assert_eq!(labels(&Axis::of(&chart, &chart.panels)), ["1", "10", "100", "1k", "10k"]);
        chart.panels[0].lines[0][0] = Some(stat(4.0));
        let axis = Axis::of(&chart, &chart.panels);
        assert_eq!(labels(&axis), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!((axis.share(0.0), axis.share(2.5), axis.share(1e9)), (0.0, 0.5, 1.0));
        // Nothing measured: still an axis.
        assert_eq!(labels(&Axis::of(&Chart { scale: Scale::Log, ..chart.clone() }, &[])).len(), 4);
    }
}
