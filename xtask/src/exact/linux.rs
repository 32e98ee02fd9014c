//! A stock Linux with its own drivers: for each adapter one boot, in which fio reads N blocks and then 2N, at each depth. The difference of both is the
//! result, so that what it takes to start fio is not in it.

use std::error::Error;
use std::fs;

use serde_json::Value;

use super::counters::Counters;
use super::{DISK, Options, count, row};

/// Depths of `guest_init::Fio::Counted`, in their order.
const DEPTHS: [u32; 3] = [1, 8, 32];
/// N. Fewer reads show by how a change of a byte moves everything in memory.
const READS: u64 = 4000;
/// Runs of fio at each depth.
const RUNS: usize = 2;

pub(super) fn measure(options: &Options) -> Result<Vec<Value>, Box<dyn Error>> {
    if let Some(depth) = options.depths.iter().find(|depth| !DEPTHS.contains(depth)) {
        return Err(format!("--queue-depth {depth}: with Linux one of {DEPTHS:?}").into());
    }
    let boot = |adapter: &String| {
        format!(
            "./paradisk run --kernel vmlinuz --initrd initramfs --memory 256M --disk {DISK},adapter={adapter} \
             --cmdline 'mitigations=off nokaslr quiet paradisk.disks=1 paradisk.fio=counted:{READS}' \
             < /dev/null > /out/{adapter} || exit 1\n"
        )
    };
    let results = tempfile::tempdir()?;
    let jobs = count(options.adapters.iter().map(boot).collect(), results.path())?;
    if jobs.len() != options.adapters.len() * DEPTHS.len() * RUNS {
        let printed =
            options.adapters.iter().filter_map(|name| fs::read_to_string(results.path().join(name)).ok());
        return Err(format!("{} runs of fio:\n{}", jobs.len(), printed.collect::<String>()).into());
    }
    let mut rows = Vec::new();
    for (adapter, jobs) in options.adapters.iter().zip(jobs.chunks(DEPTHS.len() * RUNS)) {
        complete(&fs::read_to_string(results.path().join(adapter))?)?;
        for (depth, runs) in DEPTHS.into_iter().zip(jobs.chunks(RUNS)) {
            let [once, twice] = runs else { return Err("a run of fio is missing".into()) };
            if options.depths.contains(&depth) {
                rows.push(row("linux", adapter, depth, difference(*once, *twice), READS, Value::Null));
            }
        }
    }
    Ok(rows)
}

/// By how much the second run is longer.
fn difference(once: [Counters; 2], twice: [Counters; 2]) -> [Counters; 2] {
    let [once, twice] = [once, twice].map(|[begin, end]| end.since(&begin));
    [once, twice]
}

/// That the guest reported each run of fio, with as many reads as it was to make.
fn complete(console: &str) -> Result<(), String> {
    let lines = console.lines().filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok());
    let disk = lines.into_iter().find_map(|line| line.get("disk").cloned());
    let disk = disk.ok_or_else(|| format!("no disk was reported:\n{console}"))?;
    let runs: Vec<_> =
        disk["fio"].as_array().into_iter().flatten().map(|run| run["reads"].as_u64()).collect();
    let expected = [Some(READS), Some(2 * READS)].repeat(DEPTHS.len());
    if disk["error"].is_null() && runs == expected {
        return Ok(());
    }
    Err(format!("fio did not do what it was to do: {disk:#}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_run_has_to_be_complete() {
        let console = |runs: &[u64], error: Value| {
            let fio: Vec<_> = runs.iter().map(|reads| json!({ "reads": reads })).collect();
            format!("[    1.0] boot\n\n{}\n{{\"done\": 1}}\n", json!({"disk": {"fio": fio, "error": error}}))
        };
        let all = [READS, 2 * READS].repeat(DEPTHS.len());
        assert_eq!(complete(&console(&all, Value::Null)), Ok(()));
        assert!(complete(&console(&all[1..], Value::Null)).is_err());
        assert!(complete(&console(&all, json!("fio: it failed"))).is_err());
        assert!(complete("[    1.0] boot\n").is_err());
    }
}
