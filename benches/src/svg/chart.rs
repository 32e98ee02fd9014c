//! Charts as figures of a page and as files: legend and panels.

use std::fmt::Write;

use super::axis::Axis;
use super::escape;
use super::marker::swatch;
use super::model::{Chart, Panel};
use super::palette::{COLOURS, DARK, LIGHT, MARKS, Palette};
use super::panel::Frame;

/// Panels of a figure: usual, as wide as the page, and small.
const USUAL: Frame = Frame { width: 480, height: 300, titles: true };
const WIDE: Frame = Frame { width: 980, height: 360, titles: true };
const SMALL: Frame = Frame { width: 360, height: 170, titles: false };
/// Maximum number of panels of a figure that is not folded.
const MOST_OPEN: usize = 4;
/// Heights in a file: its title, a line of the legend, a panel's title.
const TITLE: u32 = 28;
const LEGEND_LINE: u32 = 20;
const PANEL_TITLE: u32 = 24;
/// Characters are about this wide at 12 px.
const CHARACTER: f64 = 6.6;

impl Chart {
    /// A figure of a page: legend and panels, with a caption. A figure with many panels is folded.
    pub(crate) fn figure(&self) -> String {
        let caption = escape(&self.title);
        if self.panels.len() > MOST_OPEN {
            return format!(
                "<details><summary>{caption} ({} charts)</summary>\n<figure aria-label=\"{caption}\">{}{}</figure></details>\n",
                self.panels.len(),
                self.legend(),
                self.all(true)
            );
        }
        format!("<figure><figcaption>{caption}</figcaption>\n{}{}</figure>\n", self.legend(), self.all(true))
    }

    /// A small figure, without titles of axes.
    pub(crate) fn small(&self) -> String {
        format!("<div class=\"small\">{}{}</div>\n", self.all(false), self.legend())
    }

    fn all(&self, full: bool) -> String {
        let frame = match (full, self.panels.len()) {
            (false, _) => SMALL,
            (true, 1) => WIDE,
            (true, _) => USUAL,
        }
        .fitted(self);
        // On a narrow screen, a wide panel scrolls, because it would be illegible if it shrank.
        let wide = if full && self.panels.len() == 1 { " wide" } else { "" };
        let mut html = format!("<div class=\"panels{wide}\">");
        for (panel, axis) in self.panels.iter().zip(self.axes()) {
            let title = escape(&panel.title);
            let heading =
                if title.is_empty() { String::new() } else { format!("<p class=\"panel\">{title}</p>") };
            let _ = writeln!(
                html,
                "<div>{heading}<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}: {title}\">{}</svg></div>",
                frame.width,
                frame.height,
                escape(&self.title),
                frame.draw(self, panel, &axis)
            );
        }
        html + "</div>"
    }

    /// The vertical axis of each panel.
    fn axes(&self) -> Vec<Axis> {
        let own = |panel: &Panel| Axis::of(self, std::slice::from_ref(panel));
        let all = || Axis::of(self, &self.panels);
        self.panels.iter().map(|panel| if self.shared { all() } else { own(panel) }).collect()
    }

    /// The legend of a figure.
    fn legend(&self) -> String {
        let entries = self.entries();
        if entries.is_empty() {
            return String::new();
        }
        let mut html = "<ul class=\"legend\">".to_owned();
        for Entry { colour, label, drawing } in entries {
            let _ = write!(
                html,
                "<li class=\"s{colour}\"><svg class=\"chart\" viewBox=\"0 0 28 12\" aria-hidden=\"true\">{drawing}</svg>{}</li>",
                escape(label)
            );
        }
        html + "</ul>\n"
    }

    fn entries(&self) -> Vec<Entry<'_>> {
        let keys = self.keys.iter().map(|key| Entry {
            colour: key.colour % COLOURS,
            label: &key.label,
            drawing: swatch(key),
        });
        let bands = self.bands.iter().map(|band| Entry {
            colour: band.colour % COLOURS,
            label: &band.label,
            drawing: r#"<path class="band" d="M1 1H27V11H1Z"/>"#.to_owned(),
        });
        keys.chain(bands).collect()
    }

    /// A file with a style sheet of its own, light or dark as the viewer prefers.
    pub(crate) fn file(&self) -> String {
        const MARGIN: u32 = 12;
        let columns = self.panels.len().clamp(1, 2) as u32;
        let width = if columns == 1 { WIDE.width } else { columns * USUAL.width };
        let frame = if columns == 1 { WIDE } else { USUAL }.fitted(self);
        let (legend, legend_lines) = self.file_legend(f64::from(width));
        let top = TITLE + legend_lines * LEGEND_LINE;
        let pitch = PANEL_TITLE + frame.height;
        let rows = self.panels.len().div_ceil(columns as usize) as u32;
        let height = top + rows * pitch;
        let title = escape(&self.title);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"-{MARGIN} -{MARGIN} {} {}\" role=\"img\">\
             <title>{title}</title><style>svg{{{}}}@media (prefers-color-scheme: dark){{svg{{{}}}}}{}{MARKS}</style>\
             <path d=\"M-{MARGIN} -{MARGIN}H{}V{}H-{MARGIN}Z\" fill=\"var(--ground)\"/>\
             <text y=\"14\" style=\"font-weight:bold;font-size:15px\">{title}</text>{legend}",
            width + 2 * MARGIN,
            height + 2 * MARGIN,
            LIGHT.variables(),
            DARK.variables(),
            Palette::classes(),
            width + MARGIN,
            height + MARGIN
        );
        for (index, (panel, axis)) in self.panels.iter().zip(self.axes()).enumerate() {
            let (column, row) = (index as u32 % columns, index as u32 / columns);
            let _ = write!(
                svg,
                "<g transform=\"translate({} {})\"><text x=\"60\" y=\"-8\" style=\"font-weight:bold\">{}</text>{}</g>",
                column * frame.width,
                top + row * pitch + PANEL_TITLE,
                escape(&panel.title),
                frame.draw(self, panel, &axis)
            );
        }
        svg + "</svg>\n"
    }

    /// The legend of a file, wrapped into lines, and the number of lines.
    fn file_legend(&self, width: f64) -> (String, u32) {
        let (mut svg, mut x, mut line) = (String::new(), 0.0, 0);
        for Entry { colour, label, drawing } in self.entries() {
            let wide = 34.0 + label.chars().count() as f64 * CHARACTER + 20.0;
            if x > 0.0 && x + wide > width {
                (x, line) = (0.0, line + 1);
            }
            let _ = write!(
                svg,
                "<g class=\"s{colour}\" transform=\"translate({x:.0} {})\">{drawing}<text x=\"34\" y=\"10\">{}</text></g>",
                TITLE + line * LEGEND_LINE,
                escape(label)
            );
            x += wide;
        }
        (svg, line + 1)
    }
}

/// An entry of a legend.
struct Entry<'a> {
    colour: usize,
    label: &'a str,
    /// 28 x 12.
    drawing: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::Stat;
    use crate::svg::model::{Band, Key, Scale, Style};
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
                key("old <i>", 2, Style::Points),
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
            for html in [chart(scale).figure(), chart(scale).small(), chart(scale).file()] {
                well_formed(&html);
                // Once in the legend and once in a panel: a line from 1 to 4 KiB is one line.
                assert_eq!(html.matches(r#"class="line"#).count(), 1 + 1);
                assert_eq!(html.matches(r#"class="dashed"#).count(), 1 + 1);
                // Six values, each with its text; three entries of the legend.
                assert_eq!(html.matches(r#"class="point"#).count(), 2 + 3 + 1);
                assert_eq!(html.matches(r#"class="solid"#).count(), 2 + 1 + 2);
                assert_eq!(html.matches(r#"class="hollow"#).count(), 3 + 1);
                assert!(html.contains("<title>4K, one: 3 (2.7-3.3)</title>"), "{html}");
                // A swatch, and the band in both panels.
                assert_eq!(html.matches(r#"class="band"#).count(), 1 + 2);
                assert_eq!(html.matches(r#"class="reference"#).count(), 2);
                assert_eq!(html.matches("not measured").count(), 1);
                assert!(html.contains("a &lt; b &amp; c") && html.contains("old &lt;i&gt;"));
                assert!(!html.contains("NaN") && !html.contains("<i>"));
            }
            let figure = chart(scale).figure();
            assert_eq!(figure.matches("block size (bytes)").count(), 2);
            assert!(!figure.contains("http:"));
            assert_eq!(chart(scale).small().matches("block size (bytes)").count(), 0);
            let file = chart(scale).file();
            assert!(file.starts_with(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"-12 -12 984 "
            ));
        }
    }

    #[test]
    fn figures_of_many_panels_are_folded() {
        let mut chart = chart(Scale::Auto);
        assert!(!chart.figure().contains("<details>"));
        chart.panels = vec![chart.panels[0].clone(); 5];
        let html = chart.figure();
        well_formed(&html);
        assert!(html.starts_with("<details><summary>a &lt; b &amp; c (5 charts)</summary>"), "{html}");
    }

    #[test]
    fn a_long_legend_of_a_file_wraps_and_pushes_the_panels_down() {
        let mut chart = chart(Scale::Auto);
        let (_, one_line) = chart.file_legend(960.0);
        for _ in 0..6 {
            chart.keys.push(Key { label: "x".repeat(40), colour: 0, style: Style::Solid });
        }
        let (svg, lines) = chart.file_legend(960.0);
        assert!(lines >= one_line + 2, "{lines}");
        for entry in svg.split("<g class=").skip(1) {
            let place = entry.split("translate(").nth(1).unwrap();
            let x: f64 = place.split(' ').next().unwrap().parse().unwrap();
            let label = entry.split("y=\"10\">").nth(1).unwrap().split('<').next().unwrap();
            assert!(x + label.len() as f64 * CHARACTER < 960.0, "{entry}");
        }
    }

    #[test]
    fn values_of_any_size_are_drawn_inside_the_panel() {
        for values in [[f64::MIN_POSITIVE, f64::MAX, 1.0], [-1.0, 0.0, 5.0], [1e300, 1e300, 1e300]] {
            let line = values.map(|value| Some(stat(value))).to_vec();
            let mut chart = chart(Scale::Auto);
            chart.panels[0].lines = vec![line];
            let html = chart.figure();
            well_formed(&html);
            for place in html.split("class=\"point").skip(1) {
                let place = place.split("translate(").nth(1).unwrap().split(')').next().unwrap();
                let (x, y) = place.split_once(' ').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((0.0..=480.0).contains(&x) && (0.0..=300.0).contains(&y), "{place}");
            }
        }
    }
}
