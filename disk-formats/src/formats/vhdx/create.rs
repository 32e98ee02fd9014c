//! Creating VHDX files.

use std::io;
use std::path::Path;

use super::chain::Image;
use super::header::Headers;
use super::layout::{ENTRY, Entry, Layout};
use super::locator::Locator;
use super::metadata::{self, NEW_REGION, Parameters};
use super::region::{self, Run};
use super::spec::{FILE_SIGNATURE, HEADER_SIGNATURE, Header, MIB, REGION_TABLES_AT, VERSION};
use crate::contract::error::OpenError;
use crate::contract::info::SectorSize;
use crate::formats::chain::{Member, refuse_full_chain};
use crate::formats::guid;
use crate::formats::parents::locate;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;

/// Location of the log of a new file.
const LOG: Run = Run { offset: MIB, len: MIB };
/// Location of its metadata region.
const METADATA: Run = Run { offset: 2 * MIB, len: NEW_REGION };
/// Offset of its BAT.
const BAT_AT: u64 = 3 * MIB;
/// Default block size of fixed and dynamic disks, as in Hyper-V.
const DEFAULT_BLOCK_SIZE: u32 = 32 << 20;
/// Default block size of differencing disks: a small block hides less of the parent.
const DEFAULT_CHILD_BLOCK_SIZE: u32 = 2 << 20;
/// The program that made the file; for information only ([MS-VHDX] 2.2.1).
const CREATOR: &str = concat!("paradisk ", env!("CARGO_PKG_VERSION"));
/// Number of BAT entries that are written at once.
const PART: u64 = 1 << 17;

/// Properties of a new disk other than its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// Bytes of a block, a power of two from 1 MiB to 256 MiB; `None`: 32 MiB.
    pub block_size: Option<u32>,
    /// Smallest addressable unit; `None`: 512 bytes.
    pub logical_sector: Option<SectorSize>,
    /// Physical sector that guests see; `None`: 4,096 bytes.
    pub physical_sector: Option<SectorSize>,
}

impl CreateOptions {
    fn parameters(self, size: u64, fixed: bool) -> io::Result<Parameters> {
        Ok(Parameters {
            block_size: self.block_size.unwrap_or(DEFAULT_BLOCK_SIZE),
            leave_allocated: fixed,
            has_parent: false,
            size,
            disk_id: guid::random()?,
            logical: self.logical_sector.unwrap_or(SectorSize::B512),
            physical: self.physical_sector.unwrap_or(SectorSize::B4096).bytes(),
        })
    }
}

/// Create a dynamic VHDX of `size` bytes without blocks. The file must not exist yet.
///
/// # Errors
/// [`OpenError::Invalid`] for a size that is not whole sectors or above 64 TiB, and for invalid block sizes;
/// [`OpenError::Os`] if the host refuses. After an error the file does not exist.
pub fn create_dynamic(path: &Path, size: u64, options: CreateOptions) -> Result<(), OpenError> {
    let parameters = options.parameters(size, false).map_err(os(path))?;
    create(path, &parameters, |file| write(file, &parameters, None))
}

/// Create a fixed VHDX of `size` bytes that reads as zeros. Its space, rounded up to whole blocks, is allocated: in
/// constant time if the file system supports it, else by writing zeros. The file must not exist yet.
///
/// # Errors
/// As for [`create_dynamic`].
pub fn create_fixed(path: &Path, size: u64, options: CreateOptions) -> Result<(), OpenError> {
    create_fixed_watched(path, size, options, &mut |_, _| true)
}

/// As [`create_fixed`]. `progress` is called with the number of bytes allocated and the total number, and returns
/// whether to continue.
///
/// # Errors
/// As for [`create_fixed`]; [`OpenError::Os`] of [`io::ErrorKind::Interrupted`] if `progress` stops the call.
pub fn create_fixed_watched(
    path: &Path,
    size: u64,
    options: CreateOptions,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(), OpenError> {
    let parameters = options.parameters(size, true).map_err(os(path))?;
    create(path, &parameters, |file| {
        let layout = new_layout(&parameters);
        let end = layout.bat.end() + layout.blocks() * layout.block_size();
        file.allocate(end, progress)?;
        write(file, &parameters, None)
    })
}

/// Create a differencing VHDX over `parent`, with the same size and sectors. The file must not exist yet. The default
/// `block_size` is 2 MiB. The child records the parent's data write GUID: from now on the parent must not change.
///
/// # Errors
/// As for [`create_dynamic`]; errors of opening the parent; [`OpenError::Unsupported`] if the parent is a VHD, or its chain has
/// [`MAX_DEPTH`](crate::MAX_DEPTH) images.
pub fn create_differencing(path: &Path, parent: &Path, block_size: Option<u32>) -> Result<(), OpenError> {
    let base = Image::open(parent, Access::READ_ONLY).map_err(|error| Image::as_parent(parent, error))?;
    let parameters = Parameters {
        block_size: block_size.unwrap_or(DEFAULT_CHILD_BLOCK_SIZE),
        leave_allocated: false,
        has_parent: true,
        ..base.opened.metadata.parameters
    };
    let linkage = base.linkage()?;
    refuse_full_chain(&base)?;
    create(path, &parameters, |file| {
        let locator = locator(path, parent, linkage)?;
        write(file, &parameters, Some(&locator.encode()?))
    })
}

/// The locator from a child to its parent. Both files exist.
pub(super) fn locator(child: &Path, parent: &Path, linkage: uuid::Uuid) -> io::Result<Locator> {
    locate(child, parent, |child, parent| Locator::new(child, parent, linkage))
}

fn os(path: &Path) -> impl Fn(io::Error) -> OpenError {
    OpenError::os(path, "cannot write the image")
}

/// Create the file. After an error it does not exist; on success it is on stable storage.
fn create(
    path: &Path,
    parameters: &Parameters,
    write: impl FnOnce(&BackingFile) -> io::Result<()>,
) -> Result<(), OpenError> {
    parameters.check().map_err(|bad| bad.of(path))?;
    BackingFile::create_image(path, 0, write)
}

/// The layout of a new file.
pub(super) fn new_layout(parameters: &Parameters) -> Layout {
    let layout = parameters.layout(Run { offset: BAT_AT, len: 0 });
    Layout { bat: Run { len: layout.bat_bytes(), ..layout.bat }, ..layout }
}

/// Write everything except payload. The headers come last: until then the file is not a valid VHDX.
pub(super) fn write(store: &dyn Store, parameters: &Parameters, locator: Option<&[u8]>) -> io::Result<()> {
    let layout = new_layout(parameters);
    if store.len()? < layout.bat.end() {
        store.set_size(layout.bat.end())?;
    }
    let table = region::table(layout.bat, METADATA);
    for at in REGION_TABLES_AT {
        store.write_at(&table, at)?;
    }
    let mut region = metadata::new_region(parameters, locator);
    region.resize(region.len().next_multiple_of(4096), 0);
    if region.len() as u64 > METADATA.len {
        return Err(io::ErrorKind::StorageFull.into());
    }
    store.write_at(&region, METADATA.offset)?;
    if parameters.leave_allocated {
        write_full_bat(store, &layout)?;
    }
    let mut identifier = FILE_SIGNATURE.to_vec();
    identifier.extend(CREATOR.encode_utf16().flat_map(u16::to_le_bytes));
    identifier.resize(4096, 0);
    store.write_at(&identifier, 0)?;
    let header = Header {
        signature: HEADER_SIGNATURE,
        checksum: 0.into(),
        sequence_number: 0.into(),
        file_write_guid: guid::random()?.to_bytes_le(),
        data_write_guid: guid::random()?.to_bytes_le(),
        log_guid: [0; 16],
        log_version: 0.into(),
        version: VERSION.into(),
        log_length: (LOG.len as u32).into(),
        log_offset: LOG.offset.into(),
        reserved: [0; 4016],
    };
    Headers::of_new(header).update(store, |_| ())
}

/// Write a BAT in which all payload blocks are present, one after the other.
fn write_full_bat(store: &dyn Store, layout: &Layout) -> io::Result<()> {
    let mut index = 0;
    while index < layout.entries() {
        let count = PART.min(layout.entries() - index);
        let mut bytes = Vec::with_capacity((count * ENTRY) as usize);
        for index in index..index + count {
            let entry = match layout.slot(index) {
                super::layout::Slot::Payload(block) => {
                    Entry::fully(layout.bat.end() + (block << layout.block_shift))
                }
                super::layout::Slot::Bitmap(_) => Entry::NOT_PRESENT,
            };
            bytes.extend_from_slice(&entry.0.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        store.write_at(&bytes, layout.bat.offset + index * ENTRY)?;
        index += count;
    }
    Ok(())
}
