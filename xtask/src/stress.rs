//! `cargo xtask stress`: tests beside artificial load. A test that fails only there passes or fails by luck elsewhere.

use std::collections::BTreeMap;
use std::io::{self, Seek, SeekFrom, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use std::{env, fs, hint, thread};

use crate::nextest;
use crate::summary::Report;

const USAGE: &str = "usage: cargo xtask stress [NAME] [--times N] [--busy N] [--package NAME]\n\n  \
    NAME       tests whose names contain it (default: all of `cargo xtask test`)\n  \
    --times    how often they run (default 5)\n  \
    --busy     processes that compute without end (default 4); beside them, one of lowest priority, one that writes and\n             \
               flushes a file, and one that fills and frees a quarter of the free memory\n  \
    --package  tests of this package alone\n\n\
    Exit status 1: a test has failed.\n";
/// Bytes of the file that is written, and of each write.
const FILE: u64 = 256 << 20;
const WRITE: usize = 1 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;

struct Options<'a> {
    name: Option<&'a str>,
    package: Option<&'a str>,
    times: u32,
    busy: u32,
}

impl<'a> Options<'a> {
    fn parse(args: &[&'a str]) -> Result<Self, String> {
        let mut options = Self { name: None, package: None, times: 5, busy: 4 };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().copied().ok_or(format!("{arg}: a value is missing"));
            let number = |text: &str| text.parse().map_err(|error| format!("{arg} {text}: {error}"));
            match *arg {
                "--times" => options.times = number(value()?)?,
                "--busy" => options.busy = number(value()?)?,
                "--package" => options.package = Some(value()?),
                name if !name.starts_with('-') && options.name.is_none() => options.name = Some(name),
                other => return Err(format!("{other}: no such option")),
            }
        }
        Ok(options)
    }
}

/// A process of the load. It ends with this value.
struct Load(Child);

impl Load {
    fn start(kind: &str) -> Result<Self, String> {
        let program = env::current_exe().map_err(|error| error.to_string())?;
        let mut command = match kind {
            "idle" => Command::new("chrt"),
            _ => Command::new(&program),
        };
        if kind == "idle" {
            command.args(["--idle", "0"]).arg(&program);
        }
        let load = command.args(["load", kind]).stdin(Stdio::piped()).spawn();
        load.map(Self).map_err(|error| format!("load {kind}: {error}"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// # Errors
/// Wrong arguments, or the names of tests that have failed.
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    if args.iter().any(|arg| ["--help", "-h"].contains(arg)) {
        print!("{USAGE}");
        return Ok(());
    }
    let options = Options::parse(args).map_err(|error| format!("{error}\n\n{USAGE}"))?;
    nextest::build(&[])?;
    let kinds = (0..options.busy).map(|_| "cpu").chain(["idle", "disk", "memory"]);
    let load: Vec<Load> = kinds.map(Load::start).collect::<Result<_, _>>()?;
    let (times, begin) = (options.times.to_string(), Instant::now());
    let expression = match (options.package, options.name) {
        (None, None) => "default()".to_owned(),
        (None, Some(name)) => format!("test({name})"),
        (Some(package), None) => format!("package({package})"),
        (Some(package), Some(name)) => format!("package({package}) and test({name})"),
    };
    let mut report = Report::default();
    let ran = nextest::run(&["--stress-count", &times, "-E", &expression], None, &mut report);
    drop(load);
    ran?;
    let seconds = begin.elapsed().as_secs();
    println!("{} tests passed, {} failed, in {seconds} s", report.tests.passed, report.tests.failed.len());
    let failed = failures(&report);
    if failed.is_empty() { Ok(()) } else { Err(failed) }
}

/// A line for each test that has failed: how often, and how it did first.
fn failures(report: &Report) -> String {
    let mut tests: BTreeMap<&str, (usize, &[String])> = BTreeMap::new();
    for (name, output) in &report.tests.failed {
        tests.entry(name).or_insert((0, output)).0 += 1;
    }
    let line = |(name, (times, output)): (&str, (usize, &[String]))| {
        format!("\n{name}: failed {times} times\n{}", output.join("\n"))
    };
    tests.into_iter().map(line).collect()
}

/// The load of a process that [`run`] has started. Ends when that ends.
///
/// # Errors
/// A kind that is unknown, or its file cannot be written.
pub(crate) fn load(kind: &str) -> Result<(), String> {
    let load: fn() -> io::Result<()> = match kind {
        "cpu" | "idle" => compute,
        "disk" => write,
        "memory" => fill,
        _ => return Err(format!("load {kind}: unknown")),
    };
    // The parent holds the other end of standard input, and writes nothing.
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    load().map_err(|error| format!("load {kind}: {error}"))
}

fn compute() -> io::Result<()> {
    loop {
        hint::spin_loop();
    }
}

fn write() -> io::Result<()> {
    let mut file = tempfile::tempfile()?;
    let data = vec![0x5a; WRITE];
    loop {
        let at = file.stream_position()? % FILE;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&data)?;
        file.sync_data()?;
    }
}

fn fill() -> io::Result<()> {
    loop {
        let mut memory = vec![0u8; available() / 4];
        memory.iter_mut().step_by(PAGE).for_each(|page| *page = 1);
        hint::black_box(&memory);
    }
}

/// Bytes of memory that processes can get.
fn available() -> usize {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_fails_twice_is_listed_once() {
        let mut report = Report::default();
        for (name, failed) in [("a", true), ("b", false), ("a", true), ("c", true)] {
            report.test("devices", name, 1.0, failed, "thread panicked");
        }
        let text = failures(&report);
        assert!(
            text.contains("devices a: failed 2 times") && text.contains("devices c: failed 1 times"),
            "{text}"
        );
        assert!(!text.contains("devices b"), "{text}");
    }

    #[test]
    fn memory_is_known() {
        assert!(available() > 1 << 20);
        assert!(load("no such load").is_err());
    }
}
