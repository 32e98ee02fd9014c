//! Charts as SVG: on the page ([`Chart::figure`]) and as files ([`Chart::file`]).
//!
//! The crate plotters lays out axes, grids and lines. It draws on our backend `canvas`, for three reasons: plotters' SVG backend writes
//! colours, but a page with a light and a dark theme needs classes; it writes a web address; and its text cannot be wrapped. Chart
//! libraries in JavaScript are not used: their charts are empty without scripts, and most draw pixels, which themes and screen readers
//! cannot access. Legends are HTML on the page, so that they wrap on a narrow screen, and SVG in files.
//!
//! ```text
//! Chart -> axis (positions, ticks) -> panel (plotters -> canvas: axes, lines; markers with their values) -> figure | file
//! ```

mod axis;
mod canvas;
mod chart;
mod marker;
mod model;
mod palette;
mod panel;
mod ruler;

pub(crate) use model::{Band, Chart, Key, Panel, Scale, Style};
pub(crate) use palette::{COLOURS, DARK, LIGHT, MARKS, Palette};

/// Escape text for markup, inside an element or a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Check that elements are closed in order, attributes are quoted, and there is no bare `&` or `<`.
    pub(crate) fn well_formed(svg: &str) {
        let mut opened = Vec::new();
        let mut rest = svg.trim_end();
        while let Some(start) = rest.find('<') {
            assert!(!rest[..start].contains('>'), "{}", &rest[..start]);
            for entity in rest[..start].split('&').skip(1) {
                assert!(
                    ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|known| entity.starts_with(known)),
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
    fn markup_is_escaped() {
        assert_eq!(escape("<a href=\"'&\">"), "&lt;a href=&quot;&#39;&amp;&quot;&gt;");
    }
}
