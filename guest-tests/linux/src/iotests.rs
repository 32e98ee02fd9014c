//! QEMU's own tests of its block layer, from the source that Debian keeps. Nothing of it is part of this project.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::archive::mirror;
use crate::cache;
use crate::error::Error;
use crate::run::run;

/// The version whose tests they are; their reference output is that of its programs.
pub const QEMU_VERSION: &str = "7.2";
const SOURCE: &str = "pool/main/q/qemu/qemu_7.2+dfsg.orig.tar.xz";
/// SHA-256 of the archive, as Debian's signed index has it.
const SHA256: &str = "91aca71520040edc40b8d437aa3004dae614f58e286cf653ee8996c07af2962f";
/// Downloads files and checks them; a part of apt.
const DOWNLOADER: &str = "/usr/lib/apt/apt-helper";
/// What the tests use of the source, which is 24 MB packed.
const PARTS: [&str; 2] = ["*/tests/qemu-iotests", "*/python"];

/// The folder with the program `check`, which runs the tests that it is told: unpacked in the cache.
///
/// # Errors
/// The archive is not to be had, or is not what it was.
pub fn qemu_iotests() -> Result<PathBuf, Error> {
    let name =
        format!("qemu-iotests-{}", cache::fingerprint(&[SHA256.as_bytes(), PARTS.concat().as_bytes()]));
    let directory = cache::directory(&name, |directory| {
        let archive = directory.join("source.tar.xz");
        let checksum = format!("SHA256:{SHA256}");
        run(Command::new(DOWNLOADER)
            .args(["download-file", &format!("{}/{SOURCE}", mirror())])
            .arg(&archive)
            .arg(checksum))?;
        let mut unpack = Command::new("tar");
        unpack.args(["--strip-components=1", "--wildcards", "-xf"]).arg(&archive).args(PARTS);
        run(unpack.current_dir(directory))?;
        fs::remove_file(&archive).map_err(Error::file(&archive))
    })?;
    Ok(directory.join("tests/qemu-iotests"))
}
