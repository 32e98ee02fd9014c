//! A loop device over a file. The unit tests of this crate and the tests of `guest-tests` include this file, too.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Detached when dropped.
pub(crate) struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attach a free device to `file`, with these options of `losetup`, which tries again where another process has taken the device that it
    /// found. The error is the reason why the host refuses.
    pub(crate) fn attach(file: &Path, options: &[&str]) -> Result<Self, String> {
        let attached = Command::new("losetup").args(["--find", "--show"]).args(options).arg(file).output();
        let attached = attached.map_err(|error| format!("losetup: {error}"))?;
        if attached.status.success() {
            return Ok(Self(String::from_utf8_lossy(&attached.stdout).trim().into()));
        }
        Err(format!("losetup: {}", String::from_utf8_lossy(&attached.stderr).trim()))
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
