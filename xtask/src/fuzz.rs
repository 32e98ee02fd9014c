//! `cargo xtask fuzz`: the targets in `fuzz/targets`, guided by coverage, on the stable toolchain.
//!
//! The corpus of a target stays in the cache, outside of the checkout, and is minimised after each long run. `fuzz/seeds` has the inputs
//! that the tests of `fuzz/targets` replay: `--keep` selects them from the corpus by coverage.

mod build;
mod keep;
mod log;
mod target;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use self::build::Built;
use self::target::{LONG_TIME, Outcome};
use crate::command;

const USAGE: &str = "usage: cargo xtask fuzz [TARGET] [--minutes N] [--jobs N] [--keep] [FILE...]\n\n  \
    TARGET     one of fuzz/targets/src; without it, all of them in turns\n  \
    --minutes  for each target (default 1)\n  \
    --jobs     targets at a time (default 1)\n  \
    --keep     then writes a selection of the corpus, by coverage, into fuzz/seeds\n  \
    FILE       inputs of TARGET, which are run once each: replays a finding\n\n\
    Exit status 1: a target has found something. Corpora and findings are in ~/.cache/paradisk/fuzz.\n";

/// Targets at a time in [`check`].
const CHECK_JOBS: usize = 2;

#[derive(Debug, PartialEq, Eq)]
struct Options {
    target: Option<String>,
    time: Duration,
    jobs: usize,
    /// Write a selection of each corpus into `fuzz/seeds`.
    keep: bool,
    /// Run these inputs and nothing else.
    replay: Vec<PathBuf>,
}

impl Options {
    fn parse(args: &[&str]) -> Result<Self, String> {
        let mut options = Self { target: None, time: LONG_TIME, jobs: 1, keep: false, replay: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut number = |most: u32| {
                let value = args.next().and_then(|value| value.parse().ok());
                value.filter(|value| (1..=most).contains(value)).ok_or(format!("{arg}: expected 1 to {most}"))
            };
            match *arg {
                "--minutes" => options.time = Duration::from_secs(60 * u64::from(number(24 * 60)?)),
                "--jobs" => options.jobs = number(256)? as usize,
                "--keep" => options.keep = true,
                option if option.starts_with('-') => return Err(format!("{option}: no such option")),
                name if options.target.is_none() => options.target = Some(name.to_owned()),
                file => options.replay.push(file.into()),
            }
        }
        if options.keep && !options.replay.is_empty() {
            return Err("--keep: not with FILE".to_owned());
        }
        Ok(options)
    }
}

/// What `cargo xtask fuzz` does, called in the folder `from`. True: nothing was found.
///
/// # Errors
/// Wrong arguments; a target cannot be built or run.
pub(crate) fn run(args: &[&str], from: &Path) -> Result<bool, String> {
    if args.iter().any(|arg| ["--help", "-h"].contains(arg)) {
        print!("{USAGE}");
        return Ok(true);
    }
    let options = Options::parse(args).map_err(|error| format!("{error}\n\n{USAGE}"))?;
    let all = targets_in(Path::new(""))?;
    let chosen = match &options.target {
        None => all,
        Some(name) if all.contains(name) => vec![name.clone()],
        Some(name) => return Err(format!("no target {name}: {}", all.join(", "))),
    };
    if let Some(reason) = build::obstacle()? {
        return Err(reason);
    }
    let built = build::build()?;
    if let ([name], false) = (&chosen[..], options.replay.is_empty()) {
        let files: Vec<PathBuf> = options.replay.iter().map(|file| from.join(file)).collect();
        return target::replay(&built, name, &files);
    }
    let outcomes = all_of(&built, &chosen, &options)?;
    print!("{}", table(&outcomes));
    Ok(outcomes.iter().all(|outcome| outcome.finding.is_none()))
}

/// Whether the lock file of the fuzzer, which is a workspace of its own, has what its manifests ask for.
///
/// # Errors
/// It has not.
pub(crate) fn check_lock_file() -> Result<Option<String>, String> {
    let args = ["metadata", "--quiet", "--locked", "--format-version", "1"];
    let mut metadata = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    metadata.args(args).current_dir("fuzz").stdout(Stdio::null());
    command::run(&mut metadata, "cargo metadata of fuzz").map(|()| None)
}

/// Run each target for the time `each`; the reason if this machine cannot.
///
/// # Errors
/// The fuzzer does not build, or a target has found something.
pub(crate) fn check(each: Duration) -> Result<Option<String>, String> {
    if let Some(reason) = build::obstacle()? {
        return Ok(Some(reason));
    }
    let options = Options { target: None, time: each, jobs: CHECK_JOBS, keep: false, replay: Vec::new() };
    let outcomes = all_of(&build::build()?, &targets_in(Path::new(""))?, &options)?;
    print!("{}", table(&outcomes));
    let found: Vec<&str> =
        outcomes.iter().filter(|outcome| outcome.finding.is_some()).map(|outcome| &*outcome.name).collect();
    if found.is_empty() { Ok(None) } else { Err(format!("findings of {}", found.join(", "))) }
}

/// The names of the targets: those of their source files, as a test of `fuzz/targets` asserts.
fn targets_in(workspace: &Path) -> Result<Vec<String>, String> {
    let folder = workspace.join("fuzz/targets/src");
    let error = |error| format!("{}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.retain(|name| name != "lib");
    names.sort();
    Ok(names)
}

/// Run targets as the options say; the outcomes in the order of the names.
fn all_of(built: &Built, names: &[String], options: &Options) -> Result<Vec<Outcome>, String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(name) = names.get(index) else { return Ok(done) };
            let outcome = target::run(built, name, options.time)?;
            println!("{}", outcome.line());
            if options.keep && outcome.finding.is_none() {
                println!("{name}: {}", keep::keep(built, name)?);
            }
            done.push((index, outcome));
        }
    };
    let finished: Vec<Result<Vec<(usize, Outcome)>, String>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs.min(names.len())).map(|_| scope.spawn(work)).collect();
        let panicked = |_| Err("a thread of the fuzzer has panicked".to_owned());
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect()
    });
    let mut outcomes: Vec<_> =
        finished.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    outcomes.sort_by_key(|(index, _)| *index);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

fn table(outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "\n{:<14} {:>8} {:>12} {:>9} {:>9} {:>11} {:>7}  findings\n",
        "target", "seconds", "executions", "a second", "coverage", "new inputs", "corpus"
    );
    for Outcome { name, seconds, stats, corpus, finding } in outcomes {
        let log::Stats { executions, a_second, coverage, new_inputs, .. } = stats;
        let found = if finding.is_some() { "FOUND" } else { "none" };
        text += &format!(
            "{name:<14} {seconds:>8} {executions:>12} {a_second:>9} {coverage:>9} {new_inputs:>11} {corpus:>7}  {found}\n"
        );
    }
    for outcome in outcomes {
        text.extend(outcome.finding.iter().map(|finding| format!("\n{}: {finding}\n", outcome.name)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let options = Options::parse(&["nbd", "--minutes", "3", "--jobs", "2"]).unwrap();
        assert_eq!((options.target.as_deref(), options.time.as_secs(), options.jobs), (Some("nbd"), 180, 2));
        assert!(!options.keep && Options::parse(&["--keep"]).unwrap().keep);
        let options = Options::parse(&["nbd", "a", "b"]).unwrap();
        assert_eq!(options.replay, [PathBuf::from("a"), PathBuf::from("b")]);
        for wrong in [
            &["--minutes"][..],
            &["--minutes", "0"],
            &["--jobs", "x"],
            &["--colour"],
            &["nbd", "a", "--keep"],
        ] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn targets_are_named_by_their_files() {
        // The test runs in the folder of the package.
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let names = targets_in(&folder).unwrap();
        assert!(names.len() > 15 && names.contains(&"vhdx_log".to_owned()), "{names:?}");
        assert!(!names.iter().any(|name| ["lib", "common"].contains(&&**name)), "{names:?}");
    }
}
