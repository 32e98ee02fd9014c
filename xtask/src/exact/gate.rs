//! The figures that are kept in `benches/exact.json`: no path may get more than 1% longer unnoticed.

use std::error::Error;
use std::fs;

use serde_json::Value;

use super::document;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/exact.json");
/// By what factor a path may be longer than what is kept.
const TOLERANCE: f64 = 1.01;
/// What tells rows apart.
pub(super) const KEY: [&str; 8] =
    ["adapter", "disk", "guest", "vmm", "host_cpus", "block_size", "queue_depth", "batch"];

/// Compare each row with the one that is kept. True where nothing is longer.
///
/// # Errors
/// Nothing is kept, or it cannot be read.
pub(super) fn check(rows: &[Value]) -> Result<bool, Box<dyn Error>> {
    let longer = longer(rows, &kept()?);
    longer.iter().for_each(|line| println!("{line}"));
    Ok(longer.is_empty())
}

/// Keep these rows in place of those of the same paths.
///
/// # Errors
/// What is kept cannot be read or written.
pub(super) fn update(rows: &[Value]) -> Result<(), Box<dyn Error>> {
    let mut all = if fs::exists(FILE)? { kept()? } else { Vec::new() };
    all.retain(|old| !rows.iter().any(|new| same(old, new)));
    all.extend(rows.iter().cloned());
    all.sort_by_key(|row| KEY.map(|key| row[key].to_string()));
    Ok(fs::write(FILE, document(&all))?)
}

fn kept() -> Result<Vec<Value>, Box<dyn Error>> {
    let text = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    let document: Value = serde_json::from_str(&text).map_err(|error| format!("{FILE}: {error}"))?;
    Ok(document["results"].as_array().cloned().unwrap_or_default())
}

fn same(one: &Value, other: &Value) -> bool {
    KEY.iter().all(|key| one[key] == other[key])
}

/// What is longer than it was, or was never kept.
fn longer(rows: &[Value], kept: &[Value]) -> Vec<String> {
    let total = |row: &Value| row["instructions_per_io"]["total"].as_f64().unwrap_or(f64::INFINITY);
    let judge = |row: &Value| {
        let name = KEY.map(|key| format!("{key} {}", row[key])).join(", ");
        let Some(old) = kept.iter().find(|old| same(old, row)) else {
            return Some(format!("{name}: no figure is kept (--update)"));
        };
        let (old, new) = (total(old), total(row));
        (new > old * TOLERANCE).then(|| format!("{name}: {new:.0} instructions per I/O, {old:.0} are kept"))
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
        assert_eq!(longer(&[row("lsi", 1009.0), row("pvscsi", 300.0)], &kept), [""; 0]);
        let longer = longer(&[row("lsi", 1011.0), row("ide", 1.0)], &kept);
        assert!(longer[0].contains("\"lsi\"") && longer[0].contains("1011 instructions"), "{longer:?}");
        assert!(longer[1].contains("no figure is kept") && longer.len() == 2, "{longer:?}");
    }
}
