//! One target: run, replayed, its corpus minimised.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgid, kill_process_group};

use super::build::Built;
use super::log::Stats;

/// Time for each target by default, and in continuous integration. Longer runs minimise the corpus afterwards.
pub(super) const LONG_TIME: Duration = Duration::from_secs(60);
/// Seconds for one input. On a busy machine, an input takes some milliseconds.
const INPUT_TIMEOUT: &str = "-timeout=20";
/// Maximum length in bytes of an input that is a script of accesses: enough for some hundred. Longer ones only make each execution slow.
const SCRIPT: u32 = 4096;
/// Maximum length in bytes of an input that is a file.
const WHOLE_FILE: u32 = 65_536;
const FILES: [&str; 2] = ["boot", "vhd"];
/// A corpus of more inputs is minimised after any run, if it has grown enough: see [`is_due`].
const MANY: usize = 1500;
/// Time for reading the corpus, on top of that for the run. A target that takes longer hangs.
const GRACE: Duration = Duration::from_secs(180);
/// Time for a minimisation, which runs each input of the corpus at least once.
pub(super) const MERGE: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(100);

/// How a run ended.
pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) seconds: u64,
    pub(super) stats: Stats,
    /// Inputs that are kept.
    pub(super) corpus: usize,
    /// What was found, and how to see it again.
    pub(super) finding: Option<String>,
}

impl Outcome {
    pub(super) fn line(&self) -> String {
        let Stats { executions, a_second, coverage, new_inputs, .. } = &self.stats;
        let found = if self.finding.is_some() { ", FOUND something" } else { "" };
        format!(
            "{}: {executions} executions in {} s, {a_second} a second, coverage {coverage}, {new_inputs} new inputs{found}",
            self.name, self.seconds
        )
    }
}

/// The target's folder in the cache.
pub(super) struct Home(PathBuf);

impl Home {
    pub(super) fn new(name: &str) -> Result<Self, String> {
        let cache = guest_linux::cache().map_err(|error| error.to_string())?;
        let home = Self(cache.join("fuzz").join(name));
        for folder in [home.corpus(), home.0.join("findings")] {
            fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        Ok(home)
    }

    pub(super) fn corpus(&self) -> PathBuf {
        self.0.join("corpus")
    }

    fn count(&self) -> usize {
        fs::read_dir(self.corpus()).map_or(0, Iterator::count)
    }

    /// Has the number of inputs after the last minimisation.
    fn minimised(&self) -> PathBuf {
        self.0.join("minimised")
    }

    /// Inputs after the last minimisation; 0: there was none.
    fn last_count(&self) -> usize {
        fs::read_to_string(self.minimised()).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

/// Whether to minimise a corpus of `inputs` after a run of `time` that has added `new` ones; the last minimisation left `last`.
///
/// Even the smallest corpus of a target may have more than [`MANY`] inputs. So that not every short run minimises this corpus, a
/// quarter of the inputs must have been added since the last minimisation.
fn is_due(time: Duration, new: u64, inputs: usize, last: usize) -> bool {
    time > LONG_TIME && new > 0 || inputs > MANY.max(last + last / 4)
}

/// The committed inputs of a target.
pub(super) fn seeds(name: &str) -> PathBuf {
    Path::new("fuzz/seeds").join(name)
}

/// The fuzzer with a target, and with the options that all runs have.
pub(super) fn command(built: &Built, name: &str) -> Command {
    let mut command = built.target(name);
    let longest = if FILES.contains(&name) { WHOLE_FILE } else { SCRIPT };
    command.args([INPUT_TIMEOUT, "-len_control=0", &format!("-max_len={longest}")]).stdin(Stdio::null());
    command
}

/// Run a target for some time.
///
/// # Errors
/// It does not start, or the cache cannot be written.
pub(super) fn run(built: &Built, name: &str, time: Duration) -> Result<Outcome, String> {
    let home = Home::new(name)?;
    let log = home.0.join("log");
    let error = |error: io::Error| format!("{name}: {error}");
    let mut command = command(built, name);
    command.arg(format!("-max_total_time={}", time.as_secs())).arg("-print_final_stats=1");
    command.arg(format!("-artifact_prefix={}/", home.0.join("findings").display()));
    command.arg(home.corpus());
    let seeds = seeds(name);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    let output = File::create(&log).map_err(error)?;
    command.stdout(output.try_clone().map_err(error)?).stderr(output);
    let begin = Instant::now();
    let ended = wait(command.spawn().map_err(error)?, time + GRACE).map_err(error)?;
    let seconds = begin.elapsed().as_secs();
    let stats = Stats::parse(&String::from_utf8_lossy(&fs::read(&log).map_err(error)?));
    let finding = match ended {
        Some(status) if status.success() => None,
        Some(status) => Some(finding(name, &stats, &format!("{status}"), &log)),
        None => Some(finding(name, &stats, "it hangs", &log)),
    };
    let inputs = home.count();
    if finding.is_none()
        && is_due(time, stats.new_inputs, inputs, home.last_count())
        && !minimise(built, name, &home, MERGE).map_err(error)?
    {
        println!("{name}: its {inputs} inputs could not be minimised within {} s", MERGE.as_secs());
    }
    Ok(Outcome { name: name.to_owned(), seconds, stats, corpus: home.count(), finding })
}

fn finding(name: &str, stats: &Stats, how: &str, log: &Path) -> String {
    let reason = stats.failure.join("\n    ");
    match &stats.artefact {
        Some(artefact) => format!("{how}\n    {reason}\n  replay: cargo xtask fuzz {name} {artefact}"),
        None => format!("{how}\n    {reason}\n  its output: {}", log.display()),
    }
}

/// Run inputs once. True: none fails.
///
/// # Errors
/// The target does not start.
pub(super) fn replay(built: &Built, name: &str, files: &[PathBuf]) -> Result<bool, String> {
    let status = command(built, name).args(files).status();
    Ok(status.map_err(|error| format!("{name}: {error}"))?.success())
}

/// Keep the inputs that reach code which no smaller input reaches. False: the merge failed or took longer than `most`, and all inputs stay.
fn minimise(built: &Built, name: &str, home: &Home, most: Duration) -> io::Result<bool> {
    let [small, replaced] = ["smaller", "replaced"].map(|name| home.0.join(name));
    // Left behind by a minimisation that was interrupted.
    for folder in [&small, &replaced].into_iter().filter(|folder| folder.exists()) {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir(&small)?;
    let mut command = command(built, name);
    command.arg("-merge=1").arg(&small).arg(home.corpus()).stdout(Stdio::null()).stderr(Stdio::null());
    // The program merges in a process of its own, which must end with it.
    let ended = wait(command.process_group(0).spawn()?, most)?;
    let merged = ended.is_some_and(|status| status.success()) && fs::read_dir(&small)?.next().is_some();
    if merged {
        fs::rename(home.corpus(), &replaced)?;
        fs::rename(&small, home.corpus())?;
        fs::remove_dir_all(&replaced)?;
    } else {
        fs::remove_dir_all(&small)?;
    }
    fs::write(home.minimised(), home.count().to_string())?;
    Ok(merged)
}

/// Wait for a process; `None`: it was killed, since it took too long. With the leader of a process group, the group is killed.
pub(super) fn wait(mut child: Child, most: Duration) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    while begin.elapsed() < most {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(POLL);
    }
    let pid = Pid::from_child(&child);
    if getpgid(Some(pid)) == Ok(pid) {
        kill_process_group(pid, Signal::KILL)?;
    } else {
        child.kill()?;
    }
    child.wait()?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_is_minimised_after_long_runs_and_when_it_has_grown() {
        let (short, long) = (LONG_TIME, 2 * LONG_TIME);
        for (time, new, inputs, last, expected) in [
            // Long runs that have found something.
            (long, 1, 10, 10, true),
            (long, 0, 10, 0, false),
            (short, 1, 10, 0, false),
            // A corpus that was never minimised.
            (short, 1, MANY, 0, false),
            (short, 0, MANY + 1, 0, true),
            (long, 0, MANY + 1, 0, true),
            // One whose smallest size is above the limit.
            (short, 9, 4000, 4000, false),
            (short, 9, 5000, 4000, false),
            (short, 9, 5001, 4000, true),
            (long, 9, 4001, 4000, true),
            // A quarter more than few inputs.
            (short, 9, 1000, 100, false),
        ] {
            let due = is_due(time, new, inputs, last);
            assert_eq!(due, expected, "{time:?}, {new} new of {inputs}, {last} before");
        }
    }

    /// A target with five inputs in its corpus that merges by this script: `$1` is the empty corpus, `$2` the one with the inputs.
    fn home(merge: &str) -> (tempfile::TempDir, Built, Home) {
        let folder = tempfile::tempdir().unwrap();
        let home = Home(folder.path().join("home"));
        fs::create_dir_all(home.corpus()).unwrap();
        for name in ["a", "b", "c", "d", "e"] {
            fs::write(home.corpus().join(name), name).unwrap();
        }
        let script = format!("#!/bin/sh\n[ \"$4\" = -merge=1 ] || exit 9\nshift 4\n{merge}\n");
        // Another process writes the program. If this process had the file open for writing, a child of another test could have the
        // descriptor while the program is executed, which then fails with ETXTBSY.
        let mut write = Command::new("sh");
        write.args(["-c", "printf %s \"$1\" > \"$0\" && chmod +x \"$0\""]);
        let target = folder.path().join("target");
        assert!(write.arg(target).arg(script).status().unwrap().success());
        let built = Built::from_program(folder.path().join("target"));
        (folder, built, home)
    }

    fn corpus(home: &Home) -> Vec<String> {
        let files = fs::read_dir(home.corpus()).unwrap();
        let mut files: Vec<_> = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
        files.sort();
        files
    }

    #[test]
    fn a_merge_that_succeeds_replaces_the_corpus() {
        let (_folder, built, home) = home("cp \"$2\"/b \"$2\"/d \"$1\"");
        assert_eq!(home.last_count(), 0);
        // One that was interrupted has left these.
        for left in ["smaller", "replaced"] {
            fs::create_dir(home.0.join(left)).unwrap();
            fs::write(home.0.join(left).join("x"), "x").unwrap();
        }
        assert!(minimise(&built, "target", &home, MERGE).unwrap());
        assert_eq!((corpus(&home), home.last_count()), (vec!["b".to_owned(), "d".to_owned()], 2));
        let left = fs::read_dir(&home.0).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left.into_iter().all(|name| name == "corpus" || name == "minimised"));
    }

    #[test]
    fn all_inputs_stay_after_a_merge_that_fails_or_takes_too_long() {
        for (merge, most) in [
            ("cp \"$2\"/b \"$1\"; exit 1", MERGE),
            // Nothing is kept.
            ("exit 0", MERGE),
            ("cp \"$2\"/b \"$1\"; exec sleep 600", Duration::from_millis(500)),
        ] {
            let (_folder, built, home) = home(merge);
            assert!(!minimise(&built, "target", &home, most).unwrap(), "{merge}");
            assert_eq!((corpus(&home).concat().as_str(), home.last_count()), ("abcde", 5), "{merge}");
        }
    }

    #[test]
    fn a_merge_that_takes_too_long_is_killed_with_its_process() {
        let (_folder, built, home) = home("sleep 600 & echo $! > \"$2\"/../pid; wait");
        assert!(!minimise(&built, "target", &home, Duration::from_secs(1)).unwrap());
        // A busy machine may not have started it.
        let Ok(pid) = fs::read_to_string(home.0.join("pid")) else { return };
        let begin = Instant::now();
        // Ended, and perhaps not yet reaped by its new parent.
        while let Ok(status) = fs::read_to_string(format!("/proc/{}/status", pid.trim()))
            && !status.contains("State:\tZ")
        {
            assert!(begin.elapsed() < Duration::from_secs(60), "{status}");
            thread::yield_now();
        }
    }

    #[test]
    fn a_process_that_does_not_end_is_killed() {
        let start = |time: &str| Command::new("sleep").arg(time).spawn().unwrap();
        assert!(wait(start("0"), Duration::from_secs(60)).unwrap().unwrap().success());
        assert!(wait(start("600"), Duration::from_millis(200)).unwrap().is_none());
    }

    #[test]
    fn a_finding_says_how_to_see_it_again() {
        let stats = Stats {
            artefact: Some("/c/crash-1".into()),
            failure: vec!["panicked".into()],
            ..Stats::default()
        };
        let text = finding("nbd", &stats, "exit status: 77", Path::new("log"));
        assert!(
            text.contains("panicked") && text.ends_with("replay: cargo xtask fuzz nbd /c/crash-1"),
            "{text}"
        );
    }
}
