//! Opening a disk by path: which format it is, and how it is used.

use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::disk::Disk;
use crate::disk::file_disk::FileDisk;
use crate::error::OpenError;
use crate::formats::flat::passthrough::Passthrough;
use crate::formats::flat::raw::Raw;
use crate::formats::format::Format;
use crate::formats::nested;
use crate::formats::nested::is_nested;
use crate::formats::parents::ParentRules;
use crate::formats::signature::{has_footer, has_identifier};
#[cfg(feature = "vhd")]
use crate::formats::vhd;
#[cfg(feature = "vhdx")]
use crate::formats::vhdx;
use crate::host::backing::{Access, BackingFile};

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
}

impl FormatName {
    /// What the name of a file claims, where it claims anything.
    #[must_use]
    pub fn claimed(path: &Path) -> Option<Self> {
        claimed(path)
    }

    /// The error for an image of a format whose feature this build does not have.
    #[cfg(not(all(feature = "vhd", feature = "vhdx")))]
    pub(crate) fn left_out(self, path: &Path) -> OpenError {
        let reason = format!("this program is built without the format {self}");
        OpenError::Unsupported { path: path.into(), reason }
    }

    /// The format of the disk at `path`: see [`OpenOptions::format`].
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] where name and content disagree; the host's error.
    pub fn probe(path: &Path) -> Result<Self, OpenError> {
        probe(path)
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

/// How a disk is opened. The engine is chosen for each queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// The image or block device; `OUTER//` is the image that is the content of the disk in OUTER, `OUTER//N` the one in partition
    /// N of it, and both may be said twice.
    pub path: PathBuf,
    /// Its format; `None`: probed.
    ///
    /// A block device is `passthrough`. A file is what name and content agree on: a guest can write a footer into its
    /// raw disk, and must not turn it into another format by that. For an image inside a disk the content alone
    /// decides: its path has no name that could claim a format.
    pub format: Option<FormatName>,
    /// Nothing may be written.
    pub read_only: bool,
    /// `O_DIRECT`; `None`: on for `passthrough`, off for the others.
    pub direct: Option<bool>,
    /// Which files may be taken for parents of a differencing disk.
    pub parents: ParentRules,
    /// Bytes of memory that the map of a VHD or VHDX takes at the most; `None`: 64 MiB. A map that is too small for one
    /// request of 32 MiB takes what that needs.
    pub map_memory: Option<u64>,
}

impl OpenOptions {
    /// A writable disk at `path`, its format probed.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            format: None,
            read_only: false,
            direct: None,
            parents: ParentRules::default(),
            map_memory: None,
        }
    }

    /// Open it.
    ///
    /// # Errors
    /// [`OpenError`] names the path and what is wrong.
    pub fn open(&self) -> Result<Arc<dyn Disk>, OpenError> {
        Ok(Arc::new(FileDisk::new(self.open_format()?)))
    }

    /// Open its format alone: for tools that map rather than read and write.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_format(&self) -> Result<Arc<dyn Format>, OpenError> {
        if let Some(opened) = nested::open(self) {
            return opened;
        }
        let name = match self.format {
            Some(name) => name,
            None => probe(&self.path)?,
        };
        let format = self.open_named(name)?;
        let info = format.info();
        tracing::info!(
            path = %self.path.display(),
            format = %name,
            capacity = info.capacity,
            read_only = info.read_only,
            files = format.files().len(),
            "disk opened"
        );
        Ok(format)
    }

    fn open_named(&self, name: FormatName) -> Result<Arc<dyn Format>, OpenError> {
        let direct = self.direct.unwrap_or(name == FormatName::Passthrough);
        let access = Access { read_only: self.read_only, direct };
        #[cfg(any(feature = "vhd", feature = "vhdx"))]
        let map_memory = self.map_memory.unwrap_or(crate::map::block_map::DEFAULT_MEMORY);
        Ok(match name {
            FormatName::Raw => Arc::new(Raw::open(&self.path, access)?),
            FormatName::Passthrough => Arc::new(Passthrough::open(&self.path, access)?),
            #[cfg(feature = "vhd")]
            FormatName::Vhd => vhd::open_with(&self.path, access, &self.parents, map_memory)?,
            #[cfg(feature = "vhdx")]
            FormatName::Vhdx => vhdx::open_with(&self.path, access, &self.parents, map_memory)?,
            #[cfg(not(all(feature = "vhd", feature = "vhdx")))]
            left_out => return Err(left_out.left_out(&self.path)),
        })
    }
}

/// What a file name claims.
fn claimed(path: &Path) -> Option<FormatName> {
    if is_nested(path) {
        return None;
    }
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "vhd" | "avhd" | "vpc" => Some(FormatName::Vhd),
        "vhdx" | "avhdx" => Some(FormatName::Vhdx),
        _ => None,
    }
}

fn probe(path: &Path) -> Result<FormatName, OpenError> {
    let inside = OpenOptions { read_only: true, ..OpenOptions::new(path) };
    if let Some(opened) = nested::open(&inside) {
        let format = opened?.info().kind.format;
        return format
            .parse()
            .map_err(|_| OpenError::Unsupported { path: path.into(), reason: format.into() });
    }
    let os = |action| move |source| OpenError::Os { path: path.into(), action, source };
    let kind = std::fs::metadata(path).map_err(os("cannot open"))?.file_type();
    if kind.is_block_device() {
        return Ok(FormatName::Passthrough);
    }
    let file = BackingFile::open(path, Access { read_only: true, direct: false })?;
    let vhdx = has_identifier(&file).map_err(os("cannot read"))?;
    let vhd = has_footer(&file).map_err(os("cannot read"))?;
    let unclear = |reason: &str| OpenError::Unsupported { path: path.into(), reason: reason.into() };
    match (claimed(path), vhd, vhdx) {
        (Some(FormatName::Vhd), true, _) => Ok(FormatName::Vhd),
        (Some(FormatName::Vhdx), _, true) => Ok(FormatName::Vhdx),
        (Some(FormatName::Vhd), false, _) => {
            Err(unclear("named as a VHD, but has no VHD footer: name its format (format=vhd or format=raw)"))
        }
        (Some(_), _, false) => Err(unclear(
            "named as a VHDX, but has no VHDX identifier: name its format (format=vhdx or format=raw)",
        )),
        (_, true, _) => Err(unclear(
            "ends with a VHD footer, but is not named as a VHD: name its format (format=raw or format=vhd)",
        )),
        (_, _, true) => Err(unclear(
            "begins as a VHDX, but is not named as one: name its format (format=raw or format=vhdx)",
        )),
        (_, false, false) => Ok(FormatName::Raw),
    }
}

#[cfg(test)]
mod tests;
