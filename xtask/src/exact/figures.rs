//! The JSON document of `exact`, written after each adapter, so that an interruption loses one adapter's figures.

use std::error::Error;
use std::fs;

use guest_linux::KvmHost;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::gate;
use super::measured::SCHEMA;
use super::options::Options;

/// Options that do not change what is measured. The first two have a value.
const OUTPUT: [&str; 4] = ["--json", "--resume", "--check", "--update"];

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    schema: u32,
    /// The options that decide what is measured.
    options: String,
    /// Of `paradisk`'s file.
    program: String,
    versions: Vec<(String, String)>,
    results: Vec<Value>,
    #[serde(skip)]
    path: Option<String>,
}

impl Figures {
    /// Without figures, or with those of the file to resume.
    ///
    /// # Errors
    /// The file cannot be read, or has figures of other options, versions, or of another program.
    pub(super) fn new(options: &Options, args: &[&str]) -> Result<Self, Box<dyn Error>> {
        let new = Self {
            schema: SCHEMA,
            options: deciding(args),
            program: KvmHost::measured_program()?,
            versions: gate::versions()?,
            results: Vec::new(),
            path: options.json.clone(),
        };
        match &options.json {
            Some(path) if options.resume => {
                let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
                Ok(new.resumed(&text).map_err(|why| format!("{path}: {why}"))?)
            }
            _ => Ok(new),
        }
    }

    fn resumed(self, text: &str) -> Result<Self, String> {
        let old: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if old.schema != self.schema {
            return Err(format!("schema {}, not {}", old.schema, self.schema));
        }
        if old.options != self.options {
            return Err(format!("its options are `{}`, not `{}`", old.options, self.options));
        }
        if old.program != self.program {
            return Err("it is of another build of paradisk".to_owned());
        }
        match old.versions.iter().find(|version| !self.versions.contains(version)) {
            Some((name, version)) => Err(format!("{name}: its version {version} is not today's")),
            None => Ok(Self { results: old.results, ..self }),
        }
    }

    /// The figures of this adapter.
    pub(super) fn of<'a>(&'a self, adapter: &'a str) -> impl Iterator<Item = &'a Value> {
        self.results.iter().filter(move |row| row["adapter"] == adapter)
    }

    /// Add all figures of an adapter, and write the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn add(&mut self, rows: Vec<Value>) -> Result<(), Box<dyn Error>> {
        self.results.extend(rows);
        let Some(path) = &self.path else { return Ok(()) };
        let unfinished = format!("{path}.part");
        fs::write(&unfinished, format!("{:#}\n", serde_json::to_value(&*self)?))?;
        Ok(fs::rename(&unfinished, path)?)
    }

    /// All figures.
    pub(super) fn rows(&self) -> &[Value] {
        &self.results
    }
}

/// The options that decide what is measured, in their order.
fn deciding(args: &[&str]) -> String {
    let mut words = args.iter();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match OUTPUT.iter().position(|option| option == word) {
            Some(0 | 1) => drop(words.next()),
            Some(_) => {}
            None => kept.push(*word),
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures(args: &str) -> Figures {
        let options = deciding(&args.split(' ').collect::<Vec<_>>());
        let versions = vec![("QEMU".to_owned(), "11".to_owned())];
        let program = "a".to_owned();
        Figures { schema: SCHEMA, options, program, versions, results: Vec::new(), path: None }
    }

    #[test]
    fn a_resumed_measurement_has_the_same_options_and_versions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figures").display().to_string();
        let mut first = figures("--guest linux --json a --update");
        first.path = Some(path.clone());
        first.add(vec![json!({"adapter": "lsi"})]).unwrap();
        let text = fs::read_to_string(&path).unwrap();

        let resumed = figures("--guest linux --resume b").resumed(&text).unwrap();
        assert_eq!((resumed.of("lsi").count(), resumed.of("ide").count()), (1, 0));
        assert_eq!(resumed.rows(), first.rows());
        let other = figures("--guest linux --adapter ide").resumed(&text).unwrap_err();
        assert!(other.contains("`--guest linux`, not `--guest linux --adapter ide`"), "{other}");
        let newer =
            Figures { versions: vec![("QEMU".to_owned(), "12".to_owned())], ..figures("--guest linux") };
        let rebuilt = Figures { program: "b".to_owned(), ..figures("--guest linux") };
        assert!(rebuilt.resumed(&text).unwrap_err().contains("another build"));
        assert!(newer.resumed(&text).unwrap_err().contains("QEMU: its version 11"));
        assert!(figures("--guest linux").resumed(&text[1..]).is_err());
    }
}
