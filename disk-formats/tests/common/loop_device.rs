//! A loop device over a file. The unit tests of this crate and the tests of `guest-tests` include this file, too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Detached when dropped.
pub(crate) struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attach a free device to `file`, with these options of `losetup`. The error is the reason why the host refuses.
    pub(crate) fn attach(file: &Path, options: &[&str]) -> Result<Self, String> {
        let mut refused = String::new();
        // Another test may take the free device that `losetup` has found.
        for _ in 0..5 {
            let attached =
                Command::new("losetup").args(["--find", "--show"]).args(options).arg(file).output();
            let attached = attached.map_err(|error| format!("losetup: {error}"))?;
            if attached.status.success() {
                return Ok(Self(String::from_utf8_lossy(&attached.stdout).trim().into()));
            }
            refused = format!("losetup: {}", String::from_utf8_lossy(&attached.stderr).trim());
            std::thread::sleep(Duration::from_millis(200));
        }
        Err(refused)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
