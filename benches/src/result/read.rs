//! Reads documents from untrusted files.

use facts::SCHEMA;
use serde::Deserialize;
use serde_json::error::Category;

use super::{Document, RunResult, Timing};

/// Why a text is no document of results.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// The document has another version.
    #[error("schema is {0}, expected {SCHEMA}")]
    Schema(u64),
    /// It is another kind of document.
    #[error("not results of `bench --json`: {0}")]
    Other(String),
}

impl From<serde_json::Error> for ReadError {
    fn from(error: serde_json::Error) -> Self {
        // The text may quote the document.
        let mut text = error.to_string();
        clean(&mut text);
        match error.classify() {
            Category::Data => Self::Other(text),
            Category::Syntax | Category::Eof | Category::Io => Self::Json(text),
        }
    }
}

/// The field that every document has.
#[derive(Deserialize)]
struct Head {
    schema: u64,
}

impl Document {
    /// Read a document. Control characters in its texts are replaced, so that they can be printed.
    ///
    /// # Errors
    /// [`ReadError`] if the text is no document, or of another schema.
    pub fn read(text: &str) -> Result<Self, ReadError> {
        let Head { schema } = serde_json::from_str(text)?;
        if schema != u64::from(SCHEMA) {
            return Err(ReadError::Schema(schema));
        }
        let mut document: Self = serde_json::from_str(text)?;
        document.texts().for_each(clean);
        Ok(document)
    }

    fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        let host = [&mut self.host.cpu, &mut self.host.kernel];
        let results = self.results.iter_mut().flat_map(RunResult::texts);
        let ratios = self.ratios.iter_mut();
        let ratios = ratios.flat_map(|r| [&mut r.name, &mut r.baseline, &mut r.candidate, &mut r.metric]);
        let timings = self.timings.iter_mut().flat_map(Timing::texts);
        let own = self.suite.iter_mut().chain(&mut self.command).chain(&mut self.notes);
        own.chain(timings).chain(host).chain(results).chain(ratios)
    }
}

impl Timing {
    fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        [&mut self.operation, &mut self.format, &mut self.file_system]
            .into_iter()
            .chain(&mut self.subformat)
            .chain(&mut self.skipped)
            .chain(&mut self.failed)
    }
}

impl RunResult {
    fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        let disk = &mut self.disk;
        [&mut self.adapter, &mut self.engine, &mut self.rw, &mut disk.format]
            .into_iter()
            .chain(&mut self.workload)
            .chain(&mut self.coalescing)
            .chain(&mut disk.subformat)
            .chain(&mut disk.path)
            .chain(&mut disk.options)
    }
}

fn clean(text: &mut String) {
    if text.contains(char::is_control) {
        *text = text.replace(char::is_control, "\u{fffd}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::result::tests::sample;

    fn refusal(value: &Value) -> String {
        Document::read(&value.to_string()).unwrap_err().to_string()
    }

    #[test]
    fn a_document_is_read_as_it_was_written() {
        let text = serde_json::to_string_pretty(&sample()).unwrap();
        assert_eq!(Document::read(&text).unwrap(), sample());
    }

    #[test]
    fn other_documents_are_refused_with_the_reason() {
        let deep = "{\"schema\": 1, \"results\": ".to_owned() + &"[".repeat(100_000);
        for text in ["", "{", "not json", "{\"schema\": 1", &deep, "{\"schema\": 1}}"] {
            let error = Document::read(text).unwrap_err().to_string();
            assert!(error.starts_with("not JSON: "), "{error}");
        }
        for text in ["{}", "[]", "null", "7", "{\"schema\": \"1\"}", "{\"schema\": -1}", "{\"schema\": 1}"] {
            let error = Document::read(text).unwrap_err().to_string();
            assert!(error.starts_with("not results of `bench --json`: "), "{text}: {error}");
        }
        // A later schema may have other fields, so the error reports its number.
        assert_eq!(refusal(&serde_json::json!({"schema": 2, "rows": []})), "schema is 2, expected 1");
        let mut value = serde_json::to_value(sample()).unwrap();
        value["results"][0]["iops"]["median"] = "fast".into();
        assert!(
            refusal(&value).contains("invalid type: string \"fast\", expected f64"),
            "{}",
            refusal(&value)
        );
        // A number that is too large for f64 would be infinite.
        let text = serde_json::to_string(&sample()).unwrap().replacen("250000.0", "1e999", 1);
        assert!(Document::read(&text).unwrap_err().to_string().contains("number out of range"));
    }

    #[test]
    fn control_characters_never_reach_a_terminal() {
        let mut value = serde_json::to_value(sample()).unwrap();
        let hostile = "\u{1b}[2Jpvscsi\n";
        for field in ["adapter", "engine", "rw", "coalescing"] {
            value["results"][0][field] = hostile.into();
        }
        for field in ["format", "subformat", "path"] {
            value["results"][0]["disk"][field] = hostile.into();
        }
        value["results"][0]["disk"]["options"] = serde_json::json!([hostile]);
        value["suite"] = hostile.into();
        value["command"] = hostile.into();
        value["notes"] = serde_json::json!([hostile]);
        value["host"]["cpu"] = hostile.into();
        value["ratios"][0]["name"] = hostile.into();
        let document = Document::read(&value.to_string()).unwrap();
        assert_eq!(document.results[0].adapter, "\u{fffd}[2Jpvscsi\u{fffd}");
        assert!(!format!("{document:?}").contains("\\u{1b}"), "{document:?}");
        // An error quotes the document.
        value["host"]["kvm"] = hostile.into();
        assert!(!refusal(&value).contains(char::is_control), "{}", refusal(&value));
    }
}
