//! Colours of series on light and dark backgrounds.
//!
//! They are those of Okabe and Ito, which colour-blind readers can distinguish, made darker or lighter until each has a contrast of 3 to
//! its background (WCAG 2.2, 1.4.11). Markers and dashes distinguish series without colour.

/// Number of colours of a palette.
pub(crate) const COLOURS: usize = 7;
/// A theme: colours of background, text and series.
pub(crate) struct Palette {
    pub(crate) ground: &'static str,
    pub(crate) text: &'static str,
    pub(crate) grid: &'static str,
    pub(crate) series: [&'static str; COLOURS],
    /// Colours for claims that hold, do not hold, and are not decided; also for text.
    pub(crate) standings: [&'static str; 3],
}

/// The light theme.
pub(crate) const LIGHT: Palette = Palette {
    ground: "#ffffff",
    text: "#1b1f24",
    grid: "#dde1e6",
    series: ["#0072b2", "#b26a00", "#00805c", "#c84a00", "#2b86bd", "#b0588c", "#6b7075"],
    standings: ["#00694b", "#a83c00", "#5b4b8a"],
};

/// The dark theme.
pub(crate) const DARK: Palette = Palette {
    ground: "#14181d",
    text: "#e8ebee",
    grid: "#343b44",
    series: ["#4fa9e6", "#f0b33c", "#2fc79b", "#ff8c55", "#94d2ff", "#e89cc8", "#b4b9bf"],
    standings: ["#4fd6ae", "#ff9a6b", "#b9a8ee"],
};

/// Style of a chart's elements; [`Palette::variables`] defines the variables.
pub(crate) const MARKS: &str = "\
.chart text{fill:var(--text);font:12px system-ui,sans-serif}\
.chart .grid{stroke:var(--grid);fill:none}\
.chart .axis{stroke:var(--text);stroke-opacity:.55;fill:none}\
.chart .reference{stroke:var(--text);stroke-dasharray:2 3;fill:none}\
.chart .line{stroke:var(--c);stroke-width:2;fill:none}\
.chart .dashed{stroke:var(--c);stroke-width:2;stroke-dasharray:6 4;fill:none}\
.chart .whisker{stroke:var(--c);stroke-opacity:.6;fill:none}\
.chart .band{fill:var(--c);fill-opacity:.2;stroke:none}\
.chart .solid{fill:var(--c);stroke:var(--c)}\
.chart .hollow{fill:var(--ground);stroke:var(--c);stroke-width:1.5}\
.chart .none{font-style:italic}";

impl Palette {
    /// The custom properties of a style sheet.
    pub(crate) fn variables(&self) -> String {
        let Self { ground, text, grid, series, standings: [holds, fails, open] } = self;
        let mut css = format!(
            "--ground:{ground};--text:{text};--grid:{grid};--holds:{holds};--fails:{fails};--open:{open};"
        );
        for (index, colour) in series.iter().enumerate() {
            css += &format!("--s{index}:{colour};");
        }
        css
    }

    /// A class for each colour.
    pub(crate) fn classes() -> String {
        (0..COLOURS).map(|index| format!(".s{index}{{--c:var(--s{index})}}")).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Relative luminance (WCAG 2.2).
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
        let linear = |part: f64| {
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(part(1)) + 0.7152 * linear(part(3)) + 0.0722 * linear(part(5))
    }

    /// Contrast ratio of two colours (WCAG 2.2).
    pub(crate) fn contrast(one: &str, other: &str) -> f64 {
        let (a, b) = (luminance(one), luminance(other));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn series_and_text_stand_out_from_their_ground() {
        assert!((contrast("#ffffff", "#000000") - 21.0).abs() < 1e-9);
        for Palette { ground, text, series, standings, .. } in [LIGHT, DARK] {
            assert!(contrast(ground, text) >= 7.0, "{text}");
            // Links have the colour of the first series.
            for text in [standings[0], standings[1], standings[2], series[0]] {
                assert!(contrast(ground, text) >= 4.5, "{text}: {}", contrast(ground, text));
            }
            for colour in series {
                assert!(contrast(ground, colour) >= 3.0, "{colour}: {}", contrast(ground, colour));
            }
        }
    }
}
