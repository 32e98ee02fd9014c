//! What tests of disks over a [`CrashFile`] share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use zerocopy::IntoBytes;

use super::alloc::Allocator;
use super::blocks::{SparseVhd, VhdBlocks};
use super::create;
use super::footer::{self, Found, Subformat};
use super::layer::{Layer, Shape};
use super::layout::{self, Layout};
use super::spec::{DynamicHeader, SECTOR};
use crate::contract::info::{DiskInfo, Kind, SectorSize};
use crate::host::crash::{CrashFile, stamped};
use crate::host::store::Store;
use crate::map::block_map::DEFAULT_MEMORY;

pub(super) const SIZE: u64 = 128 << 10;
pub(super) const SECTORS: u64 = SIZE / SECTOR;
/// Base of the sector values of the parent; the sector's number is added.
pub(super) const PARENT: u64 = 1 << 40;

/// The file of a new disk.
pub(super) fn new_image(subformat: Subformat, block_size: u32) -> Vec<u8> {
    let file = CrashFile::default();
    let footer = footer::new(subformat, SIZE, 512, [7; 16], SystemTime::now());
    create::write_sparse(&file, footer.as_bytes(), create::header(SIZE, block_size), &[]).expect("space");
    file.bytes()
}

pub(super) fn parent() -> CrashFile {
    CrashFile::new((0..SECTORS).flat_map(|sector| stamped(PARENT + sector)).collect())
}

/// The disk in `file`, over `parent` if there is one.
pub(super) fn open(
    file: &CrashFile,
    parent: Option<&CrashFile>,
    read_only: bool,
) -> Result<SparseVhd, String> {
    let parent = parent.map(|parent| Layer {
        store: Arc::new(parent.clone()),
        shape: Shape::Flat,
        size: SIZE,
        len: AtomicU64::new(SIZE),
    });
    open_over(file, parent, read_only)
}

/// The layout of a disk.
pub(super) fn layout_of(file: &CrashFile) -> Result<(Found, DynamicHeader, Layout), String> {
    let found = footer::find(file).map_err(|error| format!("{error:?}"))?;
    let at = found.footer.data_offset.get();
    let (header, layout) = layout::read(file, at, found.size).map_err(|error| format!("{error:?}"))?;
    Ok((found, header, layout))
}

/// The layer of a dynamic or differencing disk.
pub(super) fn layer(file: &CrashFile, layout: Layout) -> Layer {
    let len = AtomicU64::new(file.len().expect("a length"));
    Layer { store: Arc::new(file.clone()), shape: Shape::Sparse(layout), size: layout.size, len }
}

/// The disk in `file` over a parent of any shape.
pub(super) fn open_over(
    file: &CrashFile,
    parent: Option<Layer>,
    read_only: bool,
) -> Result<SparseVhd, String> {
    let (found, header, layout) = layout_of(file)?;
    let allocator =
        Allocator::open(file, &found, &header, layout, !read_only).map_err(|error| error.to_string())?;
    let mut layers = vec![layer(file, layout)];
    layers.extend(parent);
    let differencing = layers.len() > 1;
    Ok(SparseVhd::new(
        disk_info(&found, read_only),
        VhdBlocks::new(layout, differencing),
        layers,
        Vec::new(),
        allocator,
        DEFAULT_MEMORY,
    ))
}

/// The description of a disk with this footer.
pub(super) fn disk_info(found: &Found, read_only: bool) -> DiskInfo {
    DiskInfo {
        kind: Kind { format: "vhd", subformat: None },
        capacity: found.size,
        logical_sector: SectorSize::B512,
        physical_sector: 4096,
        read_only,
        volatile_cache: true,
        discard: None,
        buffer_alignment: 1,
    }
}
