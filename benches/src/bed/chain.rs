//! A chain of VHDs or VHDX files, its data spread over all images.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use facts::disk::OpenDisk;
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::{Access, Format, OpenError, OpenOptions, vhd, vhdx};

use super::error::BedError;
use super::fill;
use super::subject::subject as opened;

/// Bytes of a contiguous piece of data in a differencing disk.
const PIECE: u64 = 32 << 10;
/// Bytes of a block of a differencing VHD: the smaller of the two common sizes, because there may be a thousand disks.
const VHD_BLOCK: u32 = 512 << 10;
/// The same of a VHDX: the smallest.
const VHDX_BLOCK: u32 = 1 << 20;

/// A format that has chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chained {
    Vhd,
    Vhdx,
}

impl Chained {
    fn extension(self) -> &'static str {
        match self {
            Self::Vhd => "vhd",
            Self::Vhdx => "vhdx",
        }
    }

    fn base(self, path: &Path, capacity: u64) -> Result<(), OpenError> {
        match self {
            Self::Vhd => vhd::create_dynamic(path, capacity, None),
            Self::Vhdx => vhdx::create_dynamic(path, capacity, vhdx::CreateOptions::default()),
        }
    }

    fn child(self, path: &Path, parent: &Path) -> Result<(), OpenError> {
        match self {
            Self::Vhd => vhd::create_differencing(path, parent, Some(VHD_BLOCK)),
            Self::Vhdx => vhdx::create_differencing(path, parent, Some(VHDX_BLOCK)),
        }
    }

    fn open_alone(self, path: &Path) -> Result<Arc<dyn Format>, OpenError> {
        match self {
            Self::Vhd => vhd::open_alone(path, Access::default()),
            Self::Vhdx => vhdx::open_alone(path, Access::default()),
        }
    }
}

/// `depth` images of `capacity` bytes: a full dynamic disk, and differencing disks over it, which are empty, or with `spread` hold
/// every second piece of the disk between them. The chain is read through once.
pub(super) fn subject(
    folder: &Path,
    format: Chained,
    depth: usize,
    spread: bool,
    capacity: u64,
) -> Result<OpenDisk, BedError> {
    let kind = if spread { "spread" } else { "chain" };
    let path = |number: usize| folder.join(format!("{kind}-{depth}-{number}.{}", format.extension()));
    format.base(&path(0), capacity)?;
    // The page cache is filled in pieces of one size for all chains: its cost depends on their size.
    let data: Vec<u8> = (0..PIECE).map(|at| (at % 251) as u8 | 1).collect();
    let failed =
        |path: PathBuf| move |source: io::Error| BedError::Fill { disk: path.display().to_string(), source };
    let base = OpenOptions::new(path(0)).open_format()?;
    write(&*base, &data, 0..capacity / PIECE).map_err(failed(path(0)))?;
    drop(base);
    let children = depth.saturating_sub(1);
    for child in 1..=children {
        format.child(&path(child), &path(child - 1))?;
        if !spread {
            continue;
        }
        let image = format.open_alone(&path(child))?;
        let pieces = (0..capacity / PIECE).step_by(2).skip(child - 1).step_by(children);
        write(&*image, &data, pieces).map_err(failed(path(child)))?;
    }
    let top = opened(OpenOptions::new(path(children)).open()?, Some(path(children)));
    fill::read_all(top.disk.as_ref(), capacity)
        .map_err(|source| BedError::Read { disk: top.name(), source })?;
    Ok(top)
}

/// A differencing VHD of `capacity` bytes over a full fixed one. It holds every second piece.
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
    let disk = opened(OpenOptions::new(&child).open()?, Some(child));
    fill::read_all(disk.disk.as_ref(), capacity)
        .map_err(|source| BedError::Read { disk: disk.name(), source })?;
    Ok(disk)
}

/// Write the same data to each of these pieces of a disk, and flush.
fn write(format: &dyn Format, data: &[u8], mut pieces: impl Iterator<Item = u64>) -> io::Result<()> {
    let content = Content::new(format);
    pieces.try_for_each(|piece| content.write_at(data, piece * PIECE)).map_err(io::Error::other)?;
    format.flush().map_err(io::Error::other)
}
