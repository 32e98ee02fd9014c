//! A chain of VHDs, its data spread over all images.

use std::path::Path;

use disk_formats::image::Content;
use disk_formats::{Access, Format, IoError, OpenOptions, vhd};

use super::{BedError, fill, filled, subject as opened};
use crate::subject::Subject;

/// Bytes that a differencing disk holds in one place.
const PIECE: u64 = 32 << 10;
/// Bytes of a block of a differencing disk: the smaller of the two usual sizes, for there may be a thousand disks.
const BLOCK: u32 = 512 << 10;

/// `depth` images of `capacity` bytes: a full dynamic disk below, differencing disks above it, which share every second piece of
/// the disk among them. Read through once.
pub(super) fn subject(folder: &Path, name: &str, depth: usize, capacity: u64) -> Result<Subject, BedError> {
    let path = |number: usize| folder.join(format!("{name}-{number}.vhd"));
    vhd::create_dynamic(&path(0), capacity, None)?;
    let base = opened(OpenOptions::new(path(0)).open()?, Some(path(0)));
    filled(&base)?;
    fill::flush(base.disk.as_ref()).map_err(|source| super::fill_error(&base, source))?;
    drop(base);
    let children = depth.saturating_sub(1);
    let data: Vec<u8> = (0..PIECE).map(|at| (at % 251) as u8 | 1).collect();
    for child in 1..=children {
        vhd::create_differencing(&path(child), &path(child - 1), Some(BLOCK))?;
        let image = vhd::open_alone(&path(child), Access::default())?;
        let pieces = (0..capacity / PIECE / 2).skip(child - 1).step_by(children);
        let write = |piece: u64| Content::new(&image).write_at(&data, piece * 2 * PIECE);
        pieces.map(write).collect::<Result<(), IoError>>().and_then(|()| image.flush()).map_err(|error| {
            BedError::Fill { disk: path(child).display().to_string(), source: std::io::Error::other(error) }
        })?;
    }
    let top = opened(OpenOptions::new(path(children)).open()?, Some(path(children)));
    fill::read_all(top.disk.as_ref(), capacity)
        .map_err(|source| BedError::Read { disk: top.name(), source })?;
    Ok(top)
}
