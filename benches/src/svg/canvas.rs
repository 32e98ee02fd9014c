//! A backend for plotters that writes SVG elements with classes, which the style sheet defines.

use std::convert::Infallible;
use std::fmt::Write;

use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    FontTransform,
};

use super::escape;
use super::palette::COLOURS;

/// The kind of an element. Plotters passes colours unchanged to its backend, so kind and series are encoded as a
/// colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    Text,
    Grid,
    Axis,
    Reference,
    Line(Series),
    Dashed(Series),
    Whisker(Series),
    Band(Series),
}

/// The colour of a series, and its place in the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Series {
    pub(super) colour: usize,
    pub(super) entry: usize,
}

/// Line height of labels, in em.
const LINE: f64 = 1.1;

const KINDS: [&str; 8] = ["text", "grid", "axis", "reference", "line", "dashed", "whisker", "band"];

impl Ink {
    pub(super) const fn colour(self) -> RGBColor {
        let (kind, Series { colour, entry }) = match self {
            Self::Text => (0, Series::NONE),
            Self::Grid => (1, Series::NONE),
            Self::Axis => (2, Series::NONE),
            Self::Reference => (3, Series::NONE),
            Self::Line(series) => (4, series),
            Self::Dashed(series) => (5, series),
            Self::Whisker(series) => (6, series),
            Self::Band(series) => (7, series),
        };
        RGBColor(kind, (colour % COLOURS) as u8, (entry % 256) as u8)
    }

    /// The classes of an element of this colour, and its place in the legend.
    fn attributes(BackendColor { rgb: (kind, colour, entry), .. }: BackendColor) -> String {
        let name = KINDS.get(usize::from(kind)).copied().unwrap_or("text");
        if kind >= 4 {
            format!(r#"class="{name} s{colour}" data-k="{entry}""#)
        } else {
            format!(r#"class="{name}""#)
        }
    }
}

impl Series {
    const NONE: Self = Self { colour: 0, entry: 0 };
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

/// Collects the elements of one chart.
pub(super) struct Canvas<'a> {
    pub(super) svg: &'a mut String,
    pub(super) size: (u32, u32),
    /// Labels below the plot are wrapped after about this many characters.
    pub(super) wrap: usize,
}

impl Canvas<'_> {
    fn path(&mut self, points: impl IntoIterator<Item = BackendCoord>, close: &str, colour: BackendColor) {
        let mut data = String::new();
        for (index, (x, y)) in points.into_iter().enumerate() {
            let _ = write!(data, "{}{x} {y}", if index == 0 { 'M' } else { 'L' });
        }
        let _ = write!(self.svg, r#"<path {} d="{data}{close}"/>"#, Ink::attributes(colour));
    }
}

impl DrawingBackend for Canvas<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, colour: BackendColor) -> Drawn {
        self.path([(x, y), (x + 1, y)], "", colour);
        Ok(())
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.path([from, to], "", style.color());
        Ok(())
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        (left, top): BackendCoord,
        (right, bottom): BackendCoord,
        style: &S,
        _fill: bool,
    ) -> Drawn {
        let corners = [(left, top), (right, top), (right, bottom), (left, bottom)];
        self.path(corners, "Z", style.color());
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        self.path(path, "", style.color());
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, (x, y): BackendCoord) -> Drawn {
        let anchor = style.anchor();
        // Labels of the horizontal axis.
        let below = matches!(anchor.v_pos, VPos::Top);
        let level = matches!(style.transform(), FontTransform::None);
        let align = match anchor.h_pos {
            HPos::Left => "start",
            HPos::Center => "middle",
            HPos::Right => "end",
        };
        let place = match style.transform() {
            FontTransform::None => format!(r#"x="{x}" y="{y}""#),
            FontTransform::Rotate90 => format!(r#"transform="translate({x} {y}) rotate(90)""#),
            FontTransform::Rotate180 => format!(r#"transform="translate({x} {y}) rotate(180)""#),
            FontTransform::Rotate270 => format!(r#"transform="translate({x} {y}) rotate(-90)""#),
        };
        // Distance from the anchor to the base line of the first line.
        let shift = match anchor.v_pos {
            VPos::Top => "0.8em",
            VPos::Center => "0.35em",
            VPos::Bottom => "-0.25em",
        };
        let _ = write!(self.svg, r#"<text {place} dy="{shift}" text-anchor="{align}">"#);
        match wrapped(text, self.wrap) {
            lines if below && level && lines.len() > 1 => {
                // The shift of an empty element has no effect, so empty lines are added to the next shift.
                let mut down = 0.8;
                for line in lines {
                    if !line.is_empty() {
                        let text = escape(&line);
                        let _ = write!(self.svg, r#"<tspan x="{x}" dy="{down:.1}em">{text}</tspan>"#);
                        down = 0.0;
                    }
                    down += LINE;
                }
            }
            _ => *self.svg += &escape(text),
        }
        *self.svg += "</text>";
        Ok(())
    }
}

/// Split into lines of about this many characters, at spaces, after hyphens, and at line ends.
pub(super) fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.split('\n') {
        let mut current = String::new();
        for word in line.split_inclusive([' ', '-']) {
            if !current.is_empty() && (current.chars().count() + word.trim_end().chars().count()) > most {
                lines.push(std::mem::take(&mut current).trim_end().to_owned());
            }
            current += word;
        }
        lines.push(current.trim_end().to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ink_comes_back_as_attributes() {
        let attributes = |ink: Ink| {
            let RGBColor(r, g, b) = ink.colour();
            Ink::attributes(BackendColor { alpha: 1.0, rgb: (r, g, b) })
        };
        let series = |colour, entry| Series { colour, entry };
        assert_eq!(attributes(Ink::Line(series(2, 5))), r#"class="line s2" data-k="5""#);
        assert_eq!(attributes(Ink::Band(series(COLOURS + 1, 0))), r#"class="band s1" data-k="0""#);
        assert_eq!(attributes(Ink::Reference), r#"class="reference""#);
    }

    #[test]
    fn labels_are_broken_at_spaces() {
        assert_eq!(wrapped("vhd fixed cached", 10), ["vhd fixed", "cached"]);
        assert_eq!(wrapped("unbreakable", 3), ["unbreakable"]);
        assert_eq!(wrapped("virtio-blk", 8), ["virtio-", "blk"]);
        assert_eq!(wrapped("\nlower", 8), ["", "lower"]);
    }
}
