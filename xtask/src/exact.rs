//! `cargo xtask exact`: instructions per I/O of each adapter, by who executes them, on a host whose time is instructions.
//!
//! What is counted is everything that the machine executes between two marks of the guest, over a disk that completes at once. The bare-metal
//! guest marks each of its jobs; a stock Linux marks its runs of fio.

mod baremetal;
mod counters;
mod gate;
mod linux;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Duration;

use guest_linux::{Clock, HostJob, KvmHost};
use serde_json::{Value, json};

use self::counters::{Counters, jobs};

const ADAPTERS: &str = "pvscsi,lsi,lsi-sas,virtio-scsi,virtio-blk";
const DEPTHS: &str = "1,8,32";
const DISK: &str = "null=64M";
const BLOCK_SIZE: u32 = 4096;
/// Bytes of the host's memory.
const MEMORY: u64 = 2 << 30;
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Who drives the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guest {
    BareMetal,
    Linux,
}

/// What becomes of the figures that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Ignored,
    Checked,
    Updated,
}

/// What is to be measured.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    guest: Guest,
    adapters: Vec<String>,
    depths: Vec<u32>,
    json: Option<String>,
    kept: Kept,
}

impl Options {
    fn parse(args: &[&str]) -> Result<Self, String> {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let depths = |text: &str| {
            let number = |word: &str| word.parse().map_err(|_| format!("--queue-depth {text}: not numbers"));
            text.split(',').map(number).collect::<Result<Vec<u32>, _>>()
        };
        let (guest, kept) = (Guest::BareMetal, Kept::Ignored);
        let mut options = Self { guest, adapters: list(ADAPTERS), depths: depths(DEPTHS)?, json: None, kept };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            match *name {
                "--check" => options.kept = Kept::Checked,
                "--update" => options.kept = Kept::Updated,
                _ => {
                    let value = args.next().ok_or_else(|| format!("{name} is unknown, or needs a value"))?;
                    options.set(name, value, list, depths)?;
                }
            }
        }
        let word = |name: &String| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
        };
        match options.adapters.iter().find(|name| !word(name)) {
            Some(name) => Err(format!("--adapter {name:?}: not an adapter")),
            None => Ok(options),
        }
    }

    fn set(
        &mut self,
        name: &str,
        value: &str,
        list: impl Fn(&str) -> Vec<String>,
        depths: impl Fn(&str) -> Result<Vec<u32>, String>,
    ) -> Result<(), String> {
        match (name, value) {
            ("--adapter", _) => self.adapters = list(value),
            ("--queue-depth", _) => self.depths = depths(value)?,
            ("--json", _) => self.json = Some(value.to_owned()),
            ("--guest", "baremetal") => self.guest = Guest::BareMetal,
            ("--guest", "linux") => self.guest = Guest::Linux,
            ("--guest", _) => return Err(format!("--guest {value}: not one of baremetal, linux")),
            _ => {
                let known = "--adapter, --queue-depth, --guest, --json, --check, --update";
                return Err(format!("{name}: not one of {known}"));
            }
        }
        Ok(())
    }
}

/// Measure, print a table, write JSON where that is asked for, and compare with the figures that are kept, or keep these. True where nothing got
/// longer.
///
/// # Errors
/// The options make no sense, a package is not to be had, or a run failed.
pub(crate) fn run(args: &[&str]) -> Result<bool, Box<dyn Error>> {
    let options = Options::parse(args)?;
    let rows = match options.guest {
        Guest::BareMetal => baremetal::measure(&options)?,
        Guest::Linux => linux::measure(&options)?,
    };
    println!("adapter      depth    total  guest user  guest kernel  host user  host kernel  exits");
    rows.iter().for_each(print_row);
    if let Some(path) = &options.json {
        fs::write(path, document(&rows))?;
    }
    match options.kept {
        Kept::Ignored => Ok(true),
        Kept::Checked => gate::check(&rows),
        Kept::Updated => gate::update(&rows).map(|()| true),
    }
}

fn document(rows: &[Value]) -> String {
    format!("{:#}\n", json!({ "schema": 1, "results": rows }))
}

/// Run a script on the host whose time is instructions; what the plugin counted, job by job.
fn count(script: String, results: &Path) -> Result<Vec<[Counters; 2]>, Box<dyn Error>> {
    let files = KvmHost::stock_guest()?;
    let job = HostJob {
        script,
        files,
        disks: Vec::new(),
        cpus: 1,
        clock: Clock::Instructions,
        memory: MEMORY,
        timeout: TIMEOUT,
    };
    let ended = KvmHost::prepare()?.run(&job, results)?;
    if ended.status != 0 {
        return Err(format!("the measurement failed:\n{}", ended.console).into());
    }
    jobs(&ended.counts)
}

/// A result: what is between these counters for each of `accesses`.
fn row(
    guest: &str,
    adapter: &str,
    depth: u32,
    [begin, end]: [Counters; 2],
    accesses: u64,
    interrupts: Value,
) -> Value {
    let each = |of: fn(&Counters) -> u64| of(&end).saturating_sub(of(&begin)) as f64 / accesses as f64;
    json!({
        "adapter": adapter,
        "disk": DISK,
        "guest": guest,
        "vmm": "paradisk",
        "block_size": BLOCK_SIZE,
        "queue_depth": depth,
        "instructions_per_io": {
            "total": each(Counters::total),
            "guest_user": each(|at| at.guest_user),
            "guest_kernel": each(|at| at.guest_kernel),
            "host_user": each(|at| at.host_user),
            "host_kernel": each(|at| at.host_kernel),
        },
        "exits_per_io": each(|at| at.vmruns),
        "interrupts_per_io": interrupts,
    })
}

fn print_row(row: &Value) {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let each = |name: &str| number(&row["instructions_per_io"][name]);
    println!(
        "{:<12} {:>5} {:>8.0} {:>11.0} {:>13.0} {:>10.0} {:>12.0} {:>6.3}",
        row["adapter"].as_str().unwrap_or_default(),
        row["queue_depth"],
        each("total"),
        each("guest_user"),
        each("guest_kernel"),
        each("host_user"),
        each("host_kernel"),
        number(&row["exits_per_io"]),
    );
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
        let row = row("linux", "lsi", 8, [counters(100), counters(200)], 10, Value::Null);
        let [total, user] = ["total", "guest_user"].map(|name| row["instructions_per_io"][name].as_f64());
        assert_eq!((total, user, row["exits_per_io"].as_f64()), (Some(40.0), Some(20.0), Some(10.0)));
    }

    #[test]
    fn options_are_checked() {
        let options = Options::parse(&[
            "--adapter",
            "lsi,pvscsi",
            "--check",
            "--queue-depth",
            "1,4",
            "--guest",
            "linux",
        ])
        .unwrap();
        assert_eq!((options.guest, options.kept), (Guest::Linux, Kept::Checked));
        assert_eq!(
            (options.adapters, options.depths),
            (vec!["lsi".to_owned(), "pvscsi".to_owned()], vec![1, 4])
        );
        for wrong in [
            &["--guest", "dos"][..],
            &["--queue-depth", "x"],
            &["--adapter", "a;b"],
            &["--json"],
            &["--what", "1"],
        ] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
