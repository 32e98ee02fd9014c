//! The description of an image, for `image info`.

use std::path::{Path, PathBuf};

use super::chain::{Image, hex};
use super::footer::Source;
use super::layer::read_bat;
use super::locator;
use super::spec::{EPOCH, UNALLOCATED};
use crate::error::OpenError;
use crate::formats::chain::open_images;
use crate::formats::parents::ParentRules;

/// An image of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The file.
    pub path: PathBuf,
    /// `fixed`, `dynamic` or `differencing`.
    pub subformat: &'static str,
    /// Virtual size in bytes.
    pub size: u64,
    /// Bytes of the file.
    pub file_size: u64,
    /// Bytes of a block; `None` of a fixed disk.
    pub block_size: Option<u64>,
    /// Blocks in the file, of how many; `None` of a fixed disk.
    pub blocks: Option<(u64, u64)>,
    /// Identity in hexadecimal.
    pub unique_id: String,
    /// The program that made it: four characters, `.` for those that are none.
    pub creator: String,
    /// Seconds since 1970.
    pub time_stamp: u64,
    /// The trailing footer is missing or damaged: the copy was used.
    pub footer_from_copy: bool,
    /// Identity of the parent, and the files that are tried for it; `None` without one.
    pub parent: Option<(String, Vec<PathBuf>)>,
}

/// Describe an image, and with `chain` its parents, from the top down.
///
/// # Errors
/// As for [`open`](super::open), but for parents that cannot be opened, unless `chain` is set.
pub fn inspect(path: &Path, chain: bool, rules: &ParentRules) -> Result<Vec<Description>, OpenError> {
    open_images::<Image>(path, chain, rules)?.iter().map(describe).collect()
}

fn describe(image: &Image) -> Result<Description, OpenError> {
    let path = image.file.path();
    let os = |source| OpenError::Os { path: path.into(), action: "cannot read the VHD's metadata", source };
    let footer = &image.found.footer;
    let blocks = match &image.sparse {
        None => None,
        // No need to read megabytes of table where the file is too short for a block.
        Some((_, layout)) if image.file.size() < layout.metadata_bytes() + layout.block_size() => {
            Some((0, u64::from(layout.used_entries())))
        }
        Some((_, layout)) => {
            let table = read_bat(&*image.file, layout, 0, u64::from(layout.used_entries())).map_err(os)?;
            Some((table.iter().filter(|entry| **entry != UNALLOCATED).count() as u64, table.len() as u64))
        }
    };
    let parent = match image.child_header() {
        None => None,
        Some(header) => {
            let candidates = locator::candidates(&*image.file, header).map_err(os)?;
            Some((hex(&header.parent_unique_id), candidates))
        }
    };
    let printable =
        |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
    Ok(Description {
        path: path.into(),
        subformat: image.found.subformat.as_str(),
        size: image.found.size,
        file_size: image.file.size(),
        block_size: image.sparse.map(|(_, layout)| layout.block_size()),
        blocks,
        unique_id: hex(&footer.unique_id),
        creator: footer.creator_application.iter().map(printable).collect(),
        time_stamp: EPOCH + u64::from(footer.time_stamp.get()),
        footer_from_copy: image.found.source == Source::Copy,
        parent,
    })
}
