//! The test kernel: Debian's Linux 6.1 source, our configuration, and our patch for a KVM that interprets kernel mode.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use crate::cache;
use crate::debian::Package;
use crate::error::Error;
use crate::run::run;

const SOURCE: &str = "linux-source-6.1";
const FRAGMENT: &str = include_str!("../kernel.fragment");
const PATCH: &str = include_str!("../nested-kvm.patch");

/// The test kernel as an ELF `vmlinux`. Built where the cache has none: some minutes.
///
/// # Errors
/// Debian's package or a tool for the build is not to be had.
pub fn test_kernel() -> Result<PathBuf, Error> {
    let source = Package::candidate(SOURCE)?;
    let inputs = [FRAGMENT, PATCH, &source.version].map(str::as_bytes);
    let name = format!("test-kernel-{}", cache::fingerprint(&inputs));
    Ok(cache::directory(&name, |directory| build(&source, directory))?.join("vmlinux"))
}

/// Leaves `vmlinux` and the configuration in `directory`.
fn build(source: &Package, directory: &Path) -> Result<(), Error> {
    eprintln!("building the test kernel from {} {}: some minutes", source.name, source.version);
    let work = tempfile::tempdir_in(directory).map_err(Error::file(directory))?;
    source.unpack(work.path())?;
    let tree = work.path().join(SOURCE);
    let archive = work.path().join(format!("usr/src/{SOURCE}.tar.xz"));
    run(Command::new("tar").arg("-xJf").arg(&archive).current_dir(work.path()))?;
    let [patch, fragment] = [("patch", PATCH), ("fragment", FRAGMENT)].map(|(name, text)| {
        let path = work.path().join(name);
        fs::write(&path, text).map_err(Error::file(&path)).map(|()| path)
    });
    let fragment = fragment?;
    run(Command::new("patch").args(["-p1", "--fuzz=0", "-i"]).arg(patch?).current_dir(&tree))?;
    make(&tree, &["tinyconfig"])?;
    run(Command::new("scripts/kconfig/merge_config.sh")
        .args(["-m", ".config"])
        .arg(fragment)
        .current_dir(&tree))?;
    make(&tree, &["olddefconfig"])?;
    let config = tree.join(".config");
    let chosen = fs::read_to_string(&config).map_err(Error::file(&config))?;
    if let Some(option) = missing(&chosen) {
        return Err(source.lacks(&format!("option {option}, or does not allow it here")));
    }
    let jobs = available_parallelism().map_or(1, usize::from);
    make(&tree, &[&format!("-j{jobs}"), "vmlinux"])?;
    let keep = |from: PathBuf, name| -> io::Result<()> { fs::copy(from, directory.join(name)).map(drop) };
    keep(config, "config")
        .and_then(|()| keep(tree.join("vmlinux"), "vmlinux"))
        .map_err(Error::file(directory))
}

fn make(tree: &Path, targets: &[&str]) -> Result<(), Error> {
    // What another make or Cargo says of its own jobs is not for this one.
    let mut command = Command::new("make");
    command.args(["--silent", "ARCH=x86"]).args(targets).env_remove("MAKEFLAGS").env_remove("MFLAGS");
    run(command.current_dir(tree)).map(drop)
}

/// An option of the fragment that the configuration did not take.
fn missing(config: &str) -> Option<&'static str> {
    let wanted = FRAGMENT.lines().filter(|line| line.starts_with("CONFIG_"));
    let unwanted = FRAGMENT.lines().filter_map(|line| line.strip_prefix("# ")?.strip_suffix(" is not set"));
    let taken = |option: &str| config.lines().any(|line| line == option);
    let given = |name: &str| {
        config.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
    };
    wanted.into_iter().find(|option| !taken(option)).or_else(|| unwanted.into_iter().find(|name| given(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_was_not_taken_is_named() {
        assert_eq!(missing(FRAGMENT), None);
        assert_eq!(
            missing(&FRAGMENT.replace("CONFIG_SCSI=y", "# CONFIG_SCSI is not set")),
            Some("CONFIG_SCSI=y")
        );
        assert_eq!(missing(&format!("{FRAGMENT}\nCONFIG_ACPI=y")), Some("CONFIG_ACPI"));
    }
}
