//! Plots as SVG text: horizontal stacked bars here, lines over a dimension in `chart`. By hand: the crate plotters puts its legend into the plot, and
//! writes files of a fixed size that name a web address, and a report is a page that scales and loads nothing.

mod chart;

use std::fmt::Write;

pub(crate) use chart::{Band, Chart, Key, Panel, Scale, Style};

/// Colours of parts and series, apart from each other also for the colour-blind (Okabe and Ito).
pub(crate) const COLOURS: [&str; 7] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#999999"];
const WIDTH: f64 = 960.0;
const LABELS: f64 = 260.0;

/// A bar: its label, and the parts that it is stacked from.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) parts: Vec<f64>,
}

/// A plot as an SVG file, on a white background with a margin.
pub(crate) fn standalone(svg: &str) -> String {
    const MARGIN: f64 = 12.0;
    // What `open` wrote.
    let (head, body) = svg.split_once("</title>").unwrap_or((svg, ""));
    let view = head.split('"').nth(1).unwrap_or_default();
    let height = view.rsplit(' ').next().and_then(|height| height.parse().ok()).unwrap_or(WIDTH);
    let (width, height) = (WIDTH + 2.0 * MARGIN, height + 2.0 * MARGIN);
    let head = head.replacen(view, &format!("-{MARGIN} -{MARGIN} {width} {height}"), 1).replacen(
        "<svg ",
        r#"<svg xmlns="http://www.w3.org/2000/svg" "#,
        1,
    );
    let ground =
        format!(r##"<rect x="-{MARGIN}" y="-{MARGIN}" width="{width}" height="{height}" fill="#fff"/>"##);
    format!("{head}</title>{ground}{body}\n")
}

/// Escape text for markup.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// The end of an axis from 0 that holds `most`, and its step: 1, 2 or 5 times a power of ten.
fn axis(most: f64) -> (f64, f64) {
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
        v if v >= 1e6 => format!("{}M", round(v / 1e6)),
        v if v >= 1e3 => format!("{}k", round(v / 1e3)),
        v => round(v),
    }
}

fn round(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Horizontal stacked bars, a legend of the parts above them.
pub(crate) fn bars(title: &str, parts: &[&str], bars: &[Bar]) -> String {
    let sum = |bar: &Bar| bar.parts.iter().sum::<f64>();
    let (end, step) = axis(bars.iter().map(sum).fold(0.0, f64::max));
    let scale = (WIDTH - LABELS - 80.0) / end;
    let bottom = 56.0 + bars.len() as f64 * 24.0;
    let mut svg = open(title, bottom + 30.0);
    if parts.len() > 1 {
        legend(&mut svg, parts.iter().copied());
    }
    let mut value = 0.0;
    while value <= end * 1.001 {
        let x = LABELS + value * scale;
        let _ = write!(
            svg,
            r##"<line x1="{x:.1}" y1="50" x2="{x:.1}" y2="{bottom:.1}" stroke="#ddd"/><text x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"##,
            bottom + 16.0,
            tick_label(value)
        );
        value += step;
    }
    for (index, bar) in bars.iter().enumerate() {
        let y = 54.0 + index as f64 * 24.0;
        let text = y + 13.0;
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{text:.1}" text-anchor="end">{}</text>"#,
            LABELS - 8.0,
            escape(&bar.label)
        );
        let mut x = LABELS;
        for (part, value) in bar.parts.iter().enumerate() {
            let width = (value * scale).max(0.0);
            let _ = write!(
                svg,
                r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="18" fill="{}"/>"#,
                colour(part)
            );
            x += width;
        }
        let _ = write!(svg, r#"<text x="{:.1}" y="{text:.1}">{}</text>"#, x + 6.0, tick_label(sum(bar)));
    }
    svg + "</svg>"
}

fn open(title: &str, height: f64) -> String {
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" font-size="12" font-family="sans-serif"><title>{0}</title><text x="0" y="16" font-size="15" font-weight="bold">{0}</text>"#,
        escape(title)
    )
}

fn legend<'a>(svg: &mut String, labels: impl Iterator<Item = &'a str>) {
    for (index, label) in labels.enumerate() {
        let (x, y) = ((index % 4) as f64 * 235.0, 26.0 + (index / 4) as f64 * 18.0);
        let _ = write!(
            svg,
            r#"<rect x="{x:.1}" y="{y:.1}" width="12" height="12" fill="{}"/><text x="{:.1}" y="{:.1}">{}</text>"#,
            colour(index),
            x + 17.0,
            y + 11.0,
            escape(label)
        );
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Every element that is opened is closed in its turn, attributes are quoted, and no bare `&` or `<` is left.
    pub(crate) fn well_formed(svg: &str) {
        let mut opened = Vec::new();
        let mut rest = svg.trim_end();
        while let Some(start) = rest.find('<') {
            assert!(!rest[..start].contains('>'), "{}", &rest[..start]);
            for entity in rest[..start].split('&').skip(1) {
                assert!(
                    ["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)),
                    "{entity}"
                );
            }
            let end = start + rest[start..].find('>').expect("a tag ends");
            let tag = &rest[start + 1..end];
            assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "{tag}");
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default().to_owned();
            if tag.starts_with('/') {
                assert_eq!(opened.pop(), Some(name), "{tag}");
            } else if !tag.ends_with('/') {
                opened.push(name);
            }
            rest = &rest[end + 1..];
        }
        assert!(rest.is_empty() && opened.is_empty(), "{rest} {opened:?}");
    }

    #[test]
    #[should_panic(expected = "circle")]
    fn an_element_left_open_is_not_well_formed() {
        well_formed("<svg><circle></svg>");
    }

    #[test]
    fn axes_hold_their_values_in_round_steps() {
        assert_eq!(axis(9.0), (10.0, 2.0));
        assert_eq!(axis(100.0), (100.0, 20.0));
        assert_eq!(axis(2_300_000.0), (2_500_000.0, 500_000.0));
        assert_eq!(axis(0.0), (1.0, 1.0));
        assert_eq!(axis(f64::NAN), (1.0, 1.0));
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let list = [
            Bar { label: "a<b".into(), parts: vec![50.0, 50.0] },
            Bar { label: "c".into(), parts: vec![25.0, 0.0] },
        ];
        let svg = bars("t", &["x", "y"], &list);
        // 100 is the whole width of 620, 25 a quarter of it.
        assert_eq!(svg.matches(r#"width="310.0""#).count(), 2);
        assert_eq!(svg.matches(r#"width="155.0""#).count(), 1);
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
    }
}
