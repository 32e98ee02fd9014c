//! Opening a disk that is a file or device of the host: format probing and options.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::contract::error::OpenError;
use crate::formats::flat::Sectors;
use crate::formats::flat::passthrough::Passthrough;
use crate::formats::flat::raw::Raw;
use crate::formats::name::FormatName;
use crate::formats::parents::ParentRules;
use crate::formats::signature::{Foreign, has_footer, has_identifier};
#[cfg(feature = "vhd")]
use crate::formats::vhd;
#[cfg(feature = "vhdx")]
use crate::formats::vhdx;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::map::format::Format;

/// Formats that the caller may have to name.
pub(crate) const RAW: &[&str] = &[FormatName::Raw.as_str()];
const PASSTHROUGH: &[&str] = &[FormatName::Passthrough.as_str()];
const VHD_OR_RAW: &[&str] = &[FormatName::Vhd.as_str(), FormatName::Raw.as_str()];
const VHDX_OR_RAW: &[&str] = &[FormatName::Vhdx.as_str(), FormatName::Raw.as_str()];

/// Options for opening a disk. The I/O engine is chosen for each queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// The image or block device. `OUTER//` is the image that is the content of the disk in OUTER, `OUTER//N` the image
    /// in its partition N. Two levels are supported.
    pub path: PathBuf,
    /// Its format; `None`: probed.
    ///
    /// A block device is `passthrough`. For a file, name and content must agree: a guest can write a footer into its
    /// raw disk, and must not change the disk's format by that. The path of a nested image has no extension, so only
    /// the content decides.
    pub format: Option<FormatName>,
    /// The disk must not be written.
    pub read_only: bool,
    /// `O_DIRECT`; `None`: on for `passthrough`, off for the others.
    pub direct: Option<bool>,
    /// Sector sizes of a raw or pass-through disk. Those of a VHD or VHDX are in the image. Of a nested image: those of the
    /// outer disk.
    pub sectors: Sectors,
    /// Rules for locating the parents of a differencing disk.
    pub parents: ParentRules,
    /// Memory limit in bytes of the map of a VHD or VHDX; `None`: 64 MiB. It is raised to what a single request of 32
    /// MiB needs.
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
            sectors: Sectors::default(),
            parents: ParentRules::default(),
            map_memory: None,
        }
    }

    /// Name the parent of a differencing disk outright: see [`ParentRules::parent`].
    #[must_use]
    pub fn parent(mut self, path: impl Into<PathBuf>) -> Self {
        self.parents.parent = Some(path.into());
        self
    }
}

/// Open a disk whose path is not nested.
pub(crate) fn open_file(options: &OpenOptions) -> Result<Arc<dyn Format>, OpenError> {
    let name = match options.format {
        Some(name) => name,
        None => probe_file(&options.path)?,
    };
    let direct = options.direct.unwrap_or(name == FormatName::Passthrough);
    let access = Access { read_only: options.read_only, direct };
    #[cfg(any(feature = "vhd", feature = "vhdx"))]
    let map_memory = options.map_memory.unwrap_or(crate::map::block_map::DEFAULT_MEMORY);
    Ok(match name {
        FormatName::Raw => Arc::new(Raw::open_with(&options.path, access, options.sectors)?),
        FormatName::Passthrough => Arc::new(Passthrough::open_with(&options.path, access, options.sectors)?),
        name if options.sectors != Sectors::default() => {
            let reason = format!(
                "a {name} image has its own sector sizes: they can be chosen for raw and passthrough"
            );
            return Err(OpenError::unsupported(&options.path, reason));
        }
        #[cfg(feature = "vhd")]
        FormatName::Vhd => vhd::open_with(&options.path, access, &options.parents, map_memory)?,
        #[cfg(feature = "vhdx")]
        FormatName::Vhdx => vhdx::open_with(&options.path, access, &options.parents, map_memory)?,
        #[cfg(not(all(feature = "vhd", feature = "vhdx")))]
        name => return Err(name.not_built(&options.path)),
    })
}

/// The format of a file or device: see [`OpenOptions::format`].
///
/// # Errors
/// [`OpenError::Unsupported`] if name and content disagree; the host's error.
pub(crate) fn probe_file(path: &Path) -> Result<FormatName, OpenError> {
    let os = |action| OpenError::os(path, action);
    let kind = std::fs::metadata(path).map_err(os("cannot open"))?.file_type();
    let file = BackingFile::open(path, Access::READ_ONLY)?;
    if kind.is_block_device() {
        return refuse_foreign(path, &file, PASSTHROUGH).map(|()| FormatName::Passthrough);
    }
    let vhdx = has_identifier(&file).map_err(os("cannot read"))?;
    let vhd = has_footer(&file).map_err(os("cannot read"))?;
    let unclear = |found: &str, formats| {
        Err(OpenError::FormatUnclear { path: path.into(), found: found.to_owned(), formats })
    };
    match (FormatName::claimed(path), vhd, vhdx) {
        (Some(FormatName::Vhd), true, _) => Ok(FormatName::Vhd),
        (Some(FormatName::Vhdx), _, true) => Ok(FormatName::Vhdx),
        #[cfg(feature = "vhd")]
        (Some(FormatName::Vhd), false, _) if vhd::is_inside(&file).map_err(os("cannot read"))? => {
            Ok(FormatName::Vhd)
        }
        (None, true, _) => {
            unclear("ends with a VHD footer, but is not named as a VHD: rename it", VHD_OR_RAW)
        }
        (None, _, true) => unclear("begins as a VHDX, but is not named as one: rename it", VHDX_OR_RAW),
        (claimed, ..) => {
            refuse_foreign(path, &file, RAW)?;
            match claimed {
                Some(FormatName::Vhd) => {
                    unclear("named as a VHD, but has no VHD footer: rename it", VHD_OR_RAW)
                }
                Some(_) => unclear("named as a VHDX, but has no VHDX identifier: rename it", VHDX_OR_RAW),
                None => Ok(FormatName::Raw),
            }
        }
    }
}

/// Refuse to take an image of another program, a compressed file and the like as a raw disk. `formats`: which formats the
/// caller may name nevertheless.
///
/// # Errors
/// [`OpenError::FormatUnclear`]; the host's error.
pub(crate) fn refuse_foreign(
    path: &Path,
    store: &dyn Store,
    formats: &'static [&'static str],
) -> Result<(), OpenError> {
    let found = Foreign::find(store);
    let found = found.map_err(OpenError::os(path, "cannot read"))?;
    let Some(Foreign { name, remedy }) = found else { return Ok(()) };
    let found = format!("{name}, not a raw disk: {remedy}");
    Err(OpenError::FormatUnclear { path: path.into(), found, formats })
}
