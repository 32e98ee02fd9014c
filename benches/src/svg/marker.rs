//! Markers of points: a shape for each colour, so that series are distinguishable without colour.

use super::model::{Key, Style};
use super::palette::COLOURS;

/// The outline of a marker around (0, 0), by index of the colour.
const SHAPES: [&str; COLOURS] = [
    // Disc, square, triangle, diamond, triangle down, cross, pentagon.
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
    "M-3.2 -3.2H3.2V3.2H-3.2Z",
    "M0 -4.2L4 3.2H-4Z",
    "M0 -4.6L4.6 0L0 4.6L-4.6 0Z",
    "M0 4.2L4 -3.2H-4Z",
    "M-1.4 -4.2H1.4V-1.4H4.2V1.4H1.4V4.2H-1.4V1.4H-4.2V-1.4H-1.4Z",
    "M0 -4.4L4.2 -1.4L2.6 3.6H-2.6L-4.2 -1.4Z",
];

/// A marker at a position. Dashed lines have hollow markers; points without a line have larger ones.
pub(super) fn marker(x: f64, y: f64, key: &Key) -> String {
    let shape = SHAPES[key.colour % COLOURS];
    let class = if key.style == Style::Dashed { "hollow" } else { "solid" };
    let larger = if key.style == Style::Points { " scale(1.4)" } else { "" };
    format!(r#"<path class="{class}" transform="translate({x} {y}){larger}" d="{shape}"/>"#)
}

/// A short line with its marker, for a legend, centred on (14, 6).
pub(super) fn swatch(key: &Key) -> String {
    let line = match key.style {
        Style::Solid => r#"<path class="line" d="M1 6H27"/>"#,
        Style::Dashed => r#"<path class="dashed" d="M1 6H27"/>"#,
        Style::Points => "",
    };
    format!("{line}{}", marker(14.0, 6.0, key))
}
