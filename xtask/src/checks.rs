//! The checks, one after another; all run, also after one has failed.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::summary::{Counts, Report, worth_showing};

struct Check {
    name: &'static str,
    args: &'static [&'static str],
    environment: Option<(&'static str, &'static str)>,
}

const FUZZ: &str = "fuzz/Cargo.toml";

const FORMATTING: Check = Check { name: "formatting", args: &["fmt", "--all", "--check"], environment: None };

const LINTS: Check = Check {
    name: "lints",
    args: &["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"],
    environment: None,
};

/// One profile for all: dependencies are built once for lints and once for tests.
const CHECKS: [Check; 6] = [
    FORMATTING,
    Check {
        name: "formatting of fuzz targets",
        args: &["fmt", "--manifest-path", FUZZ, "--check"],
        environment: None,
    },
    LINTS,
    // They are a workspace of their own. Nothing is linked here, so the fuzzer, which is C++, need not be built.
    Check {
        name: "lints of fuzz targets",
        args: &["clippy", "--manifest-path", FUZZ, "--quiet", "--locked", "--", "-D", "warnings"],
        environment: Some(("CUSTOM_LIBFUZZER_PATH", "/dev/null")),
    },
    Check {
        name: "documentation",
        args: &["doc", "--workspace", "--no-deps", "--quiet"],
        environment: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
    // What a test prints is shown also when it passes: a test that skips says so.
    Check {
        name: "tests",
        args: &["test", "--workspace", "--all-features", "--no-fail-fast", "--", "--show-output"],
        environment: None,
    },
];

/// Formatting, lints, and the tests beside the code: what takes minutes, boots no guest and starts no other program.
const QUICK: [Check; 3] = [
    FORMATTING,
    LINTS,
    Check {
        name: "tests beside the code",
        args: &[
            "test",
            "--workspace",
            "--all-features",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--",
            "--show-output",
        ],
        environment: None,
    },
];

/// Which checks are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of them.
    All,
    /// Those for the loop of editing and testing.
    Quick,
}

/// Run all checks of `scope`.
pub(crate) fn run(scope: Scope) -> Report {
    let mut report = Report::default();
    let checks = match scope {
        Scope::All => &CHECKS[..],
        Scope::Quick => &QUICK[..],
    };
    for check in checks {
        println!("== {}: cargo {}", check.name, check.args.join(" "));
        match cargo(check, &mut report.tests) {
            Ok(true) => report.passed.push(check.name),
            Ok(false) => report.failed.push(check.name.to_owned()),
            Err(error) => report.failed.push(format!("{}: cargo: {error}", check.name)),
        }
    }
    report
}

/// Run cargo, pass on what it prints, and count tests in it.
fn cargo(check: &Check, tests: &mut Counts) -> io::Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.args(check.args).envs(check.environment).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    // A list of the passed tests' names follows their output.
    let mut listing = false;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            listing = line == "successes:" || listing && line.starts_with("    ");
            if !listing && worth_showing(&line) {
                println!("{line}");
            }
            tests.read(&line);
        }
    }
    Ok(child.wait()?.success())
}
