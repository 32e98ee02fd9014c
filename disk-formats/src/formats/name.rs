//! The names of formats.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

#[cfg(not(all(feature = "vhd", feature = "vhdx")))]
use crate::error::OpenError;
use crate::formats::nested::path::is_nested;

/// A format of disks that have a path, in the words of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatName {
    /// The file's bytes.
    Raw,
    /// A block device.
    Passthrough,
    /// Virtual Hard Disk, version 1.
    Vhd,
    /// Virtual Hard Disk, version 2.
    Vhdx,
}

impl FormatName {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Passthrough, Self::Vhd, Self::Vhdx];

    /// `raw`, `passthrough`, `vhd` or `vhdx`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Passthrough => "passthrough",
            Self::Vhd => "vhd",
            Self::Vhdx => "vhdx",
        }
    }

    /// Whether there are disks with blocks and parents of this format: VHD and VHDX.
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::Vhd | Self::Vhdx)
    }

    /// What the name of a file claims, where it claims anything.
    #[must_use]
    pub fn claimed(path: &Path) -> Option<Self> {
        if is_nested(path) {
            return None;
        }
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "vhd" | "avhd" | "vpc" => Some(Self::Vhd),
            "vhdx" | "avhdx" => Some(Self::Vhdx),
            _ => None,
        }
    }

    /// The error for an image of a format whose feature this build does not have.
    #[cfg(not(all(feature = "vhd", feature = "vhdx")))]
    pub(crate) fn left_out(self, path: &Path) -> OpenError {
        let reason = format!("this program is built without the format {self}");
        OpenError::Unsupported { path: path.into(), reason }
    }
}

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no disk format: expected raw, passthrough, vhd or vhdx")]
pub struct UnknownFormat(String);

impl FromStr for FormatName {
    type Err = UnknownFormat;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|name| name.as_str() == word).ok_or_else(|| UnknownFormat(word.into()))
    }
}
