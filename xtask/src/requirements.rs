//! What the checks need of the machine: found, or installed where that is allowed.

use std::path::Path;
use std::process::{Command, Stdio};

/// Programs that tests call, with Debian's package for each.
const PROGRAMS: [(&str, &str); 15] = [
    ("7z", "p7zip-full"),
    ("bximage", "bximage"),
    ("c++", "g++"),
    ("chromium", "chromium"),
    ("cpio", "cpio"),
    ("fio", "fio"),
    ("fusermount3", "fuse3"),
    ("losetup", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("openssl", "openssl"),
    ("qemu-img", "qemu-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
];
/// Programs that build the test kernel, with Debian's package for each.
const BUILDERS: [(&str, &str); 7] = [
    ("bc", "bc"),
    ("bison", "bison"),
    ("flex", "flex"),
    ("gcc", "gcc"),
    ("make", "make"),
    ("patch", "patch"),
    ("xz", "xz-utils"),
];
/// A header that the test kernel's build includes, with Debian's package.
const HEADER: (&str, &str) = ("/usr/include/libelf.h", "libelf-dev");
/// Modules of Debian's Python that tests use, with Debian's package for each.
const MODULES: [(&str, &str); 2] = [("pip", "python3-pip"), ("pyvhdi", "python3-libvhdi")];
/// Parts of the Rust toolchain: what `cargo` is asked, and the component's name.
const COMPONENTS: [(&str, &str); 2] = [("fmt", "rustfmt"), ("clippy", "clippy")];

/// Install what is missing: Rust components where rustup is there, packages only as root. What stays missing shows
/// itself later, as a failed check or a skipped test.
pub(crate) fn install() {
    let missing: Vec<&str> = COMPONENTS
        .iter()
        .filter(|(tool, _)| !works("cargo", &[tool, "--version"]))
        .map(|(_, name)| *name)
        .collect();
    if !missing.is_empty() && works("rustup", &["--version"]) {
        run("rustup", &[&["component", "add"], &missing[..]].concat());
    }
    let import = |module: &str| works("/usr/bin/python3", &["-c", &format!("import {module}")]);
    let programs = PROGRAMS.iter().chain(&BUILDERS).filter(|(program, _)| !on_path(program));
    let modules = MODULES.iter().filter(|(module, _)| !import(module));
    let header = Some(&HEADER).filter(|(file, _)| !Path::new(file).exists());
    let packages: Vec<&str> = programs.chain(modules).chain(header).map(|(_, package)| *package).collect();
    if !packages.is_empty() && rustix::process::geteuid().is_root() && on_path("apt-get") {
        run("apt-get", &["update", "--quiet"]);
        run(
            "apt-get",
            &[&["install", "--yes", "--quiet", "--no-install-recommends"], &packages[..]].concat(),
        );
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin".into(), "/sbin".into()];
    std::env::split_paths(&path).chain(usual).any(|folder| Path::new(&folder).join(program).is_file())
}

fn works(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn run(program: &str, args: &[&str]) {
    println!("== {program} {}", args.join(" "));
    match Command::new(program).args(args).stdin(Stdio::null()).status() {
        Ok(status) if status.success() => {}
        Ok(status) => println!("{program}: {status}"),
        Err(error) => println!("{program}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_or_not() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program-anywhere"));
        assert!(works("sh", &["-c", "true"]) && !works("sh", &["-c", "false"]));
        assert!(!works("no-such-program-anywhere", &[]));
    }
}
