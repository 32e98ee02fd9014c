//! Each target with the inputs in `fuzz/seeds` and those that the fuzzer has left in the cache. A failure names the input.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process;
#[expect(clippy::disallowed_types, reason = "a test")]
use std::sync::Mutex;
use std::sync::{Once, PoisonError};
use std::time::{Duration, Instant};

use paradisk_fuzz_targets::{TARGETS, for_targets};

/// After this time a target starts no further input of the cache. Seeds are all run.
const TIME: Duration = Duration::from_secs(4);

/// The input that each target is running.
#[expect(clippy::disallowed_types, reason = "a test")]
static RUNNING: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Whether this thread runs a test: its panics unwind.
    static IN_TEST: Cell<bool> = const { Cell::new(false) };
}

fn seeds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("seeds")
}

/// What a folder has, in the order of names; nothing if it does not exist.
fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => panic!("{}: {error}", folder.display()),
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

fn command(target: &str, input: &Path) -> String {
    format!("cargo xtask fuzz {target} {}", input.display())
}

/// From now on, a panic of a thread that runs no test, such as a server's, ends the process: a test might wait for that thread, or not
/// notice the panic.
fn begin_test() {
    static HOOK: Once = Once::new();
    IN_TEST.set(true);
    HOOK.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IN_TEST.get() {
                return hook(info);
            }
            let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            let inputs: Vec<_> = running.iter().map(|(target, input)| command(target, input)).collect();
            // Not through `eprintln!`, whose output the harness would hold back.
            let _ = writeln!(io::stderr(), "{info}\nthe input is one of:\n  {}", inputs.join("\n  "));
            process::abort();
        }));
    });
}

fn replay(target: &'static str) {
    begin_test();
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target");
    let run_file = |input: &Path| {
        let bytes = fs::read(input).unwrap_or_else(|error| panic!("{}: {error}", input.display()));
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).insert(target, input.to_owned());
        if panic::catch_unwind(AssertUnwindSafe(|| run(&bytes))).is_err() {
            panic!("{target} fails with {}\nagain: {}", input.display(), command(target, input));
        }
    };
    let begin = Instant::now();
    let seeds = listed(&seeds().join(target));
    assert!(!seeds.is_empty(), "fuzz/seeds/{target} has no inputs: cargo xtask fuzz {target} --keep");
    seeds.iter().for_each(|input| run_file(input));
    let after_seeds = begin.elapsed();
    let cached = guest_linux::cache().map(|cache| listed(&cache.join("fuzz").join(target).join("corpus")));
    let cached = cached.unwrap_or_default();
    let run = cached.iter().take_while(|_| begin.elapsed() < TIME).map(|input| run_file(input)).count();
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).remove(target);
    println!(
        "{target}: {} seeds in {after_seeds:.1?}, {run} inputs of the cache, {} left out",
        seeds.len(),
        cached.len() - run
    );
}

macro_rules! replays {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target));
        })*
    };
}
for_targets!(replays);

/// `cargo xtask fuzz` takes the names of targets from the source files.
#[test]
fn files_and_seeds_are_of_targets() {
    begin_test();
    let stems = |folder: &Path| -> BTreeSet<String> {
        let stem = |path: &PathBuf| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        listed(folder).iter().filter_map(stem).collect()
    };
    let names: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut sources = stems(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    for other in ["common", "lib"] {
        assert!(sources.remove(other), "{other}");
    }
    assert_eq!(sources, names);
    assert_eq!(stems(&seeds()), names);
}
