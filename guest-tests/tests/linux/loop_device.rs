//! A loop device over a file.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Detached when dropped.
pub(crate) struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Over `file`, or why not.
    pub(crate) fn attach(file: &Path) -> Result<Self, String> {
        if !Path::new("/dev/loop-control").exists() {
            return Err("there is no /dev/loop-control".to_owned());
        }
        let mut refused = String::new();
        // Another test may take the free device that it has found.
        for _ in 0..5 {
            let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
            let output = output.map_err(|error| format!("losetup: {error}"))?;
            if output.status.success() {
                return Ok(Self(String::from_utf8_lossy(&output.stdout).trim().into()));
            }
            refused = format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
            std::thread::sleep(std::time::Duration::from_millis(200));
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
