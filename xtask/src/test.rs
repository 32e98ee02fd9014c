//! `cargo xtask test`: its steps in three tiers. All steps of a tier run, also after one has failed, and the last lines say what ran.
//!
//! `--quick` is for the loop of editing and testing. The default decides whether a change lands. `--all` also has what costs hours: it
//! goes on after an interruption, and records its result in [`LAST`].

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use serde::{Deserialize, Serialize};

use crate::command::{cargo, output};
use crate::summary::{self, Report};
use crate::times::{self, Times};
use crate::{api, deb, deny, embedding, exact, fuzz, images, imports, nextest, product, requirements, soak};

/// The revision at which all tests last ran, and how they ended: a line of text, committed with the change or the release.
const LAST: &str = ".ci/last-all";
/// Time for each fuzz target in `--all`: about an hour in total, two at a time.
const FUZZING: Duration = Duration::from_secs(400);
/// Factor in `--all` for tests that have no end of their own.
const EFFORT: u32 = 8;
/// Time of the soak in `--all`, in seconds. By default, each load has a cycle or two.
const SOAK: u64 = 600;
const SHORT_SOAK: u64 = 10;

/// The unit tests that `--quick` leaves out: those that look at thousands of states of a disk or an adapter, half of the time of all.
const SLOW: &str = "test(/crash|fault_tests|random/)";

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Quick,
    Default,
    All,
}

impl Tier {
    const fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Default => "default",
            Self::All => "all",
        }
    }
}

/// Run all steps of a tier, in the workspace's root.
///
/// # Errors
/// The state of an interrupted run cannot be read or written.
pub(crate) fn run(tier: Tier) -> io::Result<ExitCode> {
    let begin = Instant::now();
    let mut run = Run::new(tier)?;
    match tier {
        Tier::Quick => run.quick(),
        Tier::Default => run.default(),
        Tier::All => {
            run.default();
            run.long();
        }
    }
    let Run { mut report, progress, .. } = run;
    report.times.end(begin.elapsed().as_secs_f64());
    let ci = env::var("CI").is_ok_and(|value| value == "true");
    match tier {
        Tier::Quick => {}
        Tier::Default => println!("{}", last()),
        Tier::All => record(&report)?,
    }
    let good = summary::print(&report, ci);
    if let Some(progress) = progress
        && good
    {
        progress.remove()?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A run of a tier.
struct Run {
    report: Report,
    /// Of [`Tier::All`].
    progress: Option<Progress>,
    /// Factor for tests that have no end of their own.
    effort: Option<u32>,
}

impl Run {
    fn new(tier: Tier) -> io::Result<Self> {
        let report = Report { times: Times::new(tier.name()), ..Report::default() };
        let progress = (tier == Tier::All).then(|| Progress::load(&report.times.revision)).transpose()?;
        let effort = (tier == Tier::All).then_some(EFFORT);
        Ok(Self { report, progress, effort })
    }

    fn quick(&mut self) {
        self.step("formatting", |_| formatting());
        self.step("imports", |_| imports::check());
        let targets = ["--lib", "--bins"];
        if self.step("build: tests", |_| nextest::build(&targets).map(|()| None)) {
            let quick = format!("not {SLOW}");
            let options = [&targets[..], &["-E", &quick]].concat();
            self.step("tests", |report| nextest::run(&options, None, report).map(|()| None));
        }
    }

    fn default(&mut self) {
        self.step("packages of this machine", |_| {
            requirements::install();
            Ok(None)
        });
        // Before the tests, which would build all this without output. What fails here makes tests fail or skip, too.
        self.step("build: images", |_| {
            images::prepare();
            Ok(None)
        });
        self.step("formatting", |_| formatting());
        self.step("imports", |_| imports::check());
        self.step("lints", |_| lints());
        self.step("licences and versions", |_| deny::check());
        self.step("lock file of the fuzzer", |_| fuzz::check_lock_file());
        self.step("documentation", |_| api::document().map(|()| None));
        self.step("dependencies of the program", |_| product::dependencies());
        self.step("public API", |_| api::check());
        if self.step("build: tests", |_| build_tests()) {
            let effort = self.effort;
            self.step("tests", |report| nextest::run(&[], effort, report).map(|()| None));
            self.step("Debian package", |_| deb::check());
            self.step("soak", |_| soak::check(SHORT_SOAK));
        }
        self.step("the meter", |_| images::meter());
    }

    /// What [`default`](Self::default) leaves out.
    fn long(&mut self) {
        self.step("long tests", |report| {
            let options = ["--run-ignored", "only", "-E", "test(/(^|::)long_/)"];
            nextest::run(&options, Some(EFFORT), report).map(|()| None)
        });
        self.step("program without the meter", |_| product::lints());
        for (name, check) in embedding::CHECKS {
            self.step(name, |_| check());
        }
        self.step("instructions per I/O", |_| exact::check());
        self.step("fuzz targets", |_| fuzz::check(FUZZING));
        self.step("long soak", |_| soak::check(SOAK));
    }

    /// Run a step, unless it passed before an interruption. Whether it passed.
    fn step(&mut self, name: &str, step: impl FnOnce(&mut Report) -> Result<Option<String>, String>) -> bool {
        if let Some(progress) = &self.progress
            && progress.passed.iter().any(|passed| passed == name)
            && !name.starts_with("build")
        {
            self.report.passed.push(format!("{name} (before the interruption)"));
            return true;
        }
        let before = self.report.tests.failed.len();
        let passed = self.report.step(name, step) && self.report.tests.failed.len() == before;
        if let Some(progress) = &mut self.progress
            && passed
            && let Err(error) = progress.pass(name)
        {
            println!("{}: {error}", progress.path.display());
        }
        passed
    }
}

/// Build the tests, and the program as the rigs of Linux guests do: it could be linked again otherwise while tests run it.
fn build_tests() -> Result<Option<String>, String> {
    nextest::build(&[])?;
    guest_linux::KvmHost::paradisk().map(|_| None).map_err(|error| error.to_string())
}

fn formatting() -> Result<Option<String>, String> {
    cargo(Path::new("."), &["fmt", "--all", "--check"], &[])?;
    cargo(Path::new("fuzz"), &["fmt", "--check"], &[]).map(|()| None)
}

fn lints() -> Result<Option<String>, String> {
    let args =
        ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"];
    cargo(Path::new("."), &args, &[]).map(|()| None)
}

/// The steps that have passed in a run that may be interrupted.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    #[serde(skip)]
    path: PathBuf,
    revision: String,
    passed: Vec<String>,
}

impl Progress {
    /// That of an interrupted run at this revision, or an empty one. With changed files, each run begins anew.
    fn load(revision: &str) -> io::Result<Self> {
        let path = guest_linux::cache().map_err(io::Error::other)?.join("all-tests.json");
        let known: Option<Self> =
            fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
        Ok(match known {
            Some(known) if known.revision == revision && !revision.ends_with('+') => Self { path, ..known },
            _ => Self { path, revision: revision.to_owned(), passed: Vec::new() },
        })
    }

    fn pass(&mut self, step: &str) -> io::Result<()> {
        self.passed.push(step.to_owned());
        fs::write(&self.path, serde_json::to_string_pretty(self)?)
    }

    fn remove(self) -> io::Result<()> {
        fs::remove_file(self.path)
    }
}

/// Write [`LAST`].
fn record(report: &Report) -> io::Result<()> {
    let failed: Vec<&str> = report
        .failed
        .iter()
        .map(String::as_str)
        .chain(report.tests.failed.iter().map(|(name, _)| &**name))
        .filter_map(|text| text.lines().next())
        .collect();
    let result =
        if failed.is_empty() { "passed".to_owned() } else { format!("failed: {}", failed.join("; ")) };
    fs::write(LAST, format!("{} {result}\n", times::revision()))
}

/// What [`LAST`] says, and how old it is.
fn last() -> String {
    let Ok(text) = fs::read_to_string(LAST) else { return "--all never ran".to_owned() };
    let (revision, result) = text.trim().split_once(' ').unwrap_or((text.trim(), "?"));
    let range = format!("{}..HEAD", revision.trim_end_matches('+'));
    let commits = output("git", &["rev-list", "--count", &range]).unwrap_or_default();
    let commits = if commits.trim().is_empty() { "an unknown number of" } else { commits.trim() };
    format!("--all last ran at {revision}, {commits} commits ago: {result}")
}
