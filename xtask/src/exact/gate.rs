//! The baseline in `benches/exact.json`: the check fails for a path that is more than 1% longer (with a Linux guest: 5%).
//!
//! The counts depend on the versions of the kernels, QEMU and the compiler. If one of these differs from the baseline's, the tolerance is
//! 10% (14%), and the comparison reports the version.

use std::error::Error;
use std::fs;

use guest_linux::KvmHost;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::measured::SCHEMA;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/exact.json");
/// Factor by which a path may exceed the baseline.
const TOLERANCE: f64 = 1.01;
/// Added to the factor for Linux. Its counts change by 0.9% with the layout of memory, and by up to 4% between builds, because devices adapt to
/// the guest's pace.
const LINUX_ALLOWANCE: f64 = 0.04;
/// The factor if a kernel, QEMU or the compiler has another version than the baseline's.
const OTHER_VERSIONS_TOLERANCE: f64 = 1.1;
/// The fields that identify a row.
pub(super) const KEY: [&str; 13] = [
    "adapter",
    "disk",
    "disks",
    "guest",
    "guest_cpus",
    "vmm",
    "host_cpus",
    "halt_poll_ns",
    "rw",
    "block_size",
    "queue_depth",
    "batch",
    "after_singles",
];

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Baseline {
    schema: u32,
    versions: Vec<(String, String)>,
    results: Vec<Value>,
}

/// Compare each row with the baseline. Returns a line for each row that is longer or has no baseline.
///
/// # Errors
/// The baseline cannot be read, or a version is not known.
pub(super) fn check(rows: &[Value]) -> Result<Vec<String>, Box<dyn Error>> {
    let (baseline, versions) = (read()?, versions()?);
    let others: Vec<_> = versions.iter().filter(|version| !baseline.versions.contains(version)).collect();
    for (name, version) in &others {
        println!("{name}: {version} differs from the baseline's version; the limit is 10% (Linux: 14%)");
    }
    let tolerance = if others.is_empty() { TOLERANCE } else { OTHER_VERSIONS_TOLERANCE };
    Ok(longer(rows, &baseline.results, tolerance))
}

/// Store these rows in the baseline, in place of rows with the same key. If a version or the format has changed, all old rows are dropped.
///
/// # Errors
/// The baseline cannot be read or written, or a version is not known.
pub(super) fn update(rows: &[Value]) -> Result<(), Box<dyn Error>> {
    if rows.is_empty() {
        return Ok(());
    }
    let versions = versions()?;
    let baseline = if fs::exists(FILE)? { read()? } else { Baseline::default() };
    let same_kind = baseline.versions == versions && baseline.schema == SCHEMA;
    let mut results = if same_kind { baseline.results } else { Vec::new() };
    results.retain(|old| !rows.iter().any(|new| same(old, new)));
    results.extend(rows.iter().cloned());
    results.sort_by_key(|row| KEY.map(|key| row[key].to_string()));
    let text = serde_json::to_string_pretty(&Baseline { schema: SCHEMA, versions, results })?;
    Ok(fs::write(FILE, text + "\n")?)
}

pub(super) fn versions() -> Result<Vec<(String, String)>, guest_linux::Error> {
    Ok(KvmHost::versions()?.into_iter().map(|(name, version)| (name.to_owned(), version)).collect())
}

fn read() -> Result<Baseline, Box<dyn Error>> {
    let text = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{FILE}: {error}").into())
}

fn same(one: &Value, other: &Value) -> bool {
    KEY.iter().all(|key| one[key] == other[key])
}

fn longer(rows: &[Value], baseline: &[Value], tolerance: f64) -> Vec<String> {
    let total = |row: &Value| row["instructions_per_io"]["total"].as_f64().unwrap_or(f64::INFINITY);
    let judge = |row: &Value| {
        let name = KEY.map(|key| format!("{key} {}", row[key])).join(", ");
        let Some(old) = baseline.iter().find(|old| same(old, row)) else {
            return Some(format!("{name}: not in the baseline (--update adds it)"));
        };
        let (old, new) = (total(old), total(row));
        let tolerance = if row["guest"] == "linux" { tolerance + LINUX_ALLOWANCE } else { tolerance };
        (new > old * tolerance).then(|| format!("{name}: {new:.0} instructions per I/O, baseline {old:.0}"))
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
        let baseline = [row("lsi", 1000.0), row("pvscsi", 500.0)];
        assert_eq!(longer(&[row("lsi", 1009.0), row("pvscsi", 300.0)], &baseline, TOLERANCE), [""; 0]);
        let longer = longer(&[row("lsi", 1011.0), row("ide", 1.0)], &baseline, TOLERANCE);
        assert!(longer[0].contains("\"lsi\"") && longer[0].contains("1011 instructions"), "{longer:?}");
        assert!(longer[1].contains("not in the baseline") && longer.len() == 2, "{longer:?}");
    }

    #[test]
    fn the_baseline_can_be_read() {
        let baseline = read().unwrap();
        assert_eq!(baseline.schema, SCHEMA);
        assert!(!baseline.versions.is_empty() && !baseline.results.is_empty());
        for row in &baseline.results {
            assert!(KEY.iter().all(|key| row.get(key).is_some()), "a part of its key is missing: {row}");
        }
        assert_eq!(longer(&baseline.results, &baseline.results, 1.0), [""; 0]);
    }
}
