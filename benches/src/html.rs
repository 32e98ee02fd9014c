//! Results as one self-contained HTML page: the claims first, then a section for each document.
//!
//! - The page works offline. Styles and the script are in it, and its content security policy forbids everything else.
//! - All charts and tables are readable without the script. The script adds values under the pointer (or the arrow keys), sorting, filters
//!   and the choice of the theme.
//! - The page has at most `MOST` bytes. Claims, charts and the suites' tables have priority; the rest is left out with a note if it does
//!   not fit.
//! - Equal results make equal pages. Texts of results are escaped.
//!
//! ```text
//! Document -> suite report (claims, charts, tables)  --+-> overview: a card for each claim or comparison
//!          -> lines (documents of no suite)          --+-> section: machine, limits, charts, tables, all rows
//! ```

mod limits;
mod lines;
mod overview;
mod section;
mod space;
mod tables;

use self::section::Section;
use self::space::{Budget, clipped};
use crate::result::Document;
use crate::svg::{DARK, LIGHT, MARKS, Palette, escape};

/// Maximum number of bytes of a page.
pub const MOST: usize = 2_000_000;

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");
/// The script's SHA-256, for the content security policy: no other script runs.
const SCRIPT_HASH: &str = include_str!("html/page.js.sha256");

/// A page of these documents and their names (file names), of at most [`MOST`] bytes.
#[must_use]
pub fn render(documents: &[(String, Document)]) -> String {
    page(documents, None, MOST)
}

/// As [`render`], with at most `most` bytes. The documents' headings, machines and limits are always on the page.
#[must_use]
pub fn render_within(documents: &[(String, Document)], most: usize) -> String {
    page(documents, None, most)
}

/// The page of a running measurement: the browser requests new rows every few seconds.
#[must_use]
pub fn render_live(name: &str, document: Document, progress: &str) -> String {
    page(&[(name.to_owned(), document)], Some(progress), MOST)
}

fn page(documents: &[(String, Document)], live: Option<&str>, most: usize) -> String {
    let sections: Vec<Section<'_>> =
        (1..).zip(documents).map(|(number, (name, document))| Section::of(number, name, document)).collect();
    // The script replaces changed parts. Without it, the browser reloads the page.
    let (refresh, connect) = match live {
        Some(_) => {
            ("<noscript><meta http-equiv=\"refresh\" content=\"3\"></noscript>\n", "; connect-src 'self'")
        }
        None => ("", ""),
    };
    let progress =
        live.map(|text| format!("<p class=\"live\" role=\"status\">{}</p>\n", escape(&clipped(text))));
    let head = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'{connect}; base-uri 'none'; form-action 'none'\">\n\
         {refresh}<title>paradisk: what an I/O costs</title>\n<style>\n{}</style></head>\n<body>\n\
         <a class=\"skip\" href=\"#overview\">Skip to the overview</a>\n\
         <header><h1>What an I/O costs</h1>\n<p>Results of <code>paradisk bench</code>.</p></header>\n{}",
        SCRIPT_HASH.trim(),
        styles(),
        progress.unwrap_or_default()
    );
    let tail = format!("</main>\n<script>{SCRIPT}</script>\n</body></html>\n");
    let frames = head.len() + tail.len() + section::frames(&sections);
    let mut budget = Budget { free: most.saturating_sub(frames), most };
    let overview = overview::render(&sections, &mut budget);
    // The most important parts get space first.
    let essential: Vec<String> = sections.iter().map(|section| section.essential(&mut budget)).collect();
    let full: Vec<String> = sections.iter().map(|section| section.full(&mut budget)).collect();
    let mut page = head + &section::contents(&sections) + "<main>\n" + &overview;
    for ((section, essential), full) in sections.iter().zip(&essential).zip(&full) {
        page += &(section.opening() + essential + full + "</section>\n");
    }
    page + &tail
}

fn styles() -> String {
    format!(
        ":root{{{}}}\n@media (prefers-color-scheme: dark){{:root:not([data-theme=light]){{{}}}}}\n:root[data-theme=dark]{{{}}}\n{}\n{MARKS}\n{STYLE}",
        LIGHT.variables() + "color-scheme:light;",
        dark(),
        dark(),
        Palette::classes()
    )
}

fn dark() -> String {
    DARK.variables() + "color-scheme:dark;"
}

#[cfg(test)]
mod tests;
