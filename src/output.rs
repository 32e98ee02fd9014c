//! Results to standard output or files.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::Failure;

/// Whether JSON takes standard output, so that nothing else may be printed there.
pub(crate) fn json_on_stdout(target: &Option<PathBuf>) -> bool {
    target.as_deref() == Some(Path::new("-"))
}

/// Write one JSON document to `target`, if there is one.
pub(crate) fn json(target: &Option<PathBuf>, document: &impl Serialize) -> Result<(), Failure> {
    let Some(path) = target else { return Ok(()) };
    let text = text(document)?;
    if json_on_stdout(target) { print(&text) } else { file(path, &text) }
}

/// As [`json`], and print the text, unless JSON takes standard output.
pub(crate) fn json_or_text(
    target: &Option<PathBuf>,
    document: &impl Serialize,
    text: &str,
) -> Result<(), Failure> {
    json(target, document)?;
    if json_on_stdout(target) { Ok(()) } else { print(text) }
}

/// A JSON document that is written later: its file is open from the start, because a sandbox makes no new one.
pub(crate) struct Document {
    path: PathBuf,
    /// `None`: standard output.
    file: Option<fs::File>,
}

impl Document {
    /// Make the file, empty.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let file = (path != Path::new("-")).then(|| fs::File::create(path)).transpose();
        let file = file.map_err(|error| Failure::on(path, "cannot write", error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Write it.
    pub(crate) fn write(self, document: &impl Serialize) -> Result<(), Failure> {
        let text = text(document)?;
        let Some(mut file) = self.file else { return print(&text) };
        file.write_all(text.as_bytes()).map_err(|error| Failure::on(&self.path, "cannot write", error))
    }
}

/// A document and the end of its line. Strings have control characters as escapes only, also those that JSON allows.
pub(crate) fn text(document: &impl Serialize) -> Result<String, Failure> {
    let failed = |error| Failure::Failed(format!("cannot write results as JSON: {error}"));
    let mut text = serde_json::to_string_pretty(document).map_err(failed)?;
    text.push('\n');
    let acts = |character: char| character.is_control() && character != '\n';
    if !text.contains(acts) {
        return Ok(text);
    }
    let escape = |character: char| match acts(character) {
        true => format!("\\u{:04x}", u32::from(character)),
        false => character.to_string(),
    };
    Ok(text.chars().map(escape).collect())
}

/// Print the text; where JSON takes standard output, print only the notes, to standard error.
#[cfg(feature = "bench")]
pub(crate) fn conclude(
    json: &Option<PathBuf>,
    text: &str,
    notes: &[String],
    failed: bool,
) -> Result<(), Failure> {
    if json_on_stdout(json) {
        for note in notes {
            tell!("{note}");
        }
    } else {
        print(text)?;
    }
    if failed { Err(Failure::Reported) } else { Ok(()) }
}

/// Write a file.
pub(crate) fn file(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| Failure::on(path, "cannot write", error))
}

/// Print to standard output. A closed pipe is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
