//! Times of whole operations on image files.

use facts::units::format_size;
use serde::{Deserialize, Serialize};

use crate::stat::Stat;

/// The time of an operation on an image file, until its result is on stable storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// `create`, `merge` (into the parent), `compact`, `convert` (to VHDX), `zero-fill` (zeros are written to a raw file).
    pub operation: String,
    /// `vhd`, `vhdx`, `raw`.
    pub format: String,
    /// `fixed`, `dynamic`, `differencing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subformat: Option<String>,
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of data in it.
    pub data: u64,
    /// `ext4`, `xfs`, `btrfs`: on a loop device. `host`: the file system of the folder for temporary files.
    pub file_system: String,
    /// Seconds over all runs; none if skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Stat>,
    /// Seconds of each run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<f64>,
    /// Why it was skipped: the host lacks a requirement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Timing {
    /// `create vhdx fixed 2040G`.
    #[must_use]
    pub fn label(&self) -> String {
        let mut text = format!("{} {}", self.operation, self.format);
        if let Some(subformat) = &self.subformat {
            text += &format!(" {subformat}");
        }
        text + &format!(" {}", format_size(self.size))
    }
}
