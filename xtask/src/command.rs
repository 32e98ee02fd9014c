//! Running cargo, as the checks do that are more than one command.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, io};

/// Run cargo in a folder, with these variables set.
///
/// # Errors
/// How cargo failed, or why it does not start.
pub(crate) fn cargo(folder: &Path, args: &[&str], environment: &[(&str, &OsStr)]) -> Result<(), String> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(args).current_dir(folder).envs(environment.iter().copied());
    run(&mut command, &format!("cargo {}", args.join(" ")))
}

/// Run a program.
///
/// # Errors
/// How the program failed, or why it does not start.
pub(crate) fn run(command: &mut Command, name: &str) -> Result<(), String> {
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// What a program prints.
///
/// # Errors
/// It does not start.
pub(crate) fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where cargo builds, as an absolute path: some tasks use it in another folder.
pub(crate) fn target_dir() -> PathBuf {
    let folder = env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
    io::Result::unwrap_or(std::path::absolute(&folder), folder.into())
}
