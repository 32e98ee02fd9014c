//! fio, where the initramfs has it (<https://fio.readthedocs.io>, "Job file parameters" and "JSON output").

use std::process::{Child, Command, Stdio};

use guest_init::{Counted, Disk, Fio, FioDone, Rw};
use serde::Deserialize;

const PROGRAM: &str = "/fio";
/// Each CPU's part of a disk is a multiple of it, in bytes.
const PART: u64 = 4096;
/// Requests in flight, usually.
const DEPTH: u32 = 32;
/// For all jobs: past the page cache, many requests in flight, the numbers as JSON.
const COMMON: [&str; 5] =
    ["--name=job", "--direct=1", "--ioengine=io_uring", "--output-format=json", "--verify_state_save=0"];

/// What of fio's output is read here.
#[derive(Deserialize)]
struct Output {
    jobs: Vec<Numbers>,
}

#[derive(Deserialize)]
struct Numbers {
    error: i32,
    read: Direction,
    write: Direction,
    trim: Direction,
}

#[derive(Deserialize)]
struct Direction {
    total_ios: u64,
    io_bytes: u64,
    iops: f64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
}

/// One run of it.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// Every range is read or written once; then what was written is read and compared.
    Verify,
    /// The same on each of the first virtual CPUs, each with a part of the disk.
    VerifyOnCpus { cpus: u32 },
    /// The same at so many reads and writes a second at the most, which leaves the CPU to others.
    Steady { rate: u32 },
    /// Neither counted nor reported, as a warm-up: the first requests exit more often, because memory is touched for the first time and the
    /// device has not adapted to the load.
    Warm(Counted),
    /// Between two marks.
    Counted(Counted),
    /// Blocks of 4 KiB anywhere, for some time.
    Random { pattern: &'static str, seconds: u32 },
}

impl Load {
    /// What is run for a job, one after the other.
    pub(crate) fn of(fio: &Fio) -> Vec<Self> {
        let counted = |run: Counted| {
            let twice = Counted { requests: 2 * run.requests, ..run };
            let single = Counted { requests: run.singles, depth: 1, batch: 1, ..run };
            match run.singles {
                0 => vec![Self::Warm(run), Self::Counted(run), Self::Counted(twice)],
                _ => vec![Self::Warm(single), Self::Counted(run), Self::Warm(single), Self::Counted(twice)],
            }
        };
        match fio {
            Fio::Verify => vec![Self::Verify],
            Fio::VerifyOnCpus { cpus } => vec![Self::VerifyOnCpus { cpus: *cpus }],
            Fio::Counted(runs) => runs.iter().copied().flat_map(counted).collect(),
            Fio::Rates { seconds } => {
                ["randread", "randwrite"].map(|pattern| Self::Random { pattern, seconds: *seconds }).to_vec()
            }
        }
    }

    /// Requests in flight.
    pub(crate) fn depth(self) -> u32 {
        match self {
            Self::Warm(run) | Self::Counted(run) => run.depth,
            Self::Verify | Self::VerifyOnCpus { .. } | Self::Steady { .. } | Self::Random { .. } => DEPTH,
        }
    }

    fn options(self, disk: &Disk) -> Vec<String> {
        match self {
            Self::Verify => {
                let fixed = ["--rw=randrw", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"];
                // Not the TSC, whose test by fio takes an emulated CPU longer than all the rest.
                let clock = "--clocksource=clock_gettime".to_owned();
                let own = [format!("--bsrange={}-64k", disk.logical_sector), clock];
                fixed.map(str::to_owned).into_iter().chain(own).collect()
            }
            Self::VerifyOnCpus { cpus } => {
                let part = disk.size / u64::from(cpus) / PART * PART;
                let own = [format!("--size={part}"), format!("--offset_increment={part}")];
                [Self::Verify.options(disk), own.into(), on_cpus(cpus).into()].concat()
            }
            Self::Steady { rate } => {
                [Self::Verify.options(disk), vec![format!("--rate_iops={rate}")]].concat()
            }
            Self::Warm(Counted { rw, requests, block_size, batch, cpus, .. })
            | Self::Counted(Counted { rw, requests, block_size, batch, cpus, .. }) => {
                let each = requests / cpus;
                let fixed = [pattern(rw), &["--norandommap", "--randseed=1"]].concat();
                let [submit, least, most] = ["submit", "complete_min", "complete_max"]
                    .map(|what| format!("--iodepth_batch_{what}={batch}"));
                // Also where that is more than the disk has.
                let size = format!("--io_size={}", u64::from(each) * u64::from(block_size));
                let own =
                    [format!("--bs={block_size}"), format!("--number_ios={each}"), size, submit, least, most];
                fixed.into_iter().map(str::to_owned).chain(own).chain(on_cpus(cpus)).collect()
            }
            Self::Random { pattern, seconds } => {
                let fixed = ["--bs=4k", "--time_based", "--norandommap"].map(str::to_owned);
                [&fixed[..], &[format!("--rw={pattern}"), format!("--runtime={seconds}")]].concat()
            }
        }
    }
}

/// fio's options for the same on each of the first virtual CPUs, reported as one.
fn on_cpus(cpus: u32) -> [String; 4] {
    [
        format!("--numjobs={cpus}"),
        format!("--cpus_allowed=0-{}", cpus - 1),
        "--cpus_allowed_policy=split".to_owned(),
        "--group_reporting".to_owned(),
    ]
}

/// fio's options for this kind of requests.
const fn pattern(rw: Rw) -> &'static [&'static str] {
    match rw {
        Rw::RandRead => &["--rw=randread"],
        Rw::RandWrite => &["--rw=randwrite"],
        Rw::Read => &["--rw=read"],
        Rw::Write => &["--rw=write"],
        Rw::Mixed => &["--rw=randrw"],
        Rw::Flush => &["--rw=randwrite", "--fsync=1"],
        Rw::Discard => &["--rw=randtrim"],
    }
}

/// fio on one disk or several.
pub(crate) struct Running(Child);

impl Running {
    /// Start it with `depth` requests in flight, on the disks of these names, which are like `disk`, in turns.
    pub(crate) fn start(disk: &Disk, names: &[String], load: Load, depth: u32) -> Result<Self, String> {
        let files: Vec<_> = names.iter().map(|name| format!("/dev/{name}")).collect();
        let mut command = Command::new(PROGRAM);
        command.args(COMMON).args(load.options(disk)).stdin(Stdio::null());
        command.arg(format!("--iodepth={depth}")).arg(format!("--filename={}", files.join(":")));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        child.map(Self).map_err(|error| format!("{PROGRAM}: {error}"))
    }

    /// Wait for its numbers, or what it says is wrong.
    pub(crate) fn finish(self) -> Result<FioDone, String> {
        let output = self.0.wait_with_output().map_err(|error| format!("{PROGRAM}: {error}"))?;
        let [printed, said] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        if !output.status.success() {
            return Err(format!("fio: {}: {}", output.status, said.trim()));
        }
        // Notes may come before the document.
        let start = printed.find('{').unwrap_or_default();
        let parsed: Result<Output, _> = serde_json::from_str(&printed[start..]);
        let jobs = parsed.map_err(|error| format!("fio's output: {error}"))?.jobs;
        let [Numbers { error: 0, read, write, trim }] = &jobs[..] else {
            return Err(format!("fio: an error that it gave no status for: {}", said.trim()));
        };
        let all = [read, write, trim];
        let total = all.iter().map(|of| of.total_ios as f64 * of.lat_ns.mean).sum::<f64>() / 1000.0;
        let requests = all.iter().map(|of| of.total_ios).sum::<u64>();
        Ok(FioDone {
            reads: read.total_ios,
            writes: write.total_ios + trim.total_ios,
            bytes: all.iter().map(|of| of.io_bytes).sum(),
            iops: all.iter().map(|of| of.iops).sum(),
            latency: total / requests.max(1) as f64,
            interrupts: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counted_load_is_warmed_up() {
        let load =
            Counted { rw: Rw::Mixed, requests: 5, block_size: 512, depth: 32, batch: 1, singles: 0, cpus: 1 };
        let other = Counted { singles: 7, ..load };
        let runs = Load::of(&Fio::Counted(vec![load, other])).into_iter().map(|load| match load {
            Load::Warm(run) => (false, run),
            Load::Counted(run) => (true, run),
            Load::Verify | Load::VerifyOnCpus { .. } | Load::Steady { .. } | Load::Random { .. } => {
                panic!("not asked for")
            }
        });
        let twice = |load| Counted { requests: 10, ..load };
        let single = (false, Counted { requests: 7, depth: 1, ..other });
        let expected = [
            (false, load),
            (true, load),
            (true, twice(load)),
            single,
            (true, other),
            single,
            (true, twice(other)),
        ];
        assert_eq!(runs.collect::<Vec<_>>(), expected);
    }
}
