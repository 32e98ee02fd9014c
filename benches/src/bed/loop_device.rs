//! A loop device over a file, made by `losetup`.

use std::path::{Path, PathBuf};

use crate::system_tool::SystemTool;

/// The control device.
const CONTROL: &str = "/dev/loop-control";

/// A loop device. It is detached when this is dropped, or when its last user closes it.
#[derive(Debug)]
pub(crate) struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attach a loop device to `file`. The error is the reason for a failure.
    pub(crate) fn attach(file: &Path) -> Result<Self, String> {
        Self::attach_with(file, &["--find", "--show", "--nooverlap"])
    }

    /// The same, with direct I/O to the file.
    pub(super) fn attach_direct(file: &Path) -> Result<Self, String> {
        Self::attach_with(file, &["--find", "--show", "--nooverlap", "--direct-io=on"])
    }

    fn attach_with(file: &Path, options: &[&str]) -> Result<Self, String> {
        if !Path::new(CONTROL).exists() {
            return Err(format!("there is no {CONTROL}"));
        }
        let output = losetup(options, file)?;
        let path = PathBuf::from(output.trim());
        if path.starts_with("/dev") {
            Ok(Self(path))
        } else {
            Err(format!("losetup printed `{}`", output.trim()))
        }
    }

    /// The device node.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(reason) = losetup(&["--detach"], &self.0) {
            eprintln!("warning: {}: cannot detach: {reason}", self.0.display());
        }
    }
}

fn losetup(options: &[&str], path: &Path) -> Result<String, String> {
    SystemTool::find("losetup")?.run(options, path)
}
