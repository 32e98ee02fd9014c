//! Where the time of a test run went: of each step, each test binary and each test. The last records are beside the caches;
//! `cargo xtask test --times` compares two.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::command::output;

/// Records of a tier that are kept.
const RECORDS: usize = 30;
/// Tests that are printed.
const SLOWEST: usize = 30;
/// Rows of a comparison have at least this difference in seconds.
const NOTABLE: f64 = 1.0;

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    /// The commit, with `+` if files were changed.
    pub(crate) revision: String,
    pub(crate) tier: String,
    /// Seconds since 1970.
    pub(crate) began: u64,
    pub(crate) seconds: f64,
    pub(crate) cpus: usize,
    /// In the order in which they ran. A step that builds has a name that begins with `build`.
    pub(crate) steps: Vec<Timed>,
    /// Sums over the tests of a binary, which run side by side with others.
    pub(crate) binaries: Vec<Timed>,
    pub(crate) tests: Vec<Timed>,
}

/// What took how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timed {
    pub(crate) name: String,
    pub(crate) seconds: f64,
}

impl Times {
    pub(crate) fn new(tier: &str) -> Self {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        Self { revision: revision(), tier: tier.to_owned(), began, cpus, ..Self::default() }
    }

    /// Account for a test; `binary` is the name of its binary.
    pub(crate) fn test(&mut self, binary: &str, name: &str, seconds: f64) {
        match self.binaries.iter_mut().find(|timed| timed.name == binary) {
            Some(known) => known.seconds += seconds,
            None => self.binaries.push(Timed { name: binary.to_owned(), seconds }),
        }
        self.tests.push(Timed { name: format!("{binary} {name}"), seconds });
    }

    /// Store the record, and print it.
    pub(crate) fn end(&mut self, seconds: f64) {
        self.seconds = seconds;
        print!("{}", self.text());
        match self.store() {
            Ok(path) => println!("times: {}", path.display()),
            Err(error) => println!("times: {error}"),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("\ntimes: {:.0} s on {} CPUs at {}\n", self.seconds, self.cpus, self.revision);
        let mut part = |title: &str, rows: &[Timed]| {
            text += &format!("{title}:\n");
            rows.iter().for_each(|row| text += &format!("{:>9.1}  {}\n", row.seconds, row.name));
        };
        part("steps", &self.steps);
        if !self.tests.is_empty() {
            part("test binaries (sums over their tests)", &slowest(&self.binaries, usize::MAX));
            part("slowest tests", &slowest(&self.tests, SLOWEST));
        }
        text
    }

    fn store(&self) -> Result<PathBuf, String> {
        let folder = folder()?;
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let path = folder.join(format!("{}-{}.json", self.tier, self.began));
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        fs::write(&path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))?;
        let mut old = records(&folder, &self.tier)?;
        old.truncate(old.len().saturating_sub(RECORDS));
        old.iter().try_for_each(fs::remove_file).map_err(|error| error.to_string())?;
        Ok(path)
    }
}

/// `HEAD`, and whether files differ from it.
pub(crate) fn revision() -> String {
    let git = |args: &[&str]| output("git", args).map(|text| text.trim().to_owned()).unwrap_or_default();
    let changed = if git(&["status", "--porcelain"]).is_empty() { "" } else { "+" };
    git(&["rev-parse", "--short=12", "HEAD"]) + changed
}

fn slowest(rows: &[Timed], most: usize) -> Vec<Timed> {
    let mut rows = rows.to_vec();
    rows.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    rows.truncate(most);
    rows
}

fn folder() -> Result<PathBuf, String> {
    Ok(guest_linux::cache().map_err(|error| error.to_string())?.join("times"))
}

/// The records of a tier, the oldest first.
fn records(folder: &Path, tier: &str) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let prefix = format!("{tier}-");
    let of_tier =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    let mut paths: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|entry| entry.path()).filter(of_tier).collect();
    // The names have the time, in ten digits.
    paths.sort();
    Ok(paths)
}

/// Print how two records differ: these files, or the last two of the default tier.
///
/// # Errors
/// There are none, or one cannot be read.
pub(crate) fn compare(files: &[&str]) -> Result<(), String> {
    let files = match files {
        [before, after] => [PathBuf::from(before), PathBuf::from(after)],
        _ => match &records(&folder()?, "default")?[..] {
            [.., before, after] => [before.clone(), after.clone()],
            _ => return Err("there are no two records of `cargo xtask test`".to_owned()),
        },
    };
    let read = |path: &PathBuf| -> Result<Times, String> {
        let failed = |error: String| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    };
    let [before, after] = files.each_ref().map(read);
    print!("{}", comparison(&before?, &after?));
    Ok(())
}

fn comparison(before: &Times, after: &Times) -> String {
    let mut text = format!("{:>9} {:>9} {:>9}  s\n", "before", "after", "change");
    let row = |name: &str, before: f64, after: f64| {
        format!("{before:>9.1} {after:>9.1} {:>+9.1}  {name}\n", after - before)
    };
    text += &row(&format!("all ({}, {})", before.revision, after.revision), before.seconds, after.seconds);
    for (title, before, after) in [
        ("steps", &before.steps, &after.steps),
        ("test binaries", &before.binaries, &after.binaries),
        ("tests", &before.tests, &after.tests),
    ] {
        let mut both: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        before.iter().for_each(|timed| both.entry(&timed.name).or_default().0 += timed.seconds);
        after.iter().for_each(|timed| both.entry(&timed.name).or_default().1 += timed.seconds);
        let change = |(before, after): &(f64, f64)| after - before;
        let mut rows: Vec<_> = both.into_iter().filter(|(_, times)| change(times).abs() >= NOTABLE).collect();
        rows.sort_by(|(_, one), (_, other)| change(other).abs().total_cmp(&change(one).abs()));
        text += &format!("{title}:\n");
        rows.truncate(SLOWEST);
        rows.iter().for_each(|(name, (before, after))| text += &row(name, *before, *after));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(name: &str, seconds: f64) -> Timed {
        Timed { name: name.to_owned(), seconds }
    }

    #[test]
    fn a_binary_has_the_sum_of_its_tests() {
        let mut times = Times::default();
        for (binary, name, seconds) in [("devices", "a", 1.0), ("cli", "a", 4.0), ("devices", "b", 2.5)] {
            times.test(binary, name, seconds);
        }
        assert_eq!(times.binaries, [timed("devices", 3.5), timed("cli", 4.0)]);
        let text = times.text();
        let (cli, devices) = (text.find("4.0  cli\n").unwrap(), text.find("3.5  devices\n").unwrap());
        assert!(cli < devices && text.contains("2.5  devices b\n"), "{text}");
    }

    #[test]
    fn a_comparison_has_what_changed_most_first() {
        let before = Times {
            steps: vec![timed("lints", 60.0), timed("tests", 900.0), timed("soak", 60.0)],
            ..Times::default()
        };
        let after = Times {
            steps: vec![timed("lints", 60.5), timed("tests", 300.0), timed("build", 100.0)],
            ..Times::default()
        };
        let text = comparison(&before, &after);
        let at = |row: &str| text.find(row).unwrap_or_else(|| panic!("no {row}: {text}"));
        assert!(at("-600.0  tests") < at("+100.0  build") && at("+100.0  build") < at("-60.0  soak"));
        assert!(!text.contains("lints"), "{text}");
    }
}
