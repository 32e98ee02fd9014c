//! Builds the fuzzer: stable Rust has no `-Zsanitizer`, but LLVM's pass for coverage can be requested.

use std::env;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{cargo, output};

/// Counters and comparisons for libFuzzer, and checks as in a debug build.
const FLAGS: [&str; 9] = [
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "-Coverflow-checks=yes",
];

/// The program `fuzz/fuzzer.rs`, which has all targets.
pub(super) struct Built(PathBuf);

/// The variable that selects a target.
const TARGET: &str = "PARADISK_FUZZ_TARGET";

impl Built {
    /// A program of a test in place of the fuzzer.
    #[cfg(test)]
    pub(super) fn from_program(program: PathBuf) -> Self {
        Self(program)
    }

    /// The fuzzer with this target.
    pub(super) fn target(&self, name: &str) -> Command {
        let mut command = Command::new(&self.0);
        command.env(TARGET, name);
        command
    }
}

/// Why this machine cannot build the fuzzer, if it cannot.
///
/// # Errors
/// A temporary folder cannot be created.
pub(super) fn obstacle() -> Result<Option<String>, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.args(["--crate-type=lib", "--crate-name=probe", "--emit=obj", "-"]).args(FLAGS);
    rustc.arg("--out-dir").arg(folder.path());
    if let Err(error) = succeeds(&mut rustc, b"pub fn probe() {}") {
        return Ok(Some(format!("the compiler has no coverage for fuzzing: {error}")));
    }
    let compiler = env::var("CXX").unwrap_or("c++".to_owned());
    let found = succeeds(Command::new(&compiler).arg("--version"), b"");
    Ok(found.err().map(|error| format!("libFuzzer needs a C++ compiler: {compiler}: {error}")))
}

fn succeeds(command: &mut Command, input: &[u8]) -> Result<(), String> {
    let started = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| error.to_string())?;
    // Fails where the program has ended before it read this; its status says why.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input));
    let done = child.wait_with_output().map_err(|error| error.to_string())?;
    if done.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&done.stderr);
    Err(text.lines().next().unwrap_or("no message").to_owned())
}

/// Build it.
///
/// # Errors
/// How cargo ended.
pub(super) fn build() -> Result<Built, String> {
    let version = output(&env::var("RUSTC").unwrap_or("rustc".to_owned()), &["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("rustc -vV: no line `host:`")?;
    // A folder of its own: with these flags, cargo builds everything again.
    let folder = match env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => std::path::absolute(Path::new(&folder).join("fuzz")),
        None => std::path::absolute("fuzz/target"),
    };
    let folder = folder.map_err(|error| format!("fuzz/target: {error}"))?;
    let args = ["build", "--release", "--locked", "--quiet", "--target", host];
    let flags = FLAGS.join(" ");
    // `--target` keeps the flags from build scripts and macros.
    let environment = [("RUSTFLAGS", OsStr::new(&flags)), ("CARGO_TARGET_DIR", folder.as_os_str())];
    cargo(Path::new("fuzz"), &args, &environment)?;
    Ok(Built(folder.join(host).join("release/paradisk-fuzz")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_says_why() {
        assert_eq!(succeeds(&mut Command::new("true"), b""), Ok(()));
        let failed = succeeds(Command::new("sh").args(["-c", "echo broken >&2; exit 3"]), b"");
        assert_eq!(failed, Err("broken".to_owned()));
        assert!(succeeds(&mut Command::new("no-such-program-anywhere"), b"").is_err());
    }
}
