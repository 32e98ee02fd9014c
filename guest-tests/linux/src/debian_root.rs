//! A minimal Debian in a folder, of the release that the host has, to install packages in: made from packages, without their scripts.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::archive::Archive;
use crate::cache;
use crate::debian_system::tree;
use crate::error::Error;
use crate::run::run;

/// What dpkg needs, the shells, and what reads manual pages.
const PACKAGES: [&str; 20] = [
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "diffutils",
    "dpkg",
    "findutils",
    "fish",
    "grep",
    "groff-base",
    "gzip",
    "libc-bin",
    "libgcc-s1",
    "man-db",
    "sed",
    "systemd",
    "tar",
    "usr-is-merged",
    "zsh",
];
const OS_RELEASE: &str = "/etc/os-release";

/// A copy of the minimal Debian, gone when it is dropped.
#[derive(Debug)]
pub struct DebianRoot {
    folder: TempDir,
}

impl DebianRoot {
    /// A new copy of the one in the cache, which is made from Debian's packages where it is not there.
    ///
    /// # Errors
    /// The host is not Debian, a package is not to be had, or a file cannot be made.
    pub fn new() -> Result<Self, Error> {
        let release = release()?;
        let inputs = [PACKAGES.join(" "), tree::records()];
        let name =
            format!("root-{release}-{}", cache::fingerprint(&inputs.each_ref().map(|each| each.as_bytes())));
        let cached = cache::directory(&name, |directory| {
            eprintln!("unpacking Debian's packages into a folder: a minute");
            let archive = Archive::fetch(&[("deb", &release)])?;
            let packages = archive.download(&release, &PACKAGES)?;
            tree::unpack(&packages, directory)?;
            tree::settle(directory)
        })?;
        let folder = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
        run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(cached.join(".")).arg(folder.path()))?;
        Ok(Self { folder })
    }

    /// Where its `/` is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Run a program in it, as root; what it printed.
    ///
    /// # Errors
    /// This process may not change its root, or the program fails.
    pub fn run(&self, program: &[&str]) -> Result<String, Error> {
        // Root in a user namespace of its own, which a user may make, too.
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--wd=/", "--root"]).arg(self.path()).args(program);
        let mut chroot = Command::new("chroot");
        chroot.arg(self.path()).args(program);
        let may = run(Command::new("chroot").arg(self.path()).arg("true")).is_ok();
        let command = if may { &mut chroot } else { &mut unshare };
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        run(command.env("HOME", "/root"))
    }
}

/// Debian's release of the host, for whose libraries programs are built here.
fn release() -> Result<String, Error> {
    let text = fs::read_to_string(OS_RELEASE).map_err(Error::file(OS_RELEASE))?;
    let value =
        |key| text.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim_matches('"'));
    match (value("ID="), value("VERSION_CODENAME=")) {
        (Some("debian"), Some(release)) => Ok(release.to_owned()),
        _ => Err(Error::NotDebian),
    }
}
