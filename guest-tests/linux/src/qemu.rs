//! QEMU in a version that has `vfio-user-pci`, whatever the host has: Debian's packages with all their libraries, unpacked and
//! started in their folder.

use std::path::PathBuf;
use std::process::Command;

use crate::archive::Archive;
use crate::{Error, cache};

/// Debian 13's own QEMU does not have it yet.
const RELEASE: &str = "trixie-backports";
const SUITES: [(&str, &str); 2] = [("deb", "trixie"), ("deb", RELEASE)];
const PACKAGES: [&str; 2] = ["qemu-system-x86", "qemu-utils"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// QEMU's programs in the cache.
#[derive(Clone, Debug)]
pub struct Qemu {
    directory: PathBuf,
}

impl Qemu {
    /// The one in the cache, which came from Debian's archive.
    ///
    /// # Errors
    /// The archive cannot be reached, or does not have it.
    pub fn backported() -> Result<Self, Error> {
        let inputs: Vec<_> = PACKAGES.iter().map(|name| name.as_bytes()).collect();
        let name = format!("qemu-{RELEASE}-{}", cache::fingerprint(&inputs));
        let directory = cache::directory(&name, |directory| {
            Archive::fetch(&SUITES)?.unpack(RELEASE, &PACKAGES, directory)
        })?;
        Ok(Self { directory })
    }

    /// One of its programs: `qemu-img`, `qemu-storage-daemon`.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let at = |path| self.directory.join(path);
        // The host's libraries may be older than those that the programs were made for.
        let mut command = Command::new(at("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(at(LIBRARIES)).arg(at("usr/bin").join(name));
        command.env("QEMU_MODULE_DIR", at(LIBRARIES).join("qemu"));
        command
    }

    /// The machine emulator, with its firmware.
    #[must_use]
    pub fn system(&self) -> Command {
        let mut command = self.program("qemu-system-x86_64");
        for folder in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.directory.join(folder));
        }
        command
    }

    /// What it says of itself: `11.1.3`.
    ///
    /// # Errors
    /// It does not start.
    pub fn version(&self) -> Result<String, Error> {
        let said = crate::run::run(self.system().arg("--version"))?;
        Ok(said.split_whitespace().nth(3).unwrap_or_default().to_owned())
    }
}
