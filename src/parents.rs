//! The options that say which files may be parents of differencing disks, common to all subcommands.

use std::path::{Path, PathBuf};

use paradisk_disk_formats::ParentRules;

/// Which files may be parents, of a command with one disk whose parent can be named.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Parents {
    /// The parent of the differencing disk that is read, wherever it is; the disk itself is not written
    #[arg(long, value_name = "FILE")]
    parent_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) places: Places,
}

/// Where parents may be, of all disks of a command.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Places {
    /// A directory where parents of differencing disks may be, with all directories below it, besides that of the image; they are looked
    /// for by name if they are not where the image says; may be repeated
    #[arg(long, value_name = "DIR")]
    parent_dir: Vec<PathBuf>,
    /// Take a parent that was changed since its child was made
    #[arg(long)]
    any_parent_time: bool,
}

impl Parents {
    /// The rules for that disk.
    pub(crate) fn rules(&self) -> ParentRules {
        self.places.rules(self.parent_file.as_deref())
    }

    /// Whether its parent is named.
    pub(crate) const fn is_named(&self) -> bool {
        self.parent_file.is_some()
    }
}

impl Places {
    /// The rules for a disk with this parent, if that is named.
    pub(crate) fn rules(&self, parent: Option<&Path>) -> ParentRules {
        ParentRules {
            parent: parent.map(Path::to_path_buf),
            directories: self.parent_dir.clone(),
            any_time: self.any_parent_time,
        }
    }
}
