//! The entries of a directory, and those that are on stable storage.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// A change that is not on stable storage yet.
enum Change {
    Created(PathBuf),
    Renamed {
        from: PathBuf,
        to: PathBuf,
    },
    /// The file has the name `kept` until the change is flushed.
    Removed {
        path: PathBuf,
        kept: PathBuf,
    },
}

pub(super) struct Names {
    changes: Vec<Change>,
    /// Directory for removed files.
    removed: PathBuf,
    number: u64,
}

impl Names {
    pub(super) fn new(removed: PathBuf) -> Self {
        Self { changes: Vec::new(), removed, number: 0 }
    }

    pub(super) fn created(&mut self, path: &Path) {
        self.changes.push(Change::Created(path.into()));
    }

    pub(super) fn rename_new(&mut self, from: &Path, to: &Path) -> Result<(), Errno> {
        renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?;
        self.changes.push(Change::Renamed { from: from.into(), to: to.into() });
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let kept = self.removed.join(self.number.to_string());
        std::fs::rename(path, &kept)?;
        self.number += 1;
        self.changes.push(Change::Removed { path: path.into(), kept });
        Ok(())
    }

    pub(super) fn sync(&mut self) {
        for change in self.changes.drain(..) {
            if let Change::Removed { kept, .. } = change {
                std::fs::remove_file(kept).expect("a file that was removed");
            }
        }
    }

    /// Undo all unflushed changes. Returns whether there were any.
    pub(super) fn power_loss(&mut self) -> bool {
        let changed = !self.changes.is_empty();
        for change in self.changes.drain(..).rev() {
            match change {
                Change::Created(path) => std::fs::remove_file(path),
                Change::Renamed { from, to } => std::fs::rename(to, from),
                Change::Removed { path, kept } => std::fs::rename(kept, path),
            }
            .expect("a change of a directory that can be undone");
        }
        changed
    }
}
