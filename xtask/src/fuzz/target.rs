//! One target: run, replayed, its corpus minimised.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::build::Built;
use super::log::Stats;

/// Seconds for one input. On a busy machine, an input takes some milliseconds.
const INPUT_TIMEOUT: &str = "-timeout=20";
/// Maximum length in bytes of an input that is a script of accesses: enough for some hundred. Longer ones only make each execution slow.
const SCRIPT: u32 = 4096;
/// Maximum length in bytes of an input that is a file.
const WHOLE_FILE: u32 = 65_536;
const FILES: [&str; 2] = ["boot", "vhd"];
/// Runs of this length or longer minimise the corpus afterwards.
const LONG: Duration = Duration::from_secs(60);
/// A corpus of more inputs is minimised after any run.
const MANY: usize = 5000;
/// Time for reading the corpus, on top of that for the run. A target that takes longer hangs.
const GRACE: Duration = Duration::from_secs(180);
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
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Result<Self, String> {
        let cache = guest_linux::cache().map_err(|error| error.to_string())?;
        let home = Self(cache.join("fuzz").join(name));
        for folder in [home.corpus(), home.0.join("findings")] {
            fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        Ok(home)
    }

    fn corpus(&self) -> PathBuf {
        self.0.join("corpus")
    }

    fn count(&self) -> usize {
        fs::read_dir(self.corpus()).map_or(0, Iterator::count)
    }
}

fn command(built: &Built, name: &str) -> Command {
    let mut command = Command::new(built.binary(name));
    let longest = if FILES.contains(&name) { WHOLE_FILE } else { SCRIPT };
    command.args([INPUT_TIMEOUT, "-len_control=0", &format!("-max_len={longest}")]).stdin(Stdio::null());
    // Keep images in memory: the targets flush them often.
    if Path::new("/dev/shm").is_dir() && std::env::var_os("TMPDIR").is_none() {
        command.env("TMPDIR", "/dev/shm");
    }
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
    let seeds = std::path::absolute(Path::new("fuzz/seeds").join(name)).map_err(error)?;
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
    if finding.is_none() && (time >= LONG && stats.new_inputs > 0 || home.count() > MANY) {
        minimise(built, name, &home).map_err(error)?;
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

/// Keep the inputs that reach code which no smaller input reaches. If the minimisation fails, all inputs stay.
fn minimise(built: &Built, name: &str, home: &Home) -> io::Result<()> {
    let small = home.0.join("smaller");
    if small.exists() {
        fs::remove_dir_all(&small)?;
    }
    fs::create_dir(&small)?;
    let mut command = command(built, name);
    command.arg("-merge=1").arg(&small).arg(home.corpus()).stdout(Stdio::null()).stderr(Stdio::null());
    let ended = wait(command.spawn()?, GRACE)?;
    if ended.is_some_and(|status| status.success()) && fs::read_dir(&small)?.next().is_some() {
        fs::remove_dir_all(home.corpus())?;
        fs::rename(small, home.corpus())
    } else {
        fs::remove_dir_all(small)
    }
}

/// Wait for a process; `None`: it was killed, since it took too long.
fn wait(mut child: Child, most: Duration) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    while begin.elapsed() < most {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(POLL);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

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
