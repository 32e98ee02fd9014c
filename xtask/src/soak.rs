//! `cargo xtask soak`: builds the program under test and `guest-tests/examples/soak`, which does the work, and runs it.

use std::path::Path;
use std::process::Command;

use crate::command::{cargo, run as run_program, target_dir};
use crate::nextest::built;

const USAGE: &str = "usage: cargo xtask soak [--minutes N] [--load NAME]\n\n  \
    --minutes  how long servers and adapters are under load (default 10)\n  \
    --load     one load alone (docs/fuzzing.md has their names)\n\n\
    Exit status 1: data were wrong, a process grew, something failed or hangs.\n";

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
    start(&target_dir().join("release/paradisk"), 60 * minutes, load)
}

/// A soak of the binary that the tests use, in this many seconds.
///
/// # Errors
/// What the soak finds.
pub(crate) fn check(seconds: u64) -> Result<Option<String>, String> {
    start(&built("paradisk"), seconds, None).map(|()| None)
}

/// The example `soak` with this program.
fn start(paradisk: &Path, seconds: u64, load: Option<&str>) -> Result<(), String> {
    // With the features of the tests, so that nothing but the example is built.
    let example = ["build", "--quiet", "--workspace", "--all-features", "--example", "soak"];
    cargo(Path::new("."), &example, &[])?;
    let mut command = Command::new(built("examples/soak"));
    command.arg("--paradisk").arg(paradisk);
    command.args(["--seconds", &seconds.to_string()]);
    if let Some(load) = load {
        command.args(["--load", load]);
    }
    run_program(&mut command, "soak")
}
