//! Chains of VHDs or VHDX files.

pub(super) mod chained;
mod naive;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use facts::disk::OpenDisk;
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::{Access, FileDisk, Format, OpenOptions, vhd};

use self::chained::Chained;
use self::naive::NaiveChain;
use super::error::BedError;
use super::fill;
use super::subject::subject as opened;

/// Bytes of a contiguous piece of data in a differencing disk.
const PIECE: u64 = 32 << 10;

/// `depth` images of `capacity` bytes: a full dynamic disk, and differencing disks over it. These are empty, or with `spread` share every
/// second piece of the disk between them.
pub(super) struct Chain {
    pub(super) format: Chained,
    pub(super) depth: usize,
    pub(super) spread: bool,
    pub(super) capacity: u64,
}

impl Chain {
    /// Make the images, from the oldest to the newest.
    fn make(&self, folder: &Path) -> Result<Vec<PathBuf>, BedError> {
        let Self { format, depth, spread, capacity } = *self;
        let kind = if spread { "spread" } else { "chain" };
        let name = |number| folder.join(format!("{kind}-{depth}-{number}.{}", format.extension()));
        let paths: Vec<PathBuf> = (0..depth.max(1)).map(name).collect();
        let [oldest, children @ ..] = &paths[..] else { return Ok(paths) };
        format.base(oldest, capacity)?;
        fill_pieces(&*OpenOptions::new(oldest).open_format()?, oldest, 0..capacity / PIECE)?;
        for (number, (child, parent)) in children.iter().zip(&paths).enumerate() {
            format.child(child, parent)?;
            if !spread {
                continue;
            }
            let image = format.open_alone(child, Access::default())?;
            let pieces = (0..capacity / PIECE).step_by(2).skip(number).step_by(children.len());
            fill_pieces(&*image, child, pieces)?;
        }
        Ok(paths)
    }

    /// Make the chain, and read it once.
    pub(super) fn subject(&self, folder: &Path) -> Result<OpenDisk, BedError> {
        let newest = self.make(folder)?.pop().unwrap_or_default();
        read_through(opened(OpenOptions::new(&newest).open()?, Some(newest)), self.capacity)
    }

    /// The same chain twice, for reading: through the block map, and by a [`NaiveChain`]. Both are read once.
    pub(super) fn pair(&self, folder: &Path) -> Result<[OpenDisk; 2], BedError> {
        let paths = self.make(folder)?;
        let newest = paths.last().cloned().unwrap_or_default();
        // It can be open twice only without writers.
        let flat = OpenOptions { read_only: true, ..OpenOptions::new(&newest) }.open()?;
        let naive = Arc::new(FileDisk::new(Arc::new(NaiveChain::open(self.format, &paths)?)));
        let read = |disk| read_through(disk, self.capacity);
        Ok([read(opened(flat, Some(newest.clone())))?, read(opened(naive, Some(newest)))?])
    }
}

fn read_through(disk: OpenDisk, capacity: u64) -> Result<OpenDisk, BedError> {
    fill::read_all(disk.disk.as_ref(), capacity)
        .map_err(|source| BedError::Read { disk: disk.name(), source })?;
    Ok(disk)
}

/// A differencing VHD of `capacity` bytes with every second piece, over a full fixed VHD.
pub(super) fn over_fixed(folder: &Path, capacity: u64) -> Result<OpenDisk, BedError> {
    let (parent, child) = (folder.join("parent.vhd"), folder.join("differencing.vhd"));
    vhd::create_fixed(&parent, capacity)?;
    fill_pieces(&*OpenOptions::new(&parent).open_format()?, &parent, 0..capacity / PIECE)?;
    vhd::create_differencing(&child, &parent, None)?;
    let pieces = (0..capacity / PIECE).step_by(2);
    fill_pieces(&*vhd::open_alone(&child, Access::default())?, &child, pieces)?;
    read_through(opened(OpenOptions::new(&child).open()?, Some(child)), capacity)
}

/// Write data to these pieces of an image, and flush. All chains fill the page cache in pieces of one size, because the cost of the cache
/// depends on the size.
fn fill_pieces(
    image: &dyn Format,
    path: &Path,
    mut pieces: impl Iterator<Item = u64>,
) -> Result<(), BedError> {
    let data: Vec<u8> = (0..PIECE).map(|at| (at % 251) as u8 | 1).collect();
    let content = Content::new(image);
    let written =
        pieces.try_for_each(|piece| content.write_at(&data, piece * PIECE)).map_err(io::Error::other);
    let flushed = written.and_then(|()| image.flush().map_err(io::Error::other));
    flushed.map_err(|source| BedError::Fill { disk: path.display().to_string(), source })
}
