//! One measurement on the emulated host whose clock counts instructions, and its row in the results.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use guest_linux::{Clock, Ended, HostJob, KvmHost};
use serde_json::{Value, json};

use super::counters::{Counters, jobs};
use super::options::{Disk, Options, Vmm};

/// Version of the results' format.
pub(super) const SCHEMA: u32 = 1;
/// Bytes of the host's memory.
const MEMORY: u64 = 2 << 30;
/// What the iSCSI target exports.
const RAM_DISK: &str = "/dev/ram0";
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Run a script on the emulated host. Returns the counters of each job.
pub(super) fn count(
    script: String,
    options: &Options,
    results: &Path,
) -> Result<Vec<[Counters; 2]>, Box<dyn Error>> {
    jobs(&run_script(script, options, MEMORY, results)?.counts)
}

/// Run a script on the emulated host with `memory` bytes of memory.
pub(super) fn run_script(
    mut script: String,
    options: &Options,
    memory: u64,
    results: &Path,
) -> Result<Ended, Box<dyn Error>> {
    let mut files = KvmHost::measured_guest()?;
    if !options.peers.is_empty() {
        files.extend(KvmHost::peer()?);
    }
    if options.disk == Disk::Iscsi {
        files.extend(KvmHost::iscsi()?);
        script.insert_str(0, &format!("{} {RAM_DISK} > /dev/null || exit 1\n", KvmHost::ISCSI_UP));
    }
    let job = HostJob {
        script,
        files,
        disks: Vec::new(),
        cpus: options.host_cpus,
        clock: Clock::Instructions,
        memory,
        timeout: TIMEOUT,
    };
    let ended = KvmHost::prepare()?.run(&job, results)?;
    if ended.status != 0 {
        return Err(format!("the measurement failed:\n{}", ended.console).into());
    }
    Ok(ended)
}

/// A measurement.
pub(super) struct Measured<'a> {
    pub(super) guest: &'a str,
    pub(super) vmm: Vmm,
    pub(super) adapter: &'a str,
    pub(super) disk: Disk,
    pub(super) host_cpus: u8,
    pub(super) block_size: u32,
    pub(super) depth: u32,
    pub(super) batch: Option<u32>,
    /// At the beginning and at the end.
    pub(super) counters: [Counters; 2],
    pub(super) accesses: u64,
    /// Interrupts for each access.
    pub(super) interrupts: Option<f64>,
}

/// A row of the results.
pub(super) fn row(measured: &Measured<'_>) -> Value {
    let [begin, end] = measured.counters;
    let each = |of: fn(&Counters) -> u64| (of(&end) as f64 - of(&begin) as f64) / measured.accesses as f64;
    json!({
        "adapter": measured.adapter,
        "disk": measured.disk.spec(),
        "guest": measured.guest,
        "vmm": measured.vmm.name(),
        "host_cpus": measured.host_cpus,
        "block_size": measured.block_size,
        "queue_depth": measured.depth,
        "batch": measured.batch,
        "instructions_per_io": {
            "total": each(Counters::total),
            "guest_user": each(|at| at.guest_user),
            "guest_kernel": each(|at| at.guest_kernel),
            "host_user": each(|at| at.host_user),
            "host_kernel": each(|at| at.host_kernel),
        },
        "exits_per_io": each(|at| at.vmruns),
        "interrupts_per_io": measured.interrupts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_over_accesses() {
        let counters = |all| Counters {
            host_user: all,
            host_kernel: all,
            guest_user: 2 * all,
            vmruns: all,
            ..Counters::default()
        };
        let row = row(&Measured {
            guest: "linux",
            vmm: Vmm::Paradisk,
            adapter: "lsi",
            disk: Disk::Null,
            host_cpus: 2,
            block_size: 4096,
            depth: 8,
            batch: None,
            counters: [counters(100), counters(200)],
            accesses: 10,
            interrupts: None,
        });
        let [total, user] = ["total", "guest_user"].map(|name| row["instructions_per_io"][name].as_f64());
        assert_eq!((total, user, row["exits_per_io"].as_f64()), (Some(40.0), Some(20.0), Some(10.0)));
    }
}
