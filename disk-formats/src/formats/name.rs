//! Names of disk formats.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

#[cfg(not(all(feature = "vhd", feature = "vhdx")))]
use crate::contract::error::OpenError;
use crate::formats::nested::path::is_nested;

/// A format of disks that have a path. Its text form is the one of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatName {
    /// Raw file.
    Raw,
    /// A block device.
    Passthrough,
    /// Virtual Hard Disk, version 1.
    Vhd,
    /// Virtual Hard Disk, version 2.
    Vhdx,
}

impl FormatName {
    /// All formats.
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

    /// Whether the format has blocks and parents (VHD and VHDX).
    #[must_use]
    pub const fn has_blocks(self) -> bool {
        matches!(self, Self::Vhd | Self::Vhdx)
    }

    /// The format that a file's extension implies, if any.
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

    /// The error for a format whose feature this build does not have.
    #[cfg(not(all(feature = "vhd", feature = "vhdx")))]
    pub(crate) fn not_built(self, path: &Path) -> OpenError {
        let reason = format!("this program is built without the format {self}");
        OpenError::unsupported(path, reason)
    }
}

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a name that is not a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no disk format: expected raw, passthrough, vhd or vhdx")]
pub struct UnknownFormat(String);

impl FromStr for FormatName {
    type Err = UnknownFormat;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|name| name.as_str() == word).ok_or_else(|| UnknownFormat(word.into()))
    }
}
