//! A disk with an ext4 file system in its only partition, made from a tree of files. It belongs to `root` whoever makes it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive::Archive;
use crate::cache;
use crate::error::Error;
use crate::run::run;

/// The first release whose `mke2fs` takes files from an archive, where the host's tree could not give them owners and times.
const RELEASE: &str = "trixie";
/// `mke2fs` loads the library when it reads an archive, so it does not depend on it.
const PACKAGES: [&str; 2] = ["e2fsprogs", "libarchive13t64"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Time of all files: seconds since 1970.
const EPOCH: &str = "1700000000";
pub(super) const UUID: &str = "70617261-6469-736b-2d64-656269616e00";
const HASH_SEED: &str = "70617261-6469-736b-2d68-617368000000";
/// Bytes.
const FILE_SYSTEM: u64 = 512 << 20;
/// Where the partition begins. Tools leave a mebibyte free for the boot loader.
const PARTITION: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// Not needed in a test, but most of the files.
const LEFT_OUT: [&str; 4] = ["./usr/share/doc", "./usr/share/info", "./usr/share/locale", "./usr/share/man"];

/// A `mke2fs` of Debian's, in the cache.
#[derive(Clone, Debug)]
pub(super) struct MakeExt4 {
    directory: PathBuf,
}

impl MakeExt4 {
    pub(super) fn prepare() -> Result<Self, Error> {
        let inputs = PACKAGES.map(str::as_bytes);
        let name = format!("mke2fs-{RELEASE}-{}", cache::fingerprint(&inputs));
        let directory = cache::directory(&name, |directory| {
            Archive::fetch(&[("deb", RELEASE)])?.unpack(RELEASE, &PACKAGES, directory)
        })?;
        Ok(Self { directory })
    }

    /// Make the disk `image` of all that is in `tree`.
    pub(super) fn disk(&self, tree: &Path, image: &Path) -> Result<(), Error> {
        let archive = image.with_extension("tar");
        let mut tar = Command::new("tar");
        tar.args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.arg(format!("--mtime=@{EPOCH}")).args(LEFT_OUT.map(|path| format!("--exclude={path}/*")));
        run(tar.arg("-C").arg(tree).arg("-f").arg(&archive).arg("."))?;
        let file = File::create_new(image).map_err(Error::file(image))?;
        file.set_len(PARTITION + FILE_SYSTEM).map_err(Error::file(image))?;
        let libraries = self.directory.join(LIBRARIES);
        let mut make = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        make.arg("--library-path").arg(&libraries).arg(self.directory.join("usr/sbin/mke2fs"));
        make.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-L", "debian", "-U", UUID, "-E"]);
        make.arg(format!(
            "offset={PARTITION},root_owner=0:0,hash_seed={HASH_SEED},lazy_itable_init=0,lazy_journal_init=0"
        ));
        make.arg("-d").arg(&archive).arg(image).arg(format!("{}k", FILE_SYSTEM >> 10));
        make.env("SOURCE_DATE_EPOCH", EPOCH);
        make.env("MKE2FS_CONFIG", self.directory.join("etc/mke2fs.conf"));
        run(&mut make)?;
        file.write_all_at(&partition_table(), 0).map_err(Error::file(image))?;
        fs::remove_file(&archive).map_err(Error::file(&archive))
    }
}

/// A master boot record with one partition of Linux's (UEFI 2.10, 5.2.1).
fn partition_table() -> [u8; SECTOR as usize] {
    const LINUX: u8 = 0x83;
    /// Cylinder, head and sector, of a partition that they cannot tell.
    const NO_CYLINDER: [u8; 3] = [0xfe, 0xff, 0xff];
    let [start, sectors] = [PARTITION, FILE_SYSTEM].map(|bytes| ((bytes / SECTOR) as u32).to_le_bytes());
    let entry = [&[0][..], &NO_CYLINDER, &[LINUX], &NO_CYLINDER, &start, &sectors].concat();
    let mut sector = [0; SECTOR as usize];
    sector[440..444].copy_from_slice(b"para");
    sector[446..462].copy_from_slice(&entry);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_same_files_are_the_same_disk() {
        const TEST: &str = "the_same_files_are_the_same_disk";
        let make = match MakeExt4::prepare() {
            Ok(make) => make,
            Err(reason) => return println!("SKIP: {TEST}: {reason}"),
        };
        let image = |names: [&str; 3]| {
            let folder = tempfile::tempdir().unwrap();
            let tree = folder.path().join("tree");
            fs::create_dir_all(tree.join("etc")).unwrap();
            for name in names {
                fs::write(tree.join("etc").join(name), name.repeat(1000)).unwrap();
            }
            symlink("a", tree.join("etc/link")).unwrap();
            let path = folder.path().join("disk");
            make.disk(&tree, &path).unwrap();
            fs::read(path).unwrap()
        };
        let first = image(["a", "b", "c"]);
        assert!(image(["c", "a", "b"]) == first, "another order is another disk");
        assert!(image(["c", "a", "d"]) != first, "other files are the same disk");
        assert_eq!(first.len() as u64, PARTITION + FILE_SYSTEM);
        // The superblock's magic number.
        assert_eq!(first[PARTITION as usize + 1080..][..2], [0x53, 0xef]);
        assert_eq!(u32::from_le_bytes(first[454..458].try_into().unwrap()) * 512, PARTITION as u32);
    }
}
