//! QEMU in known versions, whatever the host has: Debian's packages with all their libraries, unpacked and started in their folder.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::archive::Archive;
use crate::error::Error;
use crate::{cache, with_libraries};

/// Debian 13's own QEMU does not have `vfio-user-pci` yet.
const BACKPORTED: Release = Release {
    name: "trixie-backports",
    suites: &[("deb", "trixie"), ("deb", "trixie-backports")],
    libraries: &[LIBRARIES],
    plugin_api: 7,
    cpus: u8::MAX,
};
/// QEMU 7.2. With `-icount` it hangs when L1 starts a second CPU.
const BOOKWORM: Release = Release {
    name: "bookworm",
    suites: &[("deb", "bookworm")],
    libraries: &["lib/x86_64-linux-gnu", LIBRARIES],
    plugin_api: 1,
    cpus: 1,
};
/// An environment variable. With the value `7.2`, [`Qemu::any`] chooses the QEMU of Debian 12.
const CHOICE: &str = "PARADISK_QEMU";
const PACKAGES: [&str; 2] = ["qemu-system-x86", "qemu-utils"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// In the first folder of libraries.
const LOADER: &str = "ld-linux-x86-64.so.2";
const EMULATOR: &str = "usr/bin/qemu-system-x86_64";
const STORAGE_DAEMON: &str = "usr/bin/qemu-storage-daemon";
const IMAGE_TOOL: &str = "usr/bin/qemu-img";
/// Folders with firmware. Both have a `bios-microvm.bin` in Debian 12; the one in Debian 13 is SeaBIOS's.
const FIRMWARE_FOLDERS: [&str; 2] = ["usr/share/seabios", "usr/share/qemu"];
/// SeaBIOS as built for QEMU's microvm, which starts a kernel at once, and KVM's help for old guests, without which QEMU does not start.
const FIRMWARE: [&str; 3] =
    ["usr/share/seabios/bios-microvm.bin", "usr/share/qemu/kvmvapic.bin", "usr/share/qemu/linuxboot_dma.bin"];

/// A release of Debian, and what its QEMU is like.
#[derive(Debug)]
struct Release {
    name: &'static str,
    suites: &'static [(&'static str, &'static str)],
    /// Folders of libraries.
    libraries: &'static [&'static str],
    /// Version of the interface for plugins.
    plugin_api: u8,
    /// CPUs at the most that can be emulated with `-icount`.
    cpus: u8,
}

/// QEMU's programs in the cache.
#[derive(Clone, Debug)]
pub struct Qemu {
    directory: PathBuf,
    release: &'static Release,
}

impl Qemu {
    /// The newest in the cache or in Debian's archive: 11.1 or later, which has `vfio-user-pci`.
    ///
    /// # Errors
    /// The archive cannot be reached, or does not have it.
    pub fn backported() -> Result<Self, Error> {
        Self::of(&BACKPORTED)
    }

    /// 7.2, of Debian 12.
    ///
    /// # Errors
    /// The archive cannot be reached.
    pub fn bookworm() -> Result<Self, Error> {
        Self::of(&BOOKWORM)
    }

    /// The [backported](Self::backported) one, or that of [Debian 12](Self::bookworm) where this is not to be had or `PARADISK_QEMU` is
    /// `7.2`.
    ///
    /// # Errors
    /// Why there is no backported one, where there is none of Debian 12 either.
    pub fn any() -> Result<Self, Error> {
        if env::var_os(CHOICE).is_some_and(|choice| choice == "7.2") {
            return Self::bookworm();
        }
        Self::backported().or_else(|error| Self::bookworm().map_err(|_| error))
    }

    fn of(release: &'static Release) -> Result<Self, Error> {
        let inputs: Vec<_> = PACKAGES.iter().map(|name| name.as_bytes()).collect();
        let name = format!("qemu-{}-{}", release.name, cache::fingerprint(&inputs));
        let directory = cache::directory(&name, |directory| {
            Archive::fetch(release.suites)?.unpack(release.name, &PACKAGES, directory)
        })?;
        Ok(Self { directory, release })
    }

    /// One of its programs: `qemu-img`, `qemu-storage-daemon`.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let at = |path: &str| self.directory.join(path);
        let folders: Vec<_> = self.release.libraries.iter().map(|folder| at(folder)).collect();
        // The host's libraries may be older than those that the programs were made for.
        let mut command = Command::new(folders[0].join(LOADER));
        let search = folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":");
        command.args(["--library-path", &search]).arg(at("usr/bin").join(name));
        command.env("QEMU_MODULE_DIR", at(LIBRARIES).join("qemu"));
        command
    }

    /// The machine emulator, with its firmware.
    #[must_use]
    pub fn system(&self) -> Command {
        let mut command = self.program("qemu-system-x86_64");
        for folder in FIRMWARE_FOLDERS {
            command.arg("-L").arg(self.directory.join(folder));
        }
        command
    }

    /// The machine emulator, the storage daemon and `qemu-img` for a machine without libraries, and the firmware that boots Linux there:
    /// names in one folder, and where the files are. To be started with the loader among them, `ld-linux-x86-64.so.2 --library-path FOLDER`.
    pub(crate) fn files(&self) -> Result<Vec<(String, PathBuf)>, Error> {
        let firmware = FIRMWARE.map(|path| self.directory.join(path));
        let mut all = with_libraries::closure(&self.directory, EMULATOR)?;
        for program in [STORAGE_DAEMON, IMAGE_TOOL] {
            all.extend(with_libraries::closure(&self.directory, program)?);
        }
        all.extend(firmware);
        // Programs share libraries.
        let named: BTreeMap<_, _> = all.into_iter().map(|path| (with_libraries::name(&path), path)).collect();
        Ok(named.into_iter().collect())
    }

    /// What it says of itself: `11.1.3`.
    ///
    /// # Errors
    /// It does not start.
    pub fn version(&self) -> Result<String, Error> {
        let said = crate::run::run(self.system().arg("--version"))?;
        Ok(said.split_whitespace().nth(3).unwrap_or_default().to_owned())
    }

    /// Version of its interface for plugins.
    pub(crate) fn plugin_api(&self) -> u8 {
        self.release.plugin_api
    }

    /// That it can emulate a host with so many CPUs, whose time is instructions.
    ///
    /// # Errors
    /// [`Error::Cpus`] where it cannot.
    pub fn emulates(&self, cpus: u8) -> Result<(), Error> {
        if cpus <= self.release.cpus {
            return Ok(());
        }
        Err(Error::Cpus { release: self.release.name, most: self.release.cpus, cpus })
    }
}
