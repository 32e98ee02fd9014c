//! `cargo xtask exact`: instructions per I/O of each adapter, by who executes them, on a host whose time is instructions.
//!
//! Each combination is one run of `paradisk bench` with the bare-metal guest over a disk that completes at once. The guest marks the begin and
//! the end of each job; the last pair of marks of a combination is the measured run, those before it warm up. The difference of the counters
//! between the marks, over the number of accesses, is the result: everything that the machine executed in that time.

use std::error::Error;
use std::fs;
use std::time::Duration;

use guest_linux::{Clock, HostJob, KvmHost};
use serde::Deserialize;
use serde_json::{Value, json};

const ADAPTERS: &str = "pvscsi,lsi,lsi-sas,virtio-scsi,virtio-blk";
const DEPTHS: &str = "1,8,32";
const DISK: &str = "null=64M";
/// Of a run, in time that is instructions: thousands of accesses at depth 1.
const DURATION: &str = "200ms";
const BLOCK_SIZE: u32 = 4096;
/// Bytes of the host's memory.
const MEMORY: u64 = 1 << 30;
const TIMEOUT: Duration = Duration::from_secs(3600);
/// The numbers of the marks at the begin and the end of a job.
const MARKS: [u8; 2] = [b'<', b'>'];

/// What is to be measured.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    adapters: Vec<String>,
    depths: Vec<u32>,
    json: Option<String>,
}

impl Options {
    fn parse(args: &[&str]) -> Result<Self, String> {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let depths = |text: &str| {
            let number = |word: &str| word.parse().map_err(|_| format!("--queue-depth {text}: not numbers"));
            text.split(',').map(number).collect::<Result<Vec<u32>, _>>()
        };
        let mut options = Self { adapters: list(ADAPTERS), depths: depths(DEPTHS)?, json: None };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            match *name {
                "--adapter" => options.adapters = list(value),
                "--queue-depth" => options.depths = depths(value)?,
                "--json" => options.json = Some((*value).to_owned()),
                "--guest" if *value == "baremetal" => {}
                "--guest" => return Err(format!("--guest {value}: only baremetal can be counted")),
                _ => return Err(format!("{name}: not one of --adapter, --queue-depth, --guest, --json")),
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

    fn combinations(&self) -> impl Iterator<Item = (&str, u32)> {
        self.adapters.iter().flat_map(|adapter| self.depths.iter().map(move |depth| (&**adapter, *depth)))
    }

    /// Each combination's results are in a file of its number.
    fn script(&self) -> String {
        let bench = |(number, (adapter, depth))| {
            format!(
                "./paradisk bench --engine kvm --adapter {adapter} --disk {DISK} --queue-depth {depth} --block-size {BLOCK_SIZE} \
                 --duration {DURATION} --runs 1 --json /out/{number} || exit 1\n"
            )
        };
        self.combinations().enumerate().map(bench).collect()
    }
}

/// A line of the plugin: all counters at a mark, or at the end of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
struct Counters {
    /// None at the end.
    mark: Option<u8>,
    host_user: u64,
    host_kernel: u64,
    guest_user: u64,
    guest_kernel: u64,
    vmruns: u64,
}

/// The counters at the begin and the end of each job.
fn jobs(counts: &str) -> Result<Vec<[Counters; 2]>, Box<dyn Error>> {
    let lines = counts.lines().map(serde_json::from_str).collect::<Result<Vec<Counters>, _>>()?;
    let marks: Vec<_> = lines.into_iter().filter(|line| line.mark.is_some()).collect();
    let mut jobs = Vec::new();
    for pair in marks.chunks(2) {
        match pair {
            [begin, end] if [begin.mark, end.mark] == MARKS.map(Some) => jobs.push([*begin, *end]),
            _ => return Err(format!("marks that are no begin and end: {pair:?}").into()),
        }
    }
    Ok(jobs)
}

/// Measure, print a table, and write JSON where that is asked for.
///
/// # Errors
/// The options make no sense, a package is not to be had, or a run failed.
pub(crate) fn run(args: &[&str]) -> Result<(), Box<dyn Error>> {
    let options = Options::parse(args)?;
    let results = tempfile::tempdir()?;
    let job = HostJob {
        script: options.script(),
        files: KvmHost::stock_guest()?,
        cpus: 1,
        clock: Clock::Instructions,
        memory: MEMORY,
        timeout: TIMEOUT,
    };
    let ended = KvmHost::prepare()?.run(&job, results.path())?;
    if ended.status != 0 {
        return Err(format!("bench failed:\n{}", ended.console).into());
    }
    let jobs = jobs(&ended.counts)?;
    let combinations = options.combinations().count();
    if jobs.is_empty() || !jobs.len().is_multiple_of(combinations) {
        return Err(format!("{} jobs for {combinations} combinations", jobs.len()).into());
    }
    let mut rows = Vec::new();
    println!("adapter      depth    total  guest user  guest kernel  host user  host kernel  exits  irqs");
    for (number, jobs) in jobs.chunks(jobs.len() / combinations).enumerate() {
        let path = results.path().join(number.to_string());
        let document: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let [.., [begin, end]] = jobs else { return Err("no job".into()) };
        rows.push(row(&document, begin, end)?);
        print_row(rows.last().unwrap_or(&Value::Null));
    }
    if let Some(path) = options.json {
        fs::write(&path, format!("{:#}\n", json!({ "schema": 1, "results": rows })))?;
    }
    Ok(())
}

/// A result, of the document of one combination.
fn row(document: &Value, begin: &Counters, end: &Counters) -> Result<Value, String> {
    let results = document["results"].as_array().map(Vec::as_slice).unwrap_or_default();
    let result = results.iter().find(|result| result["engine"] == "kvm").ok_or("bench measured nothing")?;
    let accesses = result["accesses"].as_u64().filter(|number| *number > 0).ok_or("bench made no access")?;
    let each = |of: fn(&Counters) -> u64| (of(end) - of(begin)) as f64 / accesses as f64;
    Ok(json!({
        "adapter": result["adapter"],
        "disk": DISK,
        "guest": "baremetal",
        "vmm": "paradisk",
        "block_size": BLOCK_SIZE,
        "queue_depth": result["queue_depth"],
        "accesses": accesses,
        "instructions_per_io": {
            "total": each(|at| at.host_user + at.host_kernel + at.guest_user + at.guest_kernel),
            "guest_user": each(|at| at.guest_user),
            "guest_kernel": each(|at| at.guest_kernel),
            "host_user": each(|at| at.host_user),
            "host_kernel": each(|at| at.host_kernel),
        },
        "exits_per_io": each(|at| at.vmruns),
        "interrupts_per_io": result["interrupts_per_io"],
    }))
}

fn print_row(row: &Value) {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let each = |name: &str| number(&row["instructions_per_io"][name]);
    println!(
        "{:<12} {:>5} {:>8.0} {:>11.0} {:>13.0} {:>10.0} {:>12.0} {:>6.3} {:>5.3}",
        row["adapter"].as_str().unwrap_or_default(),
        row["queue_depth"],
        each("total"),
        each("guest_user"),
        each("guest_kernel"),
        each("host_user"),
        each("host_kernel"),
        number(&row["exits_per_io"]),
        number(&row["interrupts_per_io"]),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: &str = r#"{"mark": 60, "host_user": 1, "host_kernel": 2, "guest_user": 3, "guest_kernel": 4, "vmruns": 5}
{"mark": 62, "host_user": 101, "host_kernel": 202, "guest_user": 303, "guest_kernel": 4, "vmruns": 25}
{"end": 0, "host_user": 900, "host_kernel": 900, "guest_user": 900, "guest_kernel": 900, "vmruns": 90}
"#;

    #[test]
    fn counts_over_accesses() {
        let jobs = jobs(COUNTS).unwrap();
        let [[begin, end]] = &jobs[..] else { panic!("{jobs:?}") };
        let native = json!({"engine": "native", "accesses": 7});
        let result = json!({"engine": "kvm", "adapter": "lsi", "queue_depth": 8, "accesses": 10, "interrupts_per_io": 0.5});
        let row = row(&json!({"results": [native, result]}), begin, end).unwrap();
        let [total, user] = ["total", "guest_user"].map(|name| row["instructions_per_io"][name].as_f64());
        assert_eq!((total, user, row["exits_per_io"].as_f64()), (Some(60.0), Some(30.0), Some(2.0)));
        assert_eq!((&row["adapter"], &row["queue_depth"]), (&json!("lsi"), &json!(8)));
    }

    #[test]
    fn marks_come_in_pairs() {
        let [begin, end, _] = COUNTS.lines().collect::<Vec<_>>()[..] else { panic!() };
        assert_eq!(jobs(&format!("{begin}\n{end}\n{begin}\n{end}\n")).unwrap().len(), 2);
        for wrong in [begin.to_owned(), format!("{end}\n{begin}\n"), format!("{begin}\n{begin}\n")] {
            assert!(jobs(&wrong).unwrap_err().to_string().contains("no begin and end"));
        }
    }

    #[test]
    fn options_are_checked() {
        let options =
            Options::parse(&["--adapter", "lsi,pvscsi", "--queue-depth", "1,4", "--guest", "baremetal"])
                .unwrap();
        let all: Vec<_> = options.combinations().collect();
        assert_eq!(all, [("lsi", 1), ("lsi", 4), ("pvscsi", 1), ("pvscsi", 4)]);
        assert!(options.script().contains("--adapter pvscsi --disk null=64M --queue-depth 4 "));
        for wrong in [
            &["--guest", "linux"][..],
            &["--queue-depth", "x"],
            &["--adapter", "a;b"],
            &["--json"],
            &["--what", "1"],
        ] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
