//! Programs of Debian's packages with their libraries, unpacked, for guests that have no library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive::Archive;
use crate::cache;
use crate::error::Error;
use crate::run::run;

const RELEASE: &str = "bookworm";
/// Among the libraries; `lib64` has a link to it, in Debian 12 one to that of the machine.
const LOADER: &str = "ld-linux-x86-64.so.2";
const LIBRARIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

/// A program of a package.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packaged {
    /// Of the folder in the cache.
    name: &'static str,
    package: &'static str,
    program: &'static str,
}

/// libiscsi's conformance suite for SCSI targets.
pub(crate) const ISCSI_TEST_CU: Packaged =
    Packaged { name: "libiscsi", package: "libiscsi-bin", program: "usr/bin/iscsi-test-cu" };
/// Logs the kernel's iSCSI initiator in to one target, and ends.
pub(crate) const ISCSISTART: Packaged =
    Packaged { name: "open-iscsi", package: "open-iscsi", program: "sbin/iscsistart" };
/// The tool for the kernel's device mapper.
pub(crate) const DMSETUP: Packaged =
    Packaged { name: "dmsetup", package: "dmsetup", program: "sbin/dmsetup" };
/// Makes ext4 file systems.
pub(crate) const MKE2FS: Packaged =
    Packaged { name: "e2fsprogs", package: "e2fsprogs", program: "sbin/mke2fs" };

impl Packaged {
    /// The program, the dynamic loader, and every library that the loader needs for the program; taken from the cache, or from
    /// Debian's archive where the cache has none.
    pub(crate) fn files(self) -> Result<Vec<PathBuf>, Error> {
        let name = format!("{}-{RELEASE}-{}", self.name, cache::fingerprint(&[self.package.as_bytes()]));
        let directory = cache::directory(&name, |directory| {
            Archive::fetch(&[("deb", RELEASE)])?.unpack(RELEASE, &[self.package], directory)
        })?;
        closure(&directory, self.program)
    }

    /// Names and contents, for the folder of an initramfs.
    pub(crate) fn contents(self) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let read = |path: PathBuf| Ok((name(&path), fs::read(&path).map_err(Error::file(&path))?));
        self.files()?.into_iter().map(read).collect()
    }
}

/// A program of packages unpacked in `directory`, their dynamic loader, and every library that the loader needs for the program.
pub(crate) fn closure(directory: &Path, program: &str) -> Result<Vec<PathBuf>, Error> {
    let folders = LIBRARIES.map(|path| directory.join(path));
    // The packages' own loader: the host's libraries may be of another version.
    let mut loaders = folders.iter().map(|folder| folder.join(LOADER));
    let loader = loaders.find(|path| path.exists()).ok_or_else(|| Error::Command {
        command: LOADER.to_owned(),
        how: format!("{program} came without it"),
    })?;
    let program = directory.join(program);
    let search = folders.map(|folder| folder.display().to_string()).join(":");
    let listed = run(Command::new(&loader).args(["--library-path", &search, "--list"]).arg(&program))?;
    let mut files = vec![program, loader];
    files.extend(libraries(&listed, directory));
    Ok(files)
}

/// The dynamic loader and the libraries of a program of this machine.
pub(crate) fn of_this_machine(program: &Path) -> Result<Vec<PathBuf>, Error> {
    let loader = Path::new("/lib64").join(LOADER);
    let listed = run(Command::new(&loader).arg("--list").arg(program))?;
    Ok([loader].into_iter().chain(libraries(&listed, Path::new("/"))).collect())
}

/// The name of a file, without its folder.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Paths below `directory` in what the loader lists: `NAME => PATH (ADDRESS)`.
fn libraries(listed: &str, directory: &Path) -> Vec<PathBuf> {
    let paths = listed.lines().filter_map(|line| Some(line.split_once(" => ")?.1.split_once(" (")?.0));
    paths.map(PathBuf::from).filter(|path| path.starts_with(directory) && !path.ends_with(LOADER)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_what_the_loader_found_in_the_folder() {
        let listed = "\tlinux-vdso.so.1 (0x7f0)\n\tlibcunit.so.1 => /c/usr/lib/libcunit.so.1 (0x7f1)\n\
                      \tlibc.so.6 => /lib/libc.so.6 (0x7f2)\n\t/lib64/ld-linux-x86-64.so.2 => /c/lib64/ld-linux-x86-64.so.2 (0x1)\n\
                      \tlibx.so => not found\n";
        assert_eq!(libraries(listed, Path::new("/c")), [Path::new("/c/usr/lib/libcunit.so.1")]);
    }
}
