//! Programs of the system that set up disks and file systems: losetup, mkfs, mount.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Folders that may not be in the user's PATH.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// An installed program.
pub(crate) struct SystemTool(PathBuf);

impl SystemTool {
    /// Find a program by name. Fails if it is not installed.
    pub(crate) fn find(name: &str) -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
        let program = folders.map(|folder| folder.join(name)).find(|program| program.exists());
        program.map(Self).ok_or_else(|| format!("{name} is not installed"))
    }

    /// Run the program with these options and `path` after them. Returns its output; the error is the first line of its
    /// messages.
    pub(crate) fn run(&self, options: &[&str], path: &Path) -> Result<String, String> {
        let Self(program) = self;
        let output = Command::new(program)
            .args(options)
            .arg(path)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let failed = || format!("{}: {}", program.display(), output.status);
        Err(message.lines().next().map_or_else(failed, str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_gives_its_output_or_the_first_line_of_its_messages() {
        let ls = SystemTool::find("ls").unwrap();
        assert_eq!(ls.run(&["-d"], Path::new("/")).as_deref(), Ok("/\n"));
        let error = ls.run(&[], Path::new("/no/such/folder")).unwrap_err();
        assert!(error.contains("/no/such/folder") && !error.contains('\n'), "{error}");
        assert_eq!(SystemTool::find("no-such-tool").err().as_deref(), Some("no-such-tool is not installed"));
    }
}
