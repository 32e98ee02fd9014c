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
/// Make `depth` images of `capacity` bytes, from the oldest to the newest: a full dynamic disk, and differencing disks over it. These are
/// empty, or with `spread` share every second piece of the disk between them.
fn make(
    folder: &Path,
    format: Chained,
    depth: usize,
    spread: bool,
    capacity: u64,
) -> Result<Vec<PathBuf>, BedError> {
    let kind = if spread { "spread" } else { "chain" };
    let name = |number| folder.join(format!("{kind}-{depth}-{number}.{}", format.extension()));
    let paths: Vec<PathBuf> = (0..depth.max(1)).map(name).collect();
    let [oldest, children @ ..] = &paths[..] else { return Ok(paths) };
    format.base(oldest, capacity)?;
    // All chains fill the page cache in pieces of one size, because the cost of the cache depends on the size.
    let data: Vec<u8> = (0..PIECE).map(|at| (at % 251) as u8 | 1).collect();
    let failed = |path: &Path| {
        let disk = path.display().to_string();
        move |source: io::Error| BedError::Fill { disk, source }
    };
    let base = OpenOptions::new(oldest).open_format()?;
    write(&*base, &data, 0..capacity / PIECE).map_err(failed(oldest))?;
    drop(base);
    for (number, (child, parent)) in children.iter().zip(&paths).enumerate() {
        format.child(child, parent)?;
        if !spread {
            continue;
        }
        let image = format.open_alone(child, Access::default())?;
        let pieces = (0..capacity / PIECE).step_by(2).skip(number).step_by(children.len());
        write(&*image, &data, pieces).map_err(failed(child))?;
    }
    Ok(paths)
}

/// A chain made by [`make`], read once.
pub(super) fn subject(
    folder: &Path,
    format: Chained,
    depth: usize,
    spread: bool,
    capacity: u64,
) -> Result<OpenDisk, BedError> {
    let newest = make(folder, format, depth, spread, capacity)?.pop().unwrap_or_default();
    read_through(opened(OpenOptions::new(&newest).open()?, Some(newest)), capacity)
}

/// The same chain twice, for reading: through the block map, and by a [`NaiveChain`]. Both are read once.
pub(super) fn pair(
    folder: &Path,
    format: Chained,
    depth: usize,
    spread: bool,
    capacity: u64,
) -> Result<[OpenDisk; 2], BedError> {
    let paths = make(folder, format, depth, spread, capacity)?;
    let newest = paths.last().cloned().unwrap_or_default();
    // It can be open twice only without writers.
    let flat = OpenOptions { read_only: true, ..OpenOptions::new(&newest) }.open()?;
    let naive = Arc::new(FileDisk::new(Arc::new(NaiveChain::open(format, &paths)?)));
    let read = |disk| read_through(disk, capacity);
    Ok([read(opened(flat, Some(newest.clone())))?, read(opened(naive, Some(newest)))?])
}

fn read_through(disk: OpenDisk, capacity: u64) -> Result<OpenDisk, BedError> {
    fill::read_all(disk.disk.as_ref(), capacity)
        .map_err(|source| BedError::Read { disk: disk.name(), source })?;
    Ok(disk)
}

/// A differencing VHD of `capacity` bytes with every second piece, over a full fixed VHD.
pub(super) fn over_fixed(folder: &Path, capacity: u64) -> Result<OpenDisk, BedError> {
    let (parent, child) = (folder.join("parent.vhd"), folder.join("differencing.vhd"));
    let data: Vec<u8> = (0..PIECE).map(|at| (at % 251) as u8 | 1).collect();
    let failed = |path: &Path, source: io::Error| BedError::Fill { disk: path.display().to_string(), source };
    vhd::create_fixed(&parent, capacity)?;
    let image = OpenOptions::new(&parent).open_format()?;
    write(&*image, &data, 0..capacity / PIECE).map_err(|source| failed(&parent, source))?;
    drop(image);
    vhd::create_differencing(&child, &parent, None)?;
    let image = vhd::open_alone(&child, Access::default())?;
    write(&*image, &data, (0..capacity / PIECE).step_by(2)).map_err(|source| failed(&child, source))?;
    drop(image);
    read_through(opened(OpenOptions::new(&child).open()?, Some(child)), capacity)
}

/// Write the same data to each of these pieces of a disk, and flush.
fn write(format: &dyn Format, data: &[u8], mut pieces: impl Iterator<Item = u64>) -> io::Result<()> {
    let content = Content::new(format);
    pieces.try_for_each(|piece| content.write_at(data, piece * PIECE)).map_err(io::Error::other)?;
    format.flush().map_err(io::Error::other)
}
