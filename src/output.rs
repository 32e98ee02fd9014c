//! Results to standard output or files. A file of another kind, which may be an image, is never replaced.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use paradisk_disk_formats::escaped;
use serde::{Serialize, Serializer};

use crate::failure::Failure;

/// Kinds of files that are written, by the way they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Json,
    /// HTML, SVG.
    Markup,
    /// CSV, tables.
    Text,
}

impl Kind {
    /// That of a file with these first bytes, of at least one.
    fn of(head: &[u8]) -> Option<Self> {
        let control = |byte: &u8| byte.is_ascii_control() && !b"\n\r\t".contains(byte);
        // A character may be cut off at the end.
        let text = std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true);
        // Encrypted disks may begin with any byte, and boot sectors with some of these.
        if !text || head.iter().any(control) {
            return None;
        }
        match head.first()? {
            b'{' | b'[' => Some(Self::Json),
            b'<' => Some(Self::Markup),
            _ => Some(Self::Text),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "a JSON document",
            Self::Markup => "a page",
            Self::Text => "a table",
        }
    }

    /// Check that the file does not exist, is empty, of this kind, or no regular file: a pipe, a terminal.
    fn may_replace(self, path: &Path) -> Result<(), String> {
        let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
        if metadata.file_type().is_block_device() {
            return Err("it is a block device".to_owned());
        }
        if !metadata.is_file() || metadata.len() == 0 {
            return Ok(());
        }
        let mut head = Vec::new();
        let read = File::open(path).and_then(|file| file.take(512).read_to_end(&mut head));
        if let Err(error) = read {
            return Err(format!("it exists, and cannot be read: {error}"));
        }
        match Self::of(&head) {
            Some(found) if found == self => Ok(()),
            _ => Err(format!("it exists, and is not {}: it is not replaced", self.as_str())),
        }
    }

    /// The parser of an option that names a file to write.
    fn target(self) -> impl TypedValueParser<Value = PathBuf> {
        PathBufValueParser::new().try_map(move |path| {
            if path == Path::new("-") {
                return Ok(path);
            }
            let hint = match self {
                Self::Json => " (`--json` alone, for standard output, comes last or before an option)",
                _ => "",
            };
            self.may_replace(&path).map(|()| path).map_err(|why| why + hint)
        })
    }
}

/// The parser of `--json`.
pub(crate) fn json_target() -> impl TypedValueParser<Value = PathBuf> {
    Kind::Json.target()
}

/// The parser of `--html`.
#[cfg(feature = "bench")]
pub(crate) fn html_target() -> impl TypedValueParser<Value = PathBuf> {
    Kind::Markup.target()
}

/// The parser of `--csv`.
#[cfg(feature = "bench")]
pub(crate) fn csv_target() -> impl TypedValueParser<Value = PathBuf> {
    Kind::Text.target()
}

/// Refuse to write JSON in place of a file of another kind.
pub(crate) fn refuse_other_than_json(path: &Path) -> Result<(), Failure> {
    Kind::Json.may_replace(path).map_err(|why| Failure::on(path, "cannot write", why))
}

/// The name of a file in a report. Text has it escaped; JSON, which is UTF-8, has U+FFFD for what is not.
#[derive(Clone, Debug)]
pub(crate) struct FileName(PathBuf);

impl<T: Into<PathBuf>> From<T> for FileName {
    fn from(path: T) -> Self {
        Self(path.into())
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(&self.0).fmt(f)
    }
}

impl Serialize for FileName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_string_lossy())
    }
}

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
        let file = if path == Path::new("-") {
            None
        } else {
            refuse_other_than_json(path)?;
            Some(File::create(path).map_err(|error| Failure::on(path, "cannot write", error))?)
        };
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
    // The option may have been parsed hours ago.
    let allowed = Kind::of(text.as_bytes()).map_or(Ok(()), |kind| kind.may_replace(path));
    allowed.map_err(|why| Failure::on(path, "cannot write", why))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_kind_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let kinds = [
            (Kind::Json, "{}\n"),
            (Kind::Json, "[]"),
            (Kind::Markup, "<!doctype html>"),
            (Kind::Text, "a,b\nü"),
        ];
        for (number, (kind, text)) in kinds.into_iter().enumerate() {
            fs::write(path("there"), text).unwrap();
            for other in [Kind::Json, Kind::Markup, Kind::Text] {
                let allowed = other.may_replace(&path("there"));
                assert_eq!(allowed.is_ok(), other == kind, "{number}: {other:?}: {allowed:?}");
            }
            // Images: raw with and without a boot sector, VHD, VHDX, encrypted.
            let encrypted: [&[u8]; 3] = [b"[\0\xff\x81", b"{\xa7 \x80", b"<\x01ab"];
            let others: [&[u8]; 4] = [&[0; 4096], b"\xeb\x3c\x90mkfs.fat", b"conectix\0\0", b"vhdxfile\0"];
            for image in encrypted.into_iter().chain(others) {
                fs::write(path("there"), image).unwrap();
                assert!(kind.may_replace(&path("there")).unwrap_err().contains("it is not replaced"));
                assert!(file(&path("there"), text).is_err());
                assert!(fs::read(path("there")).unwrap() == image);
            }
            fs::write(path("there"), "").unwrap();
            file(&path("there"), text).unwrap();
            file(&path("there"), text).unwrap();
        }
        Kind::Json.may_replace(&path("absent")).unwrap();
        Kind::Json.may_replace(Path::new("/dev/null")).unwrap();
    }
}
