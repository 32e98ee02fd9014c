//! One panel: plotters draws axes, grid, bands and lines; then markers with their values are drawn over them.

use std::convert::Infallible;
use std::fmt::Write;

use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{PathElement, Rectangle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{IntoFont, TextStyle};

use super::axis::{Axis, Places};
use super::canvas::{Canvas, Ink, Series, wrapped};
use super::escape;
use super::marker::marker;
use super::model::{Chart, Key, Panel, Style};
use super::palette::COLOURS;
use super::ruler::Ruler;
use crate::stat::Stat;
use crate::table::grouped;

/// The size of a panel in CSS pixels, and whether its axes have titles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) titles: bool,
}

/// A value's position: horizontal, vertical.
type Point = (f64, f64);
/// Horizontal distance of points with different colours, if the axis has names.
const ASIDE: f64 = 0.06;
/// Approximate width of a letter, and height of a line.
const LETTER: f64 = 6.6;
const LINE: u32 = 14;
/// Maximum number of lines of a label.
const MOST_LINES: usize = 4;

impl Frame {
    /// The elements of a panel.
    pub(super) fn draw(self, chart: &Chart, panel: &Panel, axis: &Axis) -> String {
        let places = Places::of(&chart.categories);
        let mut svg = String::new();
        let space = self.space();
        let Labels { wrap, lines, levels } = self.labels(chart, &places);
        let canvas = Canvas { svg: &mut svg, size: (self.width, self.height), wrap };
        let drawing = Drawing { frame: self, chart, panel, axis, places: &places, space, lines, levels };
        let root = canvas.into_drawing_area();
        let drawn = drawing.on(&root);
        drop(root);
        // The backend cannot fail, and ranges are never empty.
        let points = drawn.unwrap_or_default();
        for Placed { key, entry, index, stat, place: (x, y) } in points {
            let label = chart.categories.get(index).map_or("", String::as_str);
            let text = [label, &key.label].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
            let _ = write!(
                svg,
                r#"<g class="point s{}" data-i="{index}" data-k="{entry}"><title>{}: {}</title>{}</g>"#,
                key.colour % COLOURS,
                escape(&text.join(", ")),
                value(&stat),
                marker(f64::from(x), f64::from(y), key)
            );
        }
        if panel.lines.iter().flatten().all(Option::is_none) {
            let (x, y) = ((self.left() + self.width) / 2, self.height / 2);
            let _ =
                write!(svg, r#"<text class="none" x="{x}" y="{y}" text-anchor="middle">not measured</text>"#);
        }
        svg
    }

    /// Increase the height for labels below the chart with several lines.
    pub(super) fn fitted(self, chart: &Chart) -> Self {
        let Labels { lines, levels, .. } = self.labels(chart, &Places::of(&chart.categories));
        Self { height: self.height + LINE * (lines * levels - 1), ..self }
    }

    /// Length of the horizontal axis.
    fn space(self) -> f64 {
        f64::from(self.width - self.left() - 16)
    }

    fn labels(self, chart: &Chart, places: &Places) -> Labels {
        let slot = self.space() / (places.range().1 - places.range().0);
        let wrap = (slot / LETTER).floor().max(4.0) as usize;
        let broken: Vec<Vec<String>> = chart.categories.iter().map(|label| wrapped(label, wrap)).collect();
        let lines = broken.iter().map(Vec::len).max().unwrap_or(1).clamp(1, MOST_LINES) as u32;
        // Names that would touch are placed on two levels.
        let touching = broken.iter().flatten().any(|line| (line.chars().count() + 1) as f64 * LETTER > slot);
        let levels = if touching && places.scaled == 0 { 2 } else { 1 };
        Labels { wrap, lines, levels }
    }

    /// Space for labels of the vertical axis.
    const fn left(self) -> u32 {
        if self.titles { 64 } else { 44 }
    }
}

/// Layout of the labels of the horizontal axis.
struct Labels {
    /// Characters of a line.
    wrap: usize,
    lines: u32,
    levels: u32,
}

/// A panel to draw.
struct Drawing<'a> {
    frame: Frame,
    chart: &'a Chart,
    panel: &'a Panel,
    axis: &'a Axis,
    places: &'a Places,
    /// Length of the horizontal axis.
    space: f64,
    /// Lines of its labels.
    lines: u32,
    /// Number of levels, which labels use in turn.
    levels: u32,
}

type Area<'a> = DrawingArea<Canvas<'a>, Shift>;

/// A value with its position.
struct Placed<'a> {
    key: &'a Key,
    /// Index in the legend.
    entry: usize,
    /// Index of the category.
    index: usize,
    stat: Stat,
    place: (i32, i32),
}

impl<'a> Drawing<'a> {
    /// Draw everything but markers. Returns their positions.
    fn on(&self, root: &Area<'_>) -> Result<Vec<Placed<'a>>, DrawingAreaErrorKind<Infallible>> {
        let Self { frame, chart, axis, places, .. } = *self;
        let (left, right) = places.range();
        let longest = chart.categories.iter().map(|label| label.chars().count()).max().unwrap_or(0);
        let shown = places.labelled((longest as f64 + 1.0) * LETTER / self.space);
        let at = |index: usize| places.at.get(index).copied().unwrap_or(0.0);
        let name = |index: &usize| {
            let level = *index % self.levels as usize;
            let lower = "\n".repeat(level * self.lines as usize);
            (at(*index), lower + chart.categories.get(*index).map_or("", String::as_str))
        };
        let x = Ruler::linear((left, right), shown.iter().map(name).collect());
        let (low, high) = axis.range();
        let labels = axis.ticks().into_iter().map(|value| (value, axis.label(value))).collect();
        let y = match axis {
            Axis::Linear { .. } => Ruler::linear((low, high), labels),
            Axis::Log { .. } => Ruler::log((low, high), labels),
        };
        let below = LINE * self.lines * self.levels + if frame.titles { 34 } else { 14 };
        let mut builder = ChartBuilder::on(root);
        builder.margin_top(6).margin_right(16).x_label_area_size(below).y_label_area_size(frame.left());
        let mut context = builder.build_cartesian_2d(x, y)?;

        let ink = Ink::Text.colour();
        let text = TextStyle::from(("sans-serif", 12).into_font()).color(&ink);
        let mut mesh = context.configure_mesh();
        mesh.disable_x_mesh().light_line_style(Ink::Grid.colour()).bold_line_style(Ink::Grid.colour());
        mesh.axis_style(Ink::Axis.colour()).label_style(text.clone());
        if frame.titles {
            mesh.axis_desc_style(text.pos(Pos::new(HPos::Center, VPos::Top)));
            mesh.x_desc(chart.x_title).y_desc(chart.y_title);
        }
        mesh.draw()?;

        let inside = |value: f64| if value.is_nan() { low } else { value.clamp(low, high) };
        for (index, band) in chart.bands.iter().enumerate() {
            let series = Series { colour: band.colour, entry: chart.keys.len() + index };
            let corners = [(left, inside(band.low)), (right, inside(band.high))];
            context.draw_series([Rectangle::new(corners, Ink::Band(series).colour())])?;
        }
        if let Some(value) = chart.reference.map(inside) {
            let across = vec![(left, value), (right, value)];
            context.draw_series([PathElement::new(across, Ink::Reference.colour())])?;
        }
        let mut placed = Vec::new();
        for (entry, (key, line)) in chart.keys.iter().zip(&self.panel.lines).enumerate() {
            let series = Series { colour: key.colour, entry };
            let aside = self.aside(key);
            let points: Vec<(usize, Stat)> =
                line.iter().enumerate().filter_map(|(index, stat)| Some((index, (*stat)?))).collect();
            let whiskers = points.iter().filter(|(_, stat)| stat.max > stat.min).map(|(index, stat)| {
                let x = at(*index) + aside;
                let ends = vec![(x, inside(stat.max)), (x, inside(stat.min))];
                PathElement::new(ends, Ink::Whisker(series).colour())
            });
            context.draw_series(whiskers)?;
            let path: Vec<Point> = points
                .iter()
                .filter(|(index, _)| *index < places.scaled)
                .map(|(index, stat)| (at(*index), inside(stat.median)))
                .collect();
            let ink = match key.style {
                Style::Solid => Some(Ink::Line(series)),
                Style::Dashed => Some(Ink::Dashed(series)),
                Style::Points => None,
            };
            if let Some(ink) = ink.filter(|_| path.len() > 1) {
                context.draw_series([PathElement::new(path, ink.colour())])?;
            }
            for (index, stat) in points {
                let place = context.backend_coord(&(at(index) + aside, inside(stat.median)));
                placed.push(Placed { key, entry, index, stat, place });
            }
        }
        Ok(placed)
    }

    /// Horizontal shift of a series: if the axis has names, series are beside each other, so that equal values are all
    /// visible.
    fn aside(&self, key: &Key) -> f64 {
        if self.places.scaled > 0 {
            return 0.0;
        }
        let mut colours: Vec<usize> = self.chart.keys.iter().map(|key| key.colour).collect();
        colours.sort_unstable();
        colours.dedup();
        let place = colours.iter().position(|colour| *colour == key.colour).unwrap_or(0);
        (place as f64 - (colours.len() as f64 - 1.0) / 2.0) * ASIDE
    }
}

/// `1,234 (1,200-1,300)`, or only the median if there is no spread.
fn value(stat: &Stat) -> String {
    let Stat { median, min, max } = *stat;
    if min < max { format!("{} ({}-{})", digits(median), digits(min), digits(max)) } else { digits(median) }
}

/// At least three digits.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 1e15 => format!("{value:.2e}"),
        size if size >= 100.0 => grouped(value),
        size if size >= 10.0 => trimmed(&format!("{value:.1}")),
        size if size >= 0.001 || size == 0.0 => trimmed(&format!("{value:.3}")),
        _ => format!("{value:.1e}"),
    }
}

fn trimmed(text: &str) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_their_spread() {
        let stat = |median, min, max| value(&Stat { median, min, max });
        assert_eq!(stat(1234.4, 1200.0, 1300.0), "1,234 (1,200-1,300)");
        assert_eq!(stat(0.5, 0.5, 0.5), "0.5");
        assert_eq!(stat(1.0, 0.123_456, 12.34), "1 (0.123-12.3)");
        assert_eq!([0.0, 0.000_12, 1e300, 10.0].map(digits), ["0", "1.2e-4", "1.00e300", "10"]);
    }
}
