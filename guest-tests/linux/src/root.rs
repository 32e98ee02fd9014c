//! A root file system: ext4 with busybox, whose first process is a shell.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::Package;
use crate::run::run;
use crate::{Error, cache};

const BUSYBOX: &str = "busybox-static";
/// Empty folders, for file systems and for the user.
const FOLDERS: [&str; 6] = ["bin", "dev", "proc", "root", "sys", "tmp"];
/// Names under which busybox is called.
const APPLETS: [&str; 14] = [
    "cat",
    "cp",
    "df",
    "dmesg",
    "echo",
    "ls",
    "mount",
    "reboot",
    "sh",
    "sha256sum",
    "sync",
    "umount",
    "uname",
    "sleep",
];
/// The first process: `/dev` is mounted by the kernel. A shell that ends brings the next one, for the kernel would panic.
const INIT: &str = "#!/bin/sh
export PATH=/bin HOME=/root PS1='paradisk# '
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -o remount,rw /
cd
while :; do sh; done
";

/// Make an ext4 file system of `size` bytes in a new file. Its `/init` leads to a shell on the console.
///
/// # Errors
/// Busybox or `mkfs.ext4` is not to be had, or the file cannot be made.
pub fn root_file_system(path: &Path, size: u64) -> Result<(), Error> {
    let tree = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
    fill(tree.path(), &busybox()?)?;
    let file = File::create_new(path).map_err(Error::file(path))?;
    file.set_len(size).map_err(Error::file(path))?;
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-L", "paradisk", "-E", "root_owner=0:0", "-d"]).arg(tree.path()).arg(path);
    // Debian keeps it where only root looks.
    let search = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    run(command.env("PATH", search)).map(drop)
}

fn fill(tree: &Path, busybox: &Path) -> Result<(), Error> {
    for name in FOLDERS {
        fs::create_dir(tree.join(name)).map_err(Error::file(tree.join(name)))?;
    }
    let program = tree.join("bin/busybox");
    fs::copy(busybox, &program).map_err(Error::file(busybox))?;
    for name in APPLETS {
        symlink("busybox", tree.join("bin").join(name)).map_err(Error::file(tree.join("bin").join(name)))?;
    }
    // Written as a copy of the program, so that it may be run.
    let init = tree.join("init");
    fs::copy(&program, &init).and_then(|_| fs::write(&init, INIT)).map_err(Error::file(&init))
}

fn busybox() -> Result<PathBuf, Error> {
    let package = Package::candidate(BUSYBOX)?;
    let name = format!("{BUSYBOX}-{}", cache::fingerprint(&[package.version.as_bytes()]));
    let directory = cache::directory(&name, |directory| package.unpack(directory))?;
    let places = ["bin/busybox", "usr/bin/busybox"].map(|place| directory.join(place));
    places.into_iter().find(|place| place.exists()).ok_or_else(|| package.lacks("busybox"))
}
