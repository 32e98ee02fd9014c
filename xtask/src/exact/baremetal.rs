//! The bare-metal guest: one run of `paradisk bench` for each combination. The last job of a run is measured, the jobs before it warm
//! up. The guest's drivers run at CPL 3 and count as guest user.

use std::error::Error;
use std::fs;

use guest_init::Rw;
use serde_json::Value;

use super::measured::{Measured, count, row};
use super::options::{Options, Vmm};

/// Length of a run by the host's clock, at 1 ns for each instruction: thousands of accesses at depth 1.
const DURATION: &str = "200ms";

pub(super) fn measure(options: &Options) -> Result<Vec<Value>, Box<dyn Error>> {
    let combinations: Vec<_> = options
        .adapters
        .iter()
        .flat_map(|adapter| options.block_sizes.iter().map(move |size| (adapter, *size)))
        .flat_map(|(adapter, size)| options.depths.iter().map(move |depth| (adapter, size, *depth)))
        .collect();
    let disk = options.disk.spec();
    // The results of combination `number` are in the file of that name.
    let bench = |(number, (adapter, size, depth)): (usize, &(&String, u32, u32))| {
        format!(
            "./paradisk bench --engine kvm --adapter {adapter} --disk {disk} --queue-depth {depth} --block-size {size} \
             --duration {DURATION} --runs 1 --json /out/{number} || exit 1\n"
        )
    };
    let results = tempfile::tempdir()?;
    let jobs = count(combinations.iter().enumerate().map(bench).collect(), options, results.path())?.jobs;
    if jobs.is_empty() || !jobs.len().is_multiple_of(combinations.len()) {
        return Err(format!("{} jobs for {} combinations", jobs.len(), combinations.len()).into());
    }
    let mut rows = Vec::new();
    for (number, jobs) in jobs.chunks(jobs.len() / combinations.len()).enumerate() {
        let document: Value =
            serde_json::from_str(&fs::read_to_string(results.path().join(number.to_string()))?)?;
        let measured = document["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        let result =
            measured.iter().find(|result| result["engine"] == "kvm").ok_or("bench measured nothing")?;
        let accesses =
            result["accesses"].as_u64().filter(|number| *number > 0).ok_or("bench made no access")?;
        let ((adapter, block_size, depth), [.., counters]) = (combinations[number], jobs) else {
            return Err("no job".into());
        };
        rows.push(row(&Measured {
            guest: "baremetal",
            vmm: Vmm::Paradisk,
            adapter,
            options,
            rw: Rw::RandRead,
            block_size,
            depth,
            batch: None,
            counters: *counters,
            accesses,
            interrupts: result["interrupts_per_io"].as_f64(),
            latency: None,
        }));
    }
    Ok(rows)
}
