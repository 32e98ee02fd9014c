//! A root file system: ext4 with busybox, whose first process is a shell.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;
use crate::debian::Package;
use crate::error::Error;
use crate::run::run;

const BUSYBOX: &str = "busybox-static";
/// Empty folders, for file systems and for the user.
const FOLDERS: [&str; 6] = ["bin", "dev", "proc", "root", "sys", "tmp"];
/// Names under which busybox is called.
const APPLETS: [&str; 8] = ["cat", "dd", "ls", "mount", "sh", "sha256sum", "sync", "uname"];
/// The first process. The kernel has mounted `/dev`. It would panic without a first process, so a shell that ends brings the
/// next one.
const INIT: &str = "#!/bin/sh
export PATH=/bin HOME=/root PS1='paradisk# '
mount -t proc proc /proc
cd
while :; do sh; done
";
/// Everything is initialized here and not by a thread of the guest's kernel.
const OPTIONS: &str = "root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0";
/// Where the word for power-off is.
const POWER_WORD: &str = "root/power";

/// Make an ext4 file system of `size` bytes in a new file. Its `/init` leads to a shell on the console, in which `power-off`
/// writes `power` to the machine: to an I/O port a word.
///
/// # Errors
/// Busybox or `mkfs.ext4` is not to be had, or the file cannot be made.
pub fn root_file_system(path: &Path, size: u64, power: (u16, u16)) -> Result<(), Error> {
    let tree = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
    fill(tree.path(), &busybox()?, power)?;
    let file = File::create_new(path).map_err(Error::file(path))?;
    file.set_len(size).map_err(Error::file(path))?;
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-L", "paradisk", "-E", OPTIONS, "-d"]).arg(tree.path()).arg(path);
    // Debian keeps it where only root looks.
    let search = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    run(command.env("PATH", search)).map(drop)
}

fn fill(tree: &Path, busybox: &Path, (port, word): (u16, u16)) -> Result<(), Error> {
    for name in FOLDERS {
        fs::create_dir(tree.join(name)).map_err(Error::file(tree.join(name)))?;
    }
    let program = tree.join("bin/busybox");
    fs::copy(busybox, &program).map_err(Error::file(busybox))?;
    for name in APPLETS {
        symlink("busybox", tree.join("bin").join(name)).map_err(Error::file(tree.join("bin").join(name)))?;
    }
    let power_word = tree.join(POWER_WORD);
    fs::write(&power_word, word.to_le_bytes()).map_err(Error::file(&power_word))?;
    let power_off = format!(
        "#!/bin/sh\nsync\nmount -o remount,ro /\nexec dd if=/{POWER_WORD} of=/dev/port bs=1 seek={port} conv=notrunc\n"
    );
    script(&tree.join("bin/power-off"), &power_off)?;
    script(&tree.join("init"), INIT)
}

fn script(path: &Path, text: &str) -> Result<(), Error> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o755);
    options.open(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::file(path))
}

/// Debian's busybox without libraries.
pub(crate) fn busybox() -> Result<PathBuf, Error> {
    let package = Package::candidate(BUSYBOX)?;
    let name = format!("{BUSYBOX}-{}", cache::fingerprint(&[package.version.as_bytes()]));
    let directory = cache::directory(&name, |directory| package.unpack(directory))?;
    let places = ["bin/busybox", "usr/bin/busybox"].map(|place| directory.join(place));
    places.into_iter().find(|place| place.exists()).ok_or_else(|| package.lacks("busybox"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_tree_has_a_first_process_and_a_way_to_power_off() {
        let tree = tempfile::tempdir().unwrap();
        fill(tree.path(), Path::new("/bin/sh"), (0x604, 0x2000)).unwrap();
        assert_eq!(fs::read(tree.path().join(POWER_WORD)).unwrap(), [0x00, 0x20]);
        let power_off = tree.path().join("bin/power-off");
        assert!(fs::read_to_string(&power_off).unwrap().contains("of=/dev/port bs=1 seek=1540 "));
        for program in [power_off, tree.path().join("init"), tree.path().join("bin/cat")] {
            let mode = fs::metadata(&program).unwrap().permissions().mode();
            assert_eq!(mode & 0o111, 0o111, "{}", program.display());
        }
    }
}
