//! `cargo xtask soak`: builds the program under test and `guest-tests/examples/soak`, which does the work, and runs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{cargo, run as run_program, target_dir};

const USAGE: &str = "usage: cargo xtask soak [--minutes N] [--load NAME]\n\n  \
    --minutes  how long servers and adapters are under load (default 10)\n  \
    --load     one load alone (docs/fuzzing.md has their names)\n\n\
    Exit status 1: data were wrong, a process grew, something failed or hangs.\n";

/// Time in `cargo xtask test`.
const SHORT: u64 = 60;

/// Soak the release binary.
///
/// # Errors
/// Wrong arguments, a build that fails, or what the soak finds.
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let (mut minutes, mut load) = (10u64, None);
    for pair in args.chunks(2) {
        match *pair {
            ["--minutes", number] => {
                minutes = number.parse().map_err(|error| format!("--minutes {number}: {error}"))?;
            }
            ["--load", name] => load = Some(name),
            _ => return Err(USAGE.to_owned()),
        }
    }
    cargo(Path::new("."), &["build", "--release", "--quiet", "--package", "paradisk"], &[])?;
    soak("release", 60 * minutes, load)
}

/// A short soak of the binary that the tests use.
///
/// # Errors
/// A build that fails, or what the soak finds.
pub(crate) fn check() -> Result<Option<String>, String> {
    cargo(Path::new("."), &["build", "--quiet", "--package", "paradisk"], &[])?;
    soak("debug", SHORT, None).map(|()| None)
}

fn soak(profile: &str, seconds: u64, load: Option<&str>) -> Result<(), String> {
    let example = ["build", "--quiet", "--package", "paradisk-guest-tests", "--example", "soak"];
    cargo(Path::new("."), &example, &[])?;
    let program: PathBuf = target_dir().join("debug/examples/soak");
    let mut command = Command::new(program);
    command.arg("--paradisk").arg(target_dir().join(profile).join("paradisk"));
    command.args(["--seconds", &seconds.to_string()]);
    if let Some(load) = load {
        command.args(["--load", load]);
    }
    run_program(&mut command, "soak")
}
