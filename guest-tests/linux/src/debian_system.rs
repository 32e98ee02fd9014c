//! A real system: Debian with systemd on an ext4 file system in a partition, as a distribution's cloud image has it, with a kernel
//! and an initial RAM disk beside it. Made from packages, without root and without running their scripts.
//!
//! `root` logs in on the serial console without a password. A service of ours (`debian_system/job`) prints what systemd says of the boot
//! and does the job that the kernel's command line names.
//!
//! Times, identifiers and orders are fixed: the same packages give the same bytes.

mod ext4;
pub(crate) mod tree;

use std::fs;
use std::path::PathBuf;

use crate::archive::Archive;
use crate::cpio::Cpio;
use crate::error::Error;
use crate::stock::StockKernel;
use crate::{cache, initramfs, root};
use ext4::MakeExt4;

const RELEASE: &str = "bookworm";
/// What no Debian is without, systemd, and what logs users in.
const PACKAGES: [&str; 33] = [
    "base-files",
    "base-passwd",
    "bash",
    "bsdutils",
    "coreutils",
    "dash",
    "dbus",
    "debianutils",
    "diffutils",
    "dpkg",
    "e2fsprogs",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "init-system-helpers",
    "kmod",
    "libc-bin",
    "libpam-systemd",
    "login",
    "mount",
    "ncurses-base",
    "ncurses-bin",
    "passwd",
    "perl-base",
    "procps",
    "sed",
    "systemd-sysv",
    "sysvinit-utils",
    "tar",
    "udev",
    "usr-is-merged",
    "util-linux",
];
/// Packages of many small files, for the job to install.
const TO_INSTALL: [&str; 1] = ["manpages"];
const INIT: &[u8] = include_bytes!("debian_system/init");
/// What the file system and systemd need of the kernel, beside the adapters: the kernel asks for the first at run time, systemd for the
/// last.
const MODULES: [&str; 4] = ["crc32c_generic", "crc32c_intel", "ext4", "autofs4"];
const IMAGE: &str = "debian.raw";

/// Files of a real system.
#[derive(Clone, Debug)]
pub struct DebianSystem {
    /// A raw disk. The root file system is in its first partition.
    pub disk: PathBuf,
    /// A bzImage.
    pub kernel: PathBuf,
    /// The initial RAM disk. It mounts what `root=` names.
    pub initrd: PathBuf,
}

impl DebianSystem {
    /// The one in the cache, or made from Debian's packages.
    ///
    /// # Errors
    /// A package is not to be had, or a file cannot be made.
    pub fn prepare() -> Result<Self, Error> {
        let kernel = StockKernel::newest()?;
        let inputs = [PACKAGES.join(" "), TO_INSTALL.join(" "), tree::configuration()];
        let inputs = inputs.each_ref().map(|input| input.as_bytes());
        let name = format!("debian-{RELEASE}-{}", cache::fingerprint(&inputs));
        let disk = cache::directory(&name, |directory| {
            eprintln!("making a root file system from Debian's packages: half a minute");
            let make_ext4 = MakeExt4::prepare()?;
            let archive = Archive::fetch(&[("deb", RELEASE)])?;
            let work = tempfile::tempdir_in(directory).map_err(Error::file(directory))?;
            let packages = archive.download(RELEASE, &PACKAGES)?;
            tree::unpack(&packages, work.path())?;
            let mut to_install = archive.download(RELEASE, &TO_INSTALL)?;
            to_install.retain(|file| !packages.contains(file));
            tree::configure(work.path(), &to_install)?;
            make_ext4.disk(work.path(), &directory.join(IMAGE))
        })?;
        Ok(Self { disk: disk.join(IMAGE), kernel: kernel.image()?, initrd: root_initramfs(&kernel)? })
    }
}

/// An initial RAM disk with the modules of `kernel` for adapters and file system. It mounts what `root=` names, to be written to where
/// `rw` says so, and goes on with what `init=` names, `/sbin/init` as a rule.
///
/// # Errors
/// Busybox or a module is not to be had.
pub fn root_initramfs(kernel: &StockKernel) -> Result<PathBuf, Error> {
    let busybox = root::busybox()?;
    let mut archive = Cpio::default();
    ["bin", "dev", "mnt", "proc", "sys"].iter().for_each(|name| archive.directory(name));
    archive.device("dev/console", 5, 1);
    archive.file("bin/busybox", &fs::read(&busybox).map_err(Error::file(&busybox))?);
    archive.file("init", INIT);
    let mut modules = kernel.adapter_modules()?;
    // One that an adapter needs, too, comes first and once.
    for module in kernel.modules(&MODULES)? {
        if modules.iter().all(|known| known.name != module.name) {
            modules.push(module);
        }
    }
    initramfs::add_modules(&mut archive, &modules);
    initramfs::keep(&archive.finish())
}
