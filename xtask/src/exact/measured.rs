//! One measurement on the emulated host whose clock counts instructions, and its row in the results.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Duration;

use guest_init::Rw;
use guest_linux::{Clock, Ended, HostJob, KvmHost};
use serde_json::{Value, json};

use super::counters::{Counters, jobs};
use super::options::{Disk, Options, Vmm};
use super::profile::Profile;

/// Version of the results' format.
pub(super) const SCHEMA: u32 = 3;
/// Bytes of the host's memory.
const MEMORY: u64 = 2 << 30;
/// What the iSCSI target exports.
const RAM_DISK: &str = "/dev/ram0";
/// The raw file on the timed disk's file system, and its size.
const RAW_FILE: &str = "/timed/disk.raw";
const FILE_BYTES: u64 = 64 << 20;
/// How long KVM polls when a virtual CPU halts, in nanoseconds.
const HALT_POLL: &str = "/sys/module/kvm/parameters/halt_poll_ns";
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Run a script on the emulated host.
pub(super) fn count(script: String, options: &Options, results: &Path) -> Result<Counts, Box<dyn Error>> {
    let ended = run_script(script, options, MEMORY, results)?;
    let jobs = jobs(&ended.counts)?;
    let profile = match options.profile {
        true => Some(Profile::parse(&ended.profile, &fs::read_to_string(results.join("symbols"))?)?),
        false => None,
    };
    Ok(Counts { jobs, profile })
}

/// What was counted.
pub(super) struct Counts {
    /// The counters at the beginning and the end of each job.
    pub(super) jobs: Vec<[Counters; 2]>,
    /// At the beginning and the end of each job, too.
    pub(super) profile: Option<Profile>,
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
    script.insert_str(0, &set_up(options));
    match options.disk {
        Disk::Null | Disk::Ram | Disk::PassThrough => {}
        Disk::Iscsi => files.extend(KvmHost::iscsi()?),
        Disk::Async | Disk::File | Disk::FileCached | Disk::Vhd | Disk::Vhdx | Disk::Qcow2 => {
            files.extend(KvmHost::timed()?);
        }
    }
    let job = HostJob {
        script,
        files,
        disks: Vec::new(),
        cpus: options.host_cpus,
        clock: if options.profile { Clock::Profiled } else { Clock::Instructions },
        memory,
        timeout: TIMEOUT,
    };
    let ended = KvmHost::prepare()?.run(&job, results)?;
    if ended.status != 0 {
        return Err(format!("the measurement failed:\n{}", ended.console).into());
    }
    Ok(ended)
}

/// Commands that make the disk, and set how long KVM polls.
fn set_up(options: &Options) -> String {
    let timed = |kind: &str| format!("{} {kind} || exit 1\n", KvmHost::TIMED_UP);
    let device = match options.disk {
        Disk::Null | Disk::Ram | Disk::PassThrough => String::new(),
        Disk::Iscsi => format!("{} {RAM_DISK} > /dev/null || exit 1\n", KvmHost::ISCSI_UP),
        Disk::Async => timed(&format!("empty {}", options.disks)),
        Disk::File | Disk::FileCached | Disk::Vhd | Disk::Vhdx | Disk::Qcow2 => timed("ext4"),
    };
    let polling = options.halt_poll.map(|time| format!("echo {time} > {HALT_POLL} || exit 1\n"));
    let symbols = if options.profile { "cat /proc/kallsyms > /out/symbols\n" } else { "" };
    device + &image(options.disk) + &polling.unwrap_or_default() + symbols
}

/// Commands that make the image, or make it anew.
pub(super) fn image(disk: Disk) -> String {
    let converted = |convert: &str, format: &str| {
        let image = format!("{}/disk.{format}", KvmHost::TIMED_FOLDER);
        format!("rm -f {image} && {convert} {RAW_FILE} {image} > /dev/null")
    };
    let ours = |format: &str| converted(&format!("./paradisk image convert --format {format}"), format);
    let convert = match disk {
        Disk::Null | Disk::Ram | Disk::PassThrough | Disk::Iscsi | Disk::Async => return String::new(),
        Disk::File | Disk::FileCached => ":".to_owned(),
        Disk::Vhd => ours("vhd"),
        Disk::Vhdx => ours("vhdx"),
        Disk::Qcow2 => converted(&format!("{} convert -O qcow2", KvmHost::IMAGE_TOOL), "qcow2"),
    };
    // Random data: an image has all blocks.
    format!("head -c {FILE_BYTES} /dev/urandom > {RAW_FILE} && {convert} && sync || exit 1\n")
}

/// A measurement.
pub(super) struct Measured<'a> {
    pub(super) guest: &'a str,
    pub(super) vmm: Vmm,
    pub(super) adapter: &'a str,
    pub(super) options: &'a Options,
    pub(super) rw: Rw,
    pub(super) block_size: u32,
    pub(super) depth: u32,
    pub(super) batch: Option<u32>,
    /// At the beginning and at the end.
    pub(super) counters: [Counters; 2],
    pub(super) accesses: u64,
    /// Interrupts for each access.
    pub(super) interrupts: Option<f64>,
    /// Mean, in microseconds of the guest's clock.
    pub(super) latency: Option<f64>,
}

/// A row of the results.
pub(super) fn row(measured: &Measured<'_>) -> Value {
    let [begin, end] = measured.counters;
    let each = |of: fn(&Counters) -> u64| (of(&end) as f64 - of(&begin) as f64) / measured.accesses as f64;
    json!({
        "adapter": measured.adapter,
        "disk": measured.options.disk.spec(),
        "disks": measured.options.disks,
        "guest": measured.guest,
        "vmm": measured.vmm.name(),
        "guest_cpus": measured.options.guest_cpus,
        "host_cpus": measured.options.host_cpus,
        "halt_poll_ns": measured.options.halt_poll,
        "rw": measured.rw.name(),
        "block_size": measured.block_size,
        "queue_depth": measured.depth,
        "batch": measured.batch,
        "after_singles": measured.options.after_singles,
        "instructions_per_io": {
            "total": each(Counters::total),
            "guest_user": each(|at| at.guest_user),
            "guest_kernel": each(|at| at.guest_kernel),
            "host_user": each(|at| at.host_user),
            "host_kernel": each(|at| at.host_kernel),
        },
        "exits_per_io": each(|at| at.vmruns),
        "interrupts_per_io": measured.interrupts,
        "mean_latency_us": measured.latency,
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
            options: &Options::parse(&[]).unwrap(),
            rw: Rw::RandRead,
            block_size: 4096,
            depth: 8,
            batch: None,
            counters: [counters(100), counters(200)],
            accesses: 10,
            interrupts: None,
            latency: None,
        });
        let [total, user] = ["total", "guest_user"].map(|name| row["instructions_per_io"][name].as_f64());
        assert_eq!((total, user, row["exits_per_io"].as_f64()), (Some(40.0), Some(20.0), Some(10.0)));
    }
}
