//! The figures that are kept in `benches/exact.json`: no path may get more than 1% longer unnoticed.
//!
//! They hold for the programs with which they were measured: another kernel of Debian's has another number of instructions. Where one of those
//! is another one, the comparison allows for that, and says so.

use std::error::Error;
use std::fs;

use guest_linux::KvmHost;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::measured::SCHEMA;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/exact.json");
/// By what factor a path may be longer than what is kept.
const TOLERANCE: f64 = 1.01;
/// So much more for Linux. Its figures change by 0.9% with where things are in memory, and by up to 4% between builds, because which
/// doorbells are served on the virtual CPU's thread depends on the guest's pace.
const OF_LINUX: f64 = 0.04;
/// The same with other versions of kernels, QEMU or the compiler.
const OF_OTHER_VERSIONS: f64 = 1.1;
/// What tells rows apart.
pub(super) const KEY: [&str; 8] =
    ["adapter", "disk", "guest", "vmm", "host_cpus", "block_size", "queue_depth", "batch"];

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    schema: u32,
    versions: Vec<(String, String)>,
    results: Vec<Value>,
}

/// Compare each row with the one that is kept; what is longer, or was never kept.
///
/// # Errors
/// Nothing is kept, it cannot be read, or versions are not told.
pub(super) fn check(rows: &[Value]) -> Result<Vec<String>, Box<dyn Error>> {
    let (kept, versions) = (read()?, versions()?);
    let others: Vec<_> = versions.iter().filter(|version| !kept.versions.contains(version)).collect();
    for (name, version) in &others {
        println!("{name}: {version}, for which no figures are kept: 10% more are allowed");
    }
    let tolerance = if others.is_empty() { TOLERANCE } else { OF_OTHER_VERSIONS };
    Ok(longer(rows, &kept.results, tolerance))
}

/// Keep these rows in place of those of the same paths. Those that were measured with other versions are no longer kept.
///
/// # Errors
/// What is kept cannot be read or written, or versions are not told.
pub(super) fn update(rows: &[Value]) -> Result<(), Box<dyn Error>> {
    let versions = versions()?;
    let kept = if fs::exists(FILE)? { read()? } else { Kept::default() };
    let mut results = if kept.versions == versions { kept.results } else { Vec::new() };
    results.retain(|old| !rows.iter().any(|new| same(old, new)));
    results.extend(rows.iter().cloned());
    results.sort_by_key(|row| KEY.map(|key| row[key].to_string()));
    let text = serde_json::to_string_pretty(&Kept { schema: SCHEMA, versions, results })?;
    Ok(fs::write(FILE, text + "\n")?)
}

fn versions() -> Result<Vec<(String, String)>, guest_linux::Error> {
    Ok(KvmHost::versions()?.into_iter().map(|(name, version)| (name.to_owned(), version)).collect())
}

fn read() -> Result<Kept, Box<dyn Error>> {
    let text = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{FILE}: {error}").into())
}

fn same(one: &Value, other: &Value) -> bool {
    KEY.iter().all(|key| one[key] == other[key])
}

fn longer(rows: &[Value], kept: &[Value], tolerance: f64) -> Vec<String> {
    let total = |row: &Value| row["instructions_per_io"]["total"].as_f64().unwrap_or(f64::INFINITY);
    let judge = |row: &Value| {
        let name = KEY.map(|key| format!("{key} {}", row[key])).join(", ");
        let Some(old) = kept.iter().find(|old| same(old, row)) else {
            return Some(format!("{name}: no figure is kept (--update)"));
        };
        let (old, new) = (total(old), total(row));
        let tolerance = if row["guest"] == "linux" { tolerance + OF_LINUX } else { tolerance };
        (new > old * tolerance).then(|| format!("{name}: {new:.0} instructions per I/O, {old:.0} are kept"))
    };
    rows.iter().filter_map(judge).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_that_got_longer_is_named() {
        let row =
            |adapter: &str, total: f64| json!({"adapter": adapter, "instructions_per_io": {"total": total}});
        let kept = [row("lsi", 1000.0), row("pvscsi", 500.0)];
        assert_eq!(longer(&[row("lsi", 1009.0), row("pvscsi", 300.0)], &kept, TOLERANCE), [""; 0]);
        let longer = longer(&[row("lsi", 1011.0), row("ide", 1.0)], &kept, TOLERANCE);
        assert!(longer[0].contains("\"lsi\"") && longer[0].contains("1011 instructions"), "{longer:?}");
        assert!(longer[1].contains("no figure is kept") && longer.len() == 2, "{longer:?}");
    }

    #[test]
    fn what_is_kept_can_be_read() {
        let kept = read().unwrap();
        assert_eq!(kept.schema, SCHEMA);
        assert!(!kept.versions.is_empty() && !kept.results.is_empty());
        assert_eq!(longer(&kept.results, &kept.results, 1.0), [""; 0]);
    }
}
