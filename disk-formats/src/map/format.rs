//! The contract of a format: it maps ranges and manages metadata. The queue transfers the payload.

use std::path::Path;
use std::sync::Arc;

use crate::contract::disk::MapMemory;
use crate::contract::error::{IoError, OpenError};
use crate::contract::info::DiskInfo;
use crate::host::backing::BackingFile;
use crate::map::epochs::Epochs;
use crate::map::extent::Extents;

/// The result of mapping a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// The extents cover the range exactly.
    Ready,
    /// Metadata must be read, or a block allocated, before the range can be mapped. Call [`Format::prepare_read`] or
    /// [`Format::prepare_write`] on a thread that may block, then map again. The extents are invalid.
    Blocked,
}

/// What a flush of a disk requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// [`BackingFile::sync`] of all files ([`Format::files`]) that are open for writing.
    SyncFiles,
    /// [`Format::flush`], because the format has metadata to write in order.
    Format,
}

/// A disk format. Shared by all queues of a disk.
///
/// Ranges are in bytes. The queue has checked that they are whole logical sectors inside the capacity.
///
/// # Contract
/// - `map_*` never wait for I/O and take no lock. They allocate nothing after warm-up of the extents.
/// - `map_write` returns only [`Place::File`](crate::Place::File) extents. The payload goes exactly there. When it is
///   written, the queue calls [`written`](Self::written) with the same range, and completes the request after that.
/// - `prepare_*`, `flush`, `discard` and `write_zeroes` may block. Queues call them on a helper thread. `rescan` and `grow` may
///   block, too; the disk calls them on its caller's thread.
/// - After [`flush`](Self::flush) (or, if [`flush_kind`](Self::flush_kind) returns [`Flush::SyncFiles`], after a sync
///   of the files), all requests that completed before the flush began survive a power failure.
/// - After a failed operation the metadata are consistent. After a failed `discard` or `write_zeroes`, each sector of the
///   range has its old or its new content; all other failed operations leave the disk's content unchanged.
pub trait Format: Send + Sync {
    /// Description of the disk.
    fn info(&self) -> &DiskInfo;

    /// The files that extents refer to by index. Constant while the disk is open.
    fn files(&self) -> &[Arc<BackingFile>];

    /// The identifier of the image in its metadata, perhaps zeros, which [`Identity::image`](crate::Identity::image) leaves out.
    fn image_id(&self) -> Option<[u8; 16]> {
        None
    }

    /// Map a range for reading.
    ///
    /// # Errors
    /// [`IoError::Damaged`] if the metadata are inconsistent.
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError>;

    /// Map a range for writing.
    ///
    /// # Errors
    /// [`IoError::Damaged`] if the metadata are inconsistent.
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError>;

    /// Whether reading an extent beyond the end of its file returns zeros. If not, it is an error.
    fn zeros_past_end(&self) -> bool {
        false
    }

    /// Load the metadata that mapping the range for reading needs. May block.
    ///
    /// # Errors
    /// The host's error while reading metadata.
    fn prepare_read(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        Ok(())
    }

    /// Allocate the blocks that mapping the range for writing needs. May block.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] or the host's error; the disk is unchanged.
    fn prepare_write(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        Ok(())
    }

    /// The payload of a mapped write is in the files. Waits for no I/O; takes a lock only if the granule was evicted since.
    fn written(&self, _offset: u64, _len: u64) {}

    /// For formats that free blocks: the epochs by which queues publish their requests in flight. Code that maps ranges
    /// without a queue must not run while blocks are freed.
    fn epochs(&self) -> Option<&Epochs> {
        None
    }

    /// A remark for the user about how the disk was opened: a sentence without a full stop.
    fn remark(&self) -> Option<String> {
        file_remarks(self.files())
    }

    /// Memory use of the map, for formats that have a map.
    fn map_memory(&self) -> Option<MapMemory> {
        None
    }

    /// What the next flush requires.
    fn flush_kind(&self) -> Flush {
        Flush::SyncFiles
    }

    /// Flush: put all completed writes on stable storage by [`BackingFile::sync`], and write the metadata in the
    /// format's order. May block.
    ///
    /// # Errors
    /// The host's error; then nothing counts as flushed. After [`IoError::FlushLost`] every later flush fails.
    fn flush(&self) -> Result<(), IoError> {
        self.files().iter().filter(|file| file.writable()).try_for_each(|file| file.sync())
    }

    /// Deallocate the range, as far as possible. May block; best effort.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] if [`DiskInfo::discard`] is `None`; the host's error.
    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError>;

    /// Make the range read as zeros. `may_unmap` allows deallocating it. May block.
    ///
    /// # Errors
    /// The host's error.
    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError>;

    /// As [`Disk::rescan`](crate::Disk::rescan).
    ///
    /// # Errors
    /// The same.
    fn rescan(&self) -> Result<u64, OpenError> {
        Ok(self.info().capacity)
    }

    /// As [`Disk::grow`](crate::Disk::grow).
    ///
    /// # Errors
    /// The same.
    fn grow(&self, _capacity: u64) -> Result<u64, OpenError> {
        Err(cannot_grow(self))
    }
}

/// What the files of a disk have to say about how they were opened.
pub(crate) fn file_remarks(files: &[Arc<BackingFile>]) -> Option<String> {
    files.iter().filter_map(|file| file.remark()).reduce(|one, other| format!("{one}; {other}"))
}

/// The path of the first file: the image, or the top image of a chain.
pub(crate) fn path_of<F: Format + ?Sized>(format: &F) -> &Path {
    format.files().first().map_or(Path::new(""), |file| file.path())
}

/// The error of growing a disk of this format while it is open.
pub(crate) fn cannot_grow<F: Format + ?Sized>(format: &F) -> OpenError {
    let reason = format!("{} images cannot be resized while they are in use", format.info().kind.format);
    OpenError::unsupported(path_of(format), reason)
}

// Mapping a range on a thread that may block. A small map may evict prepared entries while other threads use the disk. So a range that cannot
// be mapped as a whole is mapped in parts. The extents found first stay valid until the request completes, even if the map evicts their
// entries.

/// Maximum number of attempts to prepare and map a range as a whole.
const WHOLE_TRIES: u32 = 4;
/// Maximum number of attempts for a part.
const TRIES: u32 = 256;
/// Size of a part in bytes; a map of any budget can hold it.
const PART: u64 = 64 << 10;

/// Prepare and map a range, for reading or (`writes`) for writing.
///
/// # Errors
/// Errors of the format; [`IoError::Damaged`] if a part stays unmapped.
pub(crate) fn map_now(
    format: &dyn Format,
    writes: bool,
    offset: u64,
    len: u64,
    extents: &mut Extents,
) -> Result<(), IoError> {
    if map_in(format, writes, offset, len, WHOLE_TRIES, extents)? {
        return Ok(());
    }
    extents.clear();
    let (mut at, end) = (offset, offset + len);
    let mut part_extents = Extents::new();
    while at < end {
        let part = ((at / PART + 1) * PART).min(end) - at;
        if !map_in(format, writes, at, part, TRIES, &mut part_extents)? {
            return Err(IoError::Damaged("the range cannot be mapped"));
        }
        extents.append(&part_extents);
        at += part;
    }
    Ok(())
}

/// Try to map the range up to `tries` times. Returns whether it is mapped.
fn map_in(
    format: &dyn Format,
    writes: bool,
    offset: u64,
    len: u64,
    tries: u32,
    extents: &mut Extents,
) -> Result<bool, IoError> {
    for _ in 0..tries {
        extents.clear();
        let mapping = match writes {
            false => format.map_read(offset, len, extents)?,
            true => format.map_write(offset, len, extents)?,
        };
        if mapping == Mapping::Ready {
            return match extents.total() == len {
                true => Ok(true),
                false => Err(IoError::Damaged("the mapping is not as long as the range")),
            };
        }
        match writes {
            false => format.prepare_read(offset, len)?,
            true => format.prepare_write(offset, len)?,
        }
    }
    Ok(false)
}
