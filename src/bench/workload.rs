//! `--workload` and `--fio`: loads other than those of the options.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use benches::mix::{self, Mix, fio};

/// The value of `--workload`.
#[derive(Clone)]
pub(crate) enum Workload {
    /// Write and check every block.
    Verify,
    /// Print the built-in loads.
    List,
    /// Loads of applications.
    Mixes(Vec<Mix>),
}

impl Workload {
    /// Read the names and files of `--workload`, separated by commas.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "verify" => return Ok(Self::Verify),
            "list" => return Ok(Self::List),
            _ => {}
        }
        let mixes = text.split(',').map(one).collect::<Result<Vec<_>, _>>()?;
        let twice = |mix: &&Mix| mixes.iter().filter(|other| other.name == mix.name).count() > 1;
        match mixes.iter().find(twice) {
            Some(mix) => Err(format!("two of the workloads have the name `{}`", mix.name)),
            None => Ok(Self::Mixes(mixes)),
        }
    }
}

fn one(name: &str) -> Result<Mix, String> {
    if let Some(mix) = mix::shipped(name) {
        return Ok(mix);
    }
    let path = Path::new(name);
    if !path.exists() {
        let names: Vec<&str> = mix::SHIPPED.iter().map(|(name, _)| *name).collect();
        return Err(format!("`{name}` is neither a file nor one of: verify, list, {}", names.join(", ")));
    }
    let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    Mix::read(&text, &stem).map_err(|error| format!("{name}: {error}"))
}

/// Read a job file of fio.
pub(super) fn jobs(name: &str) -> Result<fio::Jobs, String> {
    let text = fs::read_to_string(name).map_err(|error| format!("{name}: {error}"))?;
    fio::read(&text).map_err(|error| format!("{name}: {error}"))
}

/// The built-in loads, one on each line, and the keys of a file.
pub(super) fn list() -> String {
    let mut text = String::new();
    for (name, file) in mix::SHIPPED {
        let Ok(mix) = Mix::read(file, name) else { continue };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<20}  {:<38}  {}", mix.summary(), mix.description);
    }
    text + "\nKeys of a file of your own (--workload FILE):\n" + mix::KEYS + "\n"
}
