//! The description of an image, for `image info`.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::chain::Image;
use super::layout::Slot;
use super::scan::scan;
use super::spec::FILE_SIGNATURE;
use crate::error::OpenError;
use crate::formats::chain::open_images;
use crate::formats::parents::ParentRules;
use crate::host::store::Store;

/// One image.
#[derive(Clone, Debug)]
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
    /// Bytes of a block.
    pub block_size: u64,
    /// Blocks with data in the file, and blocks of the virtual size.
    pub blocks: (u64, u64),
    /// Bytes of a logical and of a physical sector.
    pub sectors: (u32, u32),
    /// Identity of the disk as guests see it.
    pub disk_id: Uuid,
    /// What children know its content by.
    pub data_write_guid: Uuid,
    /// Who made the file.
    pub creator: String,
    /// Entries of the log that are to be replayed: the file was not closed.
    pub log_entries: usize,
    /// What the child has noted of its parent, and the files that are tried for it; `None` without one.
    pub parent: Option<(Uuid, Vec<PathBuf>)>,
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
    let os = |source| OpenError::Os { path: path.into(), action: "cannot read the VHDX's metadata", source };
    let (opened, parameters) = (&image.opened, &image.opened.metadata.parameters);
    let mut allocated = 0;
    scan(&*opened.store, &opened.layout, |index, entry| {
        allocated += u64::from(matches!(opened.layout.slot(index), Slot::Payload(_)) && entry.present());
    })
    .map_err(os)?;
    Ok(Description {
        path: path.into(),
        subformat: parameters.subformat(),
        size: parameters.size,
        file_size: image.file.size(),
        block_size: u64::from(parameters.block_size),
        blocks: (allocated, opened.layout.blocks()),
        sectors: (parameters.logical.bytes(), parameters.physical),
        disk_id: parameters.disk_id,
        data_write_guid: opened.headers.data_write_guid(),
        creator: creator(&*opened.store).map_err(os)?,
        log_entries: opened.replayed,
        parent: opened
            .metadata
            .locator
            .as_ref()
            .map(|locator| (locator.linkages().0, locator.candidates(path))),
    })
}

/// What the file says of its maker: any text.
fn creator(store: &dyn Store) -> std::io::Result<String> {
    let mut bytes = [0; 512];
    store.read_at(&mut bytes, FILE_SIGNATURE.len() as u64)?;
    let units = bytes.chunks_exact(2).map(|unit| unit.try_into().map_or(0, u16::from_le_bytes));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    let text = String::from_utf16_lossy(&units);
    Ok(text.chars().map(|letter| if letter.is_control() { '.' } else { letter }).collect())
}
