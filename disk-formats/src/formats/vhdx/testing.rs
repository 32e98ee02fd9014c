//! Helpers for tests of disks over a [`CrashFile`].

use std::io;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use super::alloc::Allocator;
use super::blocks::VhdxDisk;
use super::chain::layers;
use super::check::check;
use super::journal::Journal;
use super::locator::Locator;
use super::metadata::Parameters;
use super::opened::Opened;
use super::{create, header};
use crate::contract::error::IoError;
use crate::contract::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::formats::findings::{CheckReport, End};
use crate::host::crash::{CrashFile, Image};
use crate::host::store::Store;
use crate::map::block_map::DEFAULT_MEMORY;
use crate::map::extent::{Extents, Place};
use crate::map::format::{Format, Mapping};
use crate::queue::conformance::Random;

/// Unit of the tests' values, whatever the disk's sectors are: no medium tears a smaller unit.
pub(super) const UNIT: u64 = 512;

/// Properties of a new disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) size: u64,
    pub(super) block_size: u32,
    pub(super) sector: SectorSize,
    pub(super) fixed: bool,
}

/// Check a file, including its end.
pub(super) fn check_in(store: Arc<dyn Store>, repair: bool) -> io::Result<CheckReport> {
    check(store, repair, End::MayBeCut)
}

/// The file of a new disk, over `parent` if there is one.
pub(super) fn new_image(shape: Shape, parent: Option<&Image>) -> Image {
    let file = CrashFile::default();
    let parameters = Parameters {
        block_size: shape.block_size,
        leave_allocated: shape.fixed,
        has_parent: parent.is_some(),
        size: shape.size,
        disk_id: Uuid::from_u128(7),
        logical: shape.sector,
        physical: 4096,
    };
    let layout = create::new_layout(&parameters);
    if shape.fixed {
        file.set_size(layout.bat.end() + layout.blocks() * layout.block_size()).expect("space");
    }
    let locator = parent.map(|parent| {
        let headers = header::read(&CrashFile::of(parent.clone())).expect("headers");
        let locator =
            Locator::new(Path::new("/child.vhdx"), Path::new("/parent.vhdx"), headers.data_write_guid());
        locator.expect("a locator").encode().expect("a locator")
    });
    create::write(&file, &parameters, locator.as_deref()).expect("space");
    file.image()
}

/// The metadata of a file.
pub(super) fn opened(file: &CrashFile, writable: bool) -> Result<Opened, String> {
    Opened::read(Arc::new(file.clone()), writable).map_err(|error| format!("{error:?}"))
}

/// The disk of a chain of files, from the top down.
pub(super) fn open(files: &[CrashFile], read_only: bool) -> Result<VhdxDisk, String> {
    let mut images = Vec::new();
    for (number, file) in files.iter().enumerate() {
        images.push(opened(file, number == 0 && !read_only)?);
    }
    disk(images, read_only)
}

/// The disk of a chain of images, from the top down.
pub(super) fn disk(images: Vec<Opened>, read_only: bool) -> Result<VhdxDisk, String> {
    let top = images.first().ok_or("no images")?;
    let (parameters, layout) = (top.metadata.parameters, top.layout);
    let writer = match read_only {
        true => None,
        false => {
            let allocator = Allocator::open(top).map_err(|error| format!("{error:?}"))?;
            Some((allocator, Journal::new(Arc::clone(&top.store), top.headers)))
        }
    };
    let discard = DiscardLimits { granularity: layout.block_size(), reads_zero: !layout.has_parent };
    let info = DiskInfo {
        kind: Kind { format: "vhdx", subformat: None },
        capacity: layout.size,
        logical_sector: layout.sector,
        physical_sector: 4096,
        read_only,
        volatile_cache: true,
        discard: (!parameters.leave_allocated).then_some(discard),
        buffer_alignment: 1,
    };
    let layers = layers(images.into_iter()).map_err(|error| error.to_string())?;
    Ok(VhdxDisk::of_layers(info, layout, layers, Vec::new(), writer, DEFAULT_MEMORY))
}

/// Read from the files themselves, as a queue does.
pub(super) fn read(
    disk: &VhdxDisk,
    files: &[CrashFile],
    data: &mut [u8],
    offset: u64,
) -> Result<(), IoError> {
    let len = data.len() as u64;
    let mut extents = Extents::new();
    let mut tries = 0;
    while disk.map_read(offset, len, &mut extents)? == Mapping::Blocked {
        tries += 1;
        if tries > 64 {
            return Err(IoError::Damaged("the range cannot be mapped"));
        }
        disk.prepare_read(offset, len)?;
        extents.clear();
    }
    let mut rest = data;
    for extent in extents.as_slice() {
        let (part, behind) = rest.split_at_mut(extent.len as usize);
        rest = behind;
        match extent.place {
            Place::Zeros => part.fill(0),
            Place::File { file, offset } => {
                let file = files.get(file as usize).ok_or(IoError::OutOfRange)?;
                let inside = file.len().expect("a length").saturating_sub(offset);
                if inside < part.len() as u64 && !disk.zeros_past_end() {
                    return Err(IoError::Damaged("the file ends inside the disk"));
                }
                let (there, behind) = part.split_at_mut(inside.min(extent.len) as usize);
                if !there.is_empty() {
                    file.read_at(there, offset).expect("inside");
                }
                behind.fill(0);
            }
        }
    }
    Ok(())
}

/// Subsets of `open` changes: all, if there are up to `exhaustive`; else all changes, none, and samples of few to most.
pub(super) fn picks(open: usize, exhaustive: usize, samples: usize, random: &mut Random) -> Vec<Vec<bool>> {
    if open <= exhaustive {
        return (0..1 << open).map(|bits: u64| (0..open).map(|at| bits >> at & 1 == 1).collect()).collect();
    }
    let of_sixteen = [16, 0].into_iter().chain([15, 8, 1].into_iter().cycle());
    let pick = |of_sixteen| (0..open).map(|_| random.below(16) < of_sixteen).collect();
    of_sixteen.take(samples).map(pick).collect()
}
