//! QEMU in a version that has `vfio-user-pci`, whatever the host has: Debian's packages with all their libraries, unpacked and
//! started in their folder.

use std::path::PathBuf;
use std::process::Command;

use crate::archive::Archive;
use crate::error::Error;
use crate::{cache, with_libraries};

/// Debian 13's own QEMU does not have it yet.
const RELEASE: &str = "trixie-backports";
const SUITES: [(&str, &str); 2] = [("deb", "trixie"), ("deb", RELEASE)];
const PACKAGES: [&str; 2] = ["qemu-system-x86", "qemu-utils"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const EMULATOR: &str = "usr/bin/qemu-system-x86_64";
/// qboot, which starts a kernel at once, and KVM's help for old guests, without which QEMU does not start.
const FIRMWARE: [&str; 3] =
    ["usr/share/seabios/bios-microvm.bin", "usr/share/qemu/kvmvapic.bin", "usr/share/qemu/linuxboot_dma.bin"];

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

    /// The machine emulator for a machine without libraries, and the firmware that boots Linux there: names in one folder, and where the files
    /// are. To be started with the loader among them, `ld-linux-x86-64.so.2 --library-path FOLDER`.
    pub(crate) fn files(&self) -> Result<Vec<(String, PathBuf)>, Error> {
        let firmware = FIRMWARE.map(|path| self.directory.join(path));
        let all = with_libraries::closure(&self.directory, EMULATOR)?.into_iter().chain(firmware);
        Ok(all.map(|path| (with_libraries::name(&path), path)).collect())
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
