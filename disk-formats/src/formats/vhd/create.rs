//! Creating VHDs.

use std::io;
use std::path::Path;

use zerocopy::IntoBytes;

use super::chain::Image;
use super::footer::{self, Subformat};
use super::layout::{self, Layout};
use super::locator::{self, NewLocator};
use super::spec::{
    DEFAULT_BLOCK_SIZE, DynamicHeader, FOOTER_SIZE, HEADER_SIZE, HEADER_VERSION, NO_DATA_OFFSET,
    ParentLocator, SPARSE_COOKIE,
};
use super::stamp;
use crate::contract::error::{BadField, OpenError};
use crate::formats::chain::{Member, refuse_full_chain};
use crate::formats::guid;
use crate::formats::parents::locate;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;

/// Offset of the dynamic header of a new disk.
const HEADER_AT: u64 = FOOTER_SIZE as u64;
/// Offset of its BAT.
const BAT_AT: u64 = HEADER_AT + HEADER_SIZE as u64;

/// Smallest block size of a new disk. Smaller blocks are valid, but QEMU reads them wrongly without an error, and other
/// programs refuse them.
const LEAST_BLOCK_SIZE: u32 = 4096;

/// Create a fixed VHD of `size` bytes that reads as zeros, with its space allocated: by fallocate in constant time if
/// the file system supports it, else by writing zeros. The file must not exist yet.
///
/// # Errors
/// [`OpenError::Invalid`] for a size that is not whole sectors or above 16 TiB; [`OpenError::Os`] if the host refuses.
/// After an error the file does not exist.
pub fn create_fixed(path: &Path, size: u64) -> Result<(), OpenError> {
    create_fixed_watched(path, size, &mut |_, _| true)
}

/// As [`create_fixed`]. `progress` is called with the number of bytes allocated and the total number, and returns
/// whether to continue.
///
/// # Errors
/// As for [`create_fixed`]; [`OpenError::Os`] of [`io::ErrorKind::Interrupted`] if `progress` stops the call.
pub fn create_fixed_watched(
    path: &Path,
    size: u64,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(), OpenError> {
    fixed(path, size, |file| file.allocate(size + FOOTER_SIZE as u64, progress))
}

/// As [`create_fixed`], without space for the data: the file is sparse.
///
/// # Errors
/// As for [`create_fixed`].
pub fn create_fixed_sparse(path: &Path, size: u64) -> Result<(), OpenError> {
    fixed(path, size, |_| Ok(()))
}

fn fixed(
    path: &Path,
    size: u64,
    allocate: impl FnOnce(&BackingFile) -> io::Result<()>,
) -> Result<(), OpenError> {
    footer::check_size("size", size, Subformat::Fixed).map_err(|bad| bad.of(path))?;
    BackingFile::create_image(path, 0, |file| {
        allocate(file)?;
        let id = guid::random()?.into_bytes();
        let footer = footer::new(Subformat::Fixed, size, NO_DATA_OFFSET, id, stamp::of_new());
        file.write_at(footer.as_bytes(), size)?;
        stamp::date(file)
    })
}

/// Create a dynamic VHD of `size` bytes without blocks. The file must not exist yet. `block_size` is a power of two of
/// at least 4,096 bytes, because QEMU misreads smaller blocks; the default is 2 MiB.
///
/// # Errors
/// [`OpenError::Invalid`] for a size that is not whole sectors or above 2,040 GiB, and for invalid block sizes;
/// [`OpenError::Os`] if the host refuses. After an error the file does not exist.
pub fn create_dynamic(path: &Path, size: u64, block_size: Option<u32>) -> Result<(), OpenError> {
    let block_size = block_size.unwrap_or(DEFAULT_BLOCK_SIZE);
    footer::check_size("size", size, Subformat::Dynamic).map_err(|bad| bad.of(path))?;
    check_block_size(path, size, block_size)?;
    BackingFile::create_image(path, 0, |file| {
        let footer =
            footer::new(Subformat::Dynamic, size, HEADER_AT, guid::random()?.into_bytes(), stamp::of_new());
        write_sparse(file, footer.as_bytes(), header(size, block_size), &[])?;
        stamp::date(file)
    })
}

/// Create a differencing VHD over `parent`, of the same size. The file must not exist yet. The default `block_size` is
/// that of the parent, or 2 MiB over a fixed disk. The child records the parent's identity and time stamp: from now on
/// the parent must not change.
///
/// # Errors
/// As for [`create_dynamic`]; errors of opening the parent; [`OpenError::Unsupported`] if the paths cannot be stored as
/// locators.
pub fn create_differencing(path: &Path, parent: &Path, block_size: Option<u32>) -> Result<(), OpenError> {
    let base = Image::open(parent, Access::READ_ONLY)?;
    refuse_full_chain(&base)?;
    let size = base.found.size;
    let inherited = base.sparse.map(|(_, layout)| layout.block_size() as u32);
    let block_size = block_size.or(inherited).unwrap_or(DEFAULT_BLOCK_SIZE);
    footer::check_size("size", size, Subformat::Differencing).map_err(|bad| bad.of(path))?;
    check_block_size(path, size, block_size)?;
    BackingFile::create_image(path, 0, |file| {
        let (locators, name) = locators(path, parent)?;
        let mut header = header(size, block_size);
        header.parent_unique_id = base.found.footer.unique_id;
        header.parent_time_stamp = stamp::to_note(&base.found.footer).into();
        header.parent_unicode_name = name;
        let footer = footer::new(
            Subformat::Differencing,
            size,
            HEADER_AT,
            guid::random()?.into_bytes(),
            stamp::of_new(),
        );
        write_sparse(file, footer.as_bytes(), header, &locators)?;
        stamp::date(file)
    })
}

/// The locators from a child to its parent. Both files exist.
pub(super) fn locators(child: &Path, parent: &Path) -> io::Result<(Vec<NewLocator>, [u8; 512])> {
    locate(child, parent, locator::new)
}

fn check_block_size(path: &Path, size: u64, block_size: u32) -> Result<(), OpenError> {
    if !block_size.is_power_of_two() || block_size < LEAST_BLOCK_SIZE {
        let expected = "a power of two, at least 4096: other programs misread smaller blocks";
        return Err(BadField::new("block size", block_size.to_string(), expected).of(path));
    }
    layout::check_blocks(size, block_size.into()).map_err(|most| {
        let expected = format!("large enough that a disk of {size} bytes has {most}");
        BadField::new("block size", block_size.to_string(), expected).of(path)
    })
}

/// The dynamic header of a new disk without a parent.
pub(super) fn header(size: u64, block_size: u32) -> DynamicHeader {
    DynamicHeader {
        cookie: SPARSE_COOKIE,
        data_offset: u64::MAX.into(),
        table_offset: BAT_AT.into(),
        header_version: HEADER_VERSION.into(),
        // Checked by `check_blocks`.
        max_table_entries: (size.div_ceil(u64::from(block_size)) as u32).into(),
        block_size: block_size.into(),
        checksum: 0.into(),
        parent_unique_id: [0; 16],
        parent_time_stamp: 0.into(),
        reserved1: 0.into(),
        parent_unicode_name: [0; 512],
        parent_locators: [ParentLocator::default(); 8],
        reserved2: [0; 256],
    }
}

/// Write a disk without blocks: header, BAT, locators, and both footers.
pub(super) fn write_sparse(
    file: &dyn Store,
    footer: &[u8],
    mut header: DynamicHeader,
    locators: &[NewLocator],
) -> io::Result<()> {
    let table = Layout::bat_bytes(header.max_table_entries.get());
    let mut end = BAT_AT + table;
    for (slot, locator) in header.parent_locators.iter_mut().zip(locators) {
        *slot = locator.at(end);
        locator.write(file, end)?;
        end += locator.space();
    }
    header.seal();
    let empty = vec![0xFF; table.min(1 << 20) as usize];
    let mut at = 0;
    while at < table {
        let part = (table - at).min(empty.len() as u64);
        file.write_at(empty.get(..part as usize).unwrap_or_default(), BAT_AT + at)?;
        at += part;
    }
    file.write_at(footer, end)?;
    file.write_at(header.as_bytes(), HEADER_AT)?;
    file.write_at(footer, 0)
}
