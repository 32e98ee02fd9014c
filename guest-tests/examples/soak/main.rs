//! A soak: servers and adapters under load for a long time, with clients and servers that are killed, resets, disks that grow, hot-plug, a
//! full host, and a host whose disk fails. What is written is verified; memory, descriptors and threads of the processes that live on must
//! not grow.
//!
//! `cargo xtask soak`, or `soak --paradisk FILE [--seconds N] [--load NAME]`. Exit status 1: data were wrong, something grew, failed or hangs.

#[path = "../../../serve/tests/vfio_user/client.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod client;
mod contested;
mod guests;
mod images;
mod kvm;
mod load;
mod loads;
#[path = "../../../disk-formats/tests/common/loop_device.rs"]
mod loop_device;
mod nbd;
#[path = "../../../serve/tests/nbd/client.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod nbd_client;
mod pattern;
mod sample;
mod server;
mod tmpfs;
mod vfio;
mod vhost;
#[path = "../../../serve/tests/vhost_user_blk/client.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod vhost_client;
#[path = "../../../serve/tests/vfio_user/vmm.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod vmm;
mod watch;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use loads::Make;
use sample::{Growth, Series};

/// A load whose cycle takes longer than this hangs. A cycle takes seconds, on a busy machine some more.
const CYCLE_MOST: Duration = Duration::from_secs(600);

/// How a load ended.
struct Outcome {
    name: String,
    cycles: u64,
    verified: u64,
    events: String,
    series: Series,
    failure: Option<String>,
}

/// When a load's cycle began, in milliseconds since the start; 0: it has ended.
type Beat = Arc<AtomicU64>;

fn drive(name: String, make: Make, until: Instant, begin: Instant, beat: &Beat) -> Outcome {
    let mut outcome = Outcome {
        name,
        cycles: 0,
        verified: 0,
        events: String::new(),
        series: Series::default(),
        failure: None,
    };
    let stamp = || beat.store(begin.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    stamp();
    let run = || {
        let mut load = make();
        // At least one cycle, however short the soak is and however long the start takes.
        while outcome.cycles == 0 || Instant::now() < until {
            stamp();
            outcome.verified += load.cycle(outcome.cycles);
            outcome.cycles += 1;
            if let Some(process) = load.process() {
                outcome.series.take(process);
            }
            outcome.events = load.events();
        }
    };
    let ended = catch_unwind(AssertUnwindSafe(run));
    beat.store(0, Ordering::Relaxed);
    if let Err(panic) = ended {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        outcome.failure = Some(text.unwrap_or_else(|| "a panic".to_owned()));
    } else if let Growth::Grown(what) = outcome.series.growth() {
        outcome.failure = Some(what);
    }
    outcome
}

fn table(outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "\n{:<22} {:>7} {:>10} {:>21} {:>11} {:>11}  {}\n",
        "load", "cycles", "verified", "memory, MiB", "descriptors", "threads", "result"
    );
    for outcome in outcomes {
        let (memory, descriptors, threads) = outcome.series.ends();
        let result = match (&outcome.failure, outcome.series.growth()) {
            (Some(_), _) => "FAILED",
            (None, Growth::NotJudged) => "good, growth not judged: run too short;",
            (None, _) => "good",
        };
        let verified = format!("{} MiB", outcome.verified >> 20);
        text += &format!(
            "{:<22} {:>7} {verified:>10} {memory:>21} {descriptors:>11} {threads:>11}  {result} {}\n",
            outcome.name, outcome.cycles, outcome.events
        );
    }
    for Outcome { name, failure, .. } in outcomes {
        text.extend(failure.iter().map(|failure| format!("\nFAILED: {name}: {failure}\n")));
    }
    text
}

/// Run all loads, or one.
fn run(paradisk: &Path, time: Duration, only: Option<&str>) -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let (begin, until) = (Instant::now(), Instant::now() + time);
    let mut running = Vec::new();
    let all = loads::all(paradisk, folder.path());
    let names: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
    for (name, make) in all {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let beat = Beat::default();
        let theirs = Arc::clone(&beat);
        let called = name.clone();
        running.push((name, beat, thread::spawn(move || drive(called, make, until, begin, &theirs))));
    }
    if running.is_empty() {
        eprintln!("error: --load {}: not one of: {}", only.unwrap_or_default(), names.join(", "));
        return ExitCode::from(2);
    }
    let mut hangs = Vec::new();
    while running.iter().any(|(_, _, thread)| !thread.is_finished()) && hangs.is_empty() {
        thread::sleep(Duration::from_millis(200));
        let now = begin.elapsed().as_millis() as u64;
        for (name, beat, _) in &running {
            let began = beat.load(Ordering::Relaxed);
            if began > 0 && now.saturating_sub(began) > CYCLE_MOST.as_millis() as u64 {
                hangs.push(name.clone());
            }
        }
    }
    let finished = running.into_iter().filter(|(_, _, thread)| thread.is_finished());
    let outcomes: Vec<Outcome> = finished.map(|(_, _, thread)| thread.join().unwrap()).collect();
    println!("{}", table(&outcomes));
    for name in &hangs {
        println!("FAILED: {name}: no cycle ended for {} s", CYCLE_MOST.as_secs());
    }
    println!(
        "{} s; memory may grow by {}, descriptors and threads not at all; the soak itself had {:.0} MiB at most",
        begin.elapsed().as_secs(),
        sample::BOUND,
        sample::own_peak()
    );
    let good = hangs.is_empty() && outcomes.iter().all(|outcome| outcome.failure.is_none());
    if !hangs.is_empty() {
        // The servers that a load has started would outlive this process.
        server::kill_all();
        println!(
            "kept for inspection: {}; unmount file systems below it, and detach loop devices of its files",
            folder.keep().display()
        );
        std::process::exit(1);
    }
    if !good {
        println!("images and errors of servers: {}", folder.keep().display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

const USAGE: &str = "usage: soak --paradisk FILE [--seconds N] [--load NAME]";

/// The value of each option.
fn parse<'a>(args: &[&'a str]) -> Result<(&'a str, u64, Option<&'a str>), String> {
    let (mut paradisk, mut seconds, mut only) = (None, 60, None);
    for pair in args.chunks(2) {
        match *pair {
            ["--paradisk", path] => paradisk = Some(path),
            ["--seconds", number] => {
                seconds =
                    number.parse::<u64>().map_err(|error| format!("error: --seconds {number}: {error}"))?;
            }
            ["--load", name] => only = Some(name),
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok((paradisk.ok_or(USAGE)?, seconds, only))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["guests"] => guests::child(),
        ["kvm"] => kvm::child(),
        ["vfio-guest", ref order @ ..] => vfio::child(order),
        ref args => match parse(args) {
            Ok((paradisk, seconds, only)) => run(Path::new(paradisk), Duration::from_secs(seconds), only),
            Err(text) => {
                eprintln!("{text}");
                ExitCode::from(2)
            }
        },
    }
}
