//! A small file system, which can be filled.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A tmpfs, unmounted when this is dropped.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mount one of so many MiB at a folder. The error is the reason why the host refuses.
    pub(crate) fn mount(folder: &Path, mebibytes: u32) -> Result<Self, String> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "none"]).arg(folder);
        match mount.output() {
            Ok(output) if output.status.success() => Ok(Self(folder.into())),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("mount: {error}")),
        }
    }

    /// Run `work` with no space left.
    pub(crate) fn filled<R>(&self, work: impl FnOnce() -> R) -> R {
        let ballast = self.0.join("ballast");
        let before = self.free();
        let mut file = File::create(&ballast).unwrap();
        while file.write_all(&[0xaa; 1 << 16]).is_ok() {}
        let result = work();
        drop(file);
        fs::remove_file(ballast).unwrap();
        // A process that another load is starting has the file open until it executes its program.
        while self.free() < before / 2 {
            thread::sleep(Duration::from_millis(10));
        }
        result
    }

    /// Free pages.
    fn free(&self) -> u64 {
        rustix::fs::statvfs(&self.0).unwrap().f_bavail
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
