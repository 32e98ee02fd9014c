//! The options that say which files may be parents of differencing disks, common to all subcommands.

use std::path::PathBuf;

use paradisk_disk_formats::ParentRules;

/// Which files may be parents.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Parents {
    /// The parent of the differencing disk that is read, wherever it is; the disk itself is not written
    #[arg(long, value_name = "FILE")]
    parent_file: Option<PathBuf>,
    /// A directory where parents of differencing disks may be, with all directories below it, besides that of the image; they are looked
    /// for by name if they are not where the image says; may be repeated
    #[arg(long, value_name = "DIR")]
    parent_dir: Vec<PathBuf>,
    /// Take a parent that was changed since its child was made
    #[arg(long)]
    any_parent_time: bool,
}

impl Parents {
    pub(crate) fn rules(&self) -> ParentRules {
        ParentRules {
            parent: self.parent_file.clone(),
            directories: self.parent_dir.clone(),
            any_time: self.any_parent_time,
        }
    }
}
