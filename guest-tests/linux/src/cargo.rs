//! Programs of this workspace, built by the Cargo that runs this: for guests that have no library, linked statically; and `paradisk` as the
//! tests have it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::run::run;

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Named, so that `RUSTFLAGS` are not for build scripts and procedural macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// How the names of the variables begin that Cargo sets for one package.
const OF_PACKAGE: [&str; 4] = ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_PRIMARY_", "OUT_DIR"];

/// What to build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    /// The package, and its program of the same name.
    pub(crate) package: &'static str,
    /// Folder in the target folder: another Cargo may hold the lock of the usual one, and other flags would make it build all anew.
    pub(crate) folder: &'static str,
    /// Flags of the compiler.
    pub(crate) flags: &'static str,
}

/// The program's path, after it was built where that was needed.
pub(crate) fn build(program: Program) -> Result<PathBuf, Error> {
    let target = target().join(program.folder);
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--locked", "--release", "--package", program.package]);
    cargo.args(["--bin", program.package, "--target", TARGET]).arg("--target-dir").arg(&target);
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", program.flags);
    run(&mut cargo)?;
    Ok(target.join(TARGET).join("release").join(program.package))
}

/// `paradisk` as it was built with the tests. Where it was not, it is, and with the same features: those of all tests.
pub(crate) fn tested() -> Result<PathBuf, Error> {
    let mut cargo = cargo();
    // The smallest test with the program.
    cargo.args([
        "test",
        "--quiet",
        "--locked",
        "--no-run",
        "--workspace",
        "--all-features",
        "--test",
        "sandbox",
    ]);
    run(&mut cargo)?;
    Ok(target().join("debug/paradisk"))
}

fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(WORKSPACE).join("target"), PathBuf::from)
}

fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(WORKSPACE);
    // What Cargo tells a test of its own package. Build scripts (ring's) look at it, and would run each time.
    let of_package = |name: &String| OF_PACKAGE.iter().any(|prefix| name.starts_with(prefix));
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter(of_package).for_each(|name| {
        cargo.env_remove(name);
    });
    cargo
}
