//! The contract of a format: it maps, and keeps its metadata; it moves no payload.

use std::sync::Arc;

use crate::disk::MapMemory;
use crate::disk::info::DiskInfo;
use crate::error::{IoError, OpenError};
use crate::host::backing::BackingFile;
use crate::map::epochs::Epochs;
use crate::map::extent::Extents;

/// Whether a range could be mapped at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// The extents cover the range exactly.
    Ready,
    /// Metadata must be read or a block allocated first: call [`Format::prepare_read`] or
    /// [`Format::prepare_write`] where blocking is allowed, then map again. The extents are to be ignored.
    Blocked,
}

/// How a disk is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Synchronising the files ([`Format::files`], those opened for writing) is all.
    SyncFiles,
    /// [`Format::flush`] must run: the format has metadata to write in order.
    Format,
}

/// A disk format. Shared by all queues of a disk.
///
/// Ranges are bytes, whole logical sectors, inside the capacity: the queue has checked them.
///
/// # Contract
/// - `map_*` never block on I/O, take no lock and allocate nothing once the extents are warm.
/// - `map_write` returns only [`Place::File`](crate::Place::File) pieces. The payload goes exactly there; when it has
///   arrived, the queue calls [`written`](Self::written) with the same range and only then completes the request.
/// - Everything else may block and runs on a helper thread.
/// - After [`flush`](Self::flush) (or the synchronised files, where [`flush_kind`](Self::flush_kind) says
///   [`Flush::SyncFiles`]), everything completed before it was called survives a power failure.
/// - A failed operation leaves the disk as it was.
pub trait Format: Send + Sync {
    /// What the disk is.
    fn info(&self) -> &DiskInfo;

    /// The files that extents name, by index. Constant while the disk is open.
    fn files(&self) -> &[Arc<BackingFile>];

    /// As [`Identity::image`](crate::Identity::image).
    fn image_id(&self) -> Option<[u8; 16]> {
        None
    }

    /// Where `len` bytes at `offset` are read from.
    ///
    /// # Errors
    /// [`IoError::Damaged`] where the metadata contradict themselves.
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError>;

    /// Where `len` bytes at `offset` are written to.
    ///
    /// # Errors
    /// [`IoError::Damaged`] where the metadata contradict themselves.
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError>;

    /// Whether a mapped piece that lies behind the end of its file reads as zeros; else it is an error.
    fn zeros_past_end(&self) -> bool {
        false
    }

    /// Make the range mappable for reading. May block.
    ///
    /// # Errors
    /// The host's error while metadata were read.
    fn prepare_read(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        Ok(())
    }

    /// Make the range mappable for writing: allocate. May block.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] or the host's error; the disk is as it was.
    fn prepare_write(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        Ok(())
    }

    /// The payload of a mapped write has arrived in the files. Does not block.
    fn written(&self, _offset: u64, _len: u64) {}

    /// For formats that free blocks: the epochs in which queues announce their requests in flight. Code that maps
    /// ranges without a queue must not do so while blocks are freed.
    fn epochs(&self) -> Option<&Epochs> {
        None
    }

    /// A remark for the user on how it was opened: a sentence without a full stop.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Memory of the map, for formats that have one.
    fn map_memory(&self) -> Option<MapMemory> {
        None
    }

    /// What the next flush has to do.
    fn flush_kind(&self) -> Flush {
        Flush::SyncFiles
    }

    /// Flush: have all completed writes on stable storage, metadata in the format's order, by [`BackingFile::sync`].
    /// May block.
    ///
    /// # Errors
    /// The host's error; nothing counts as flushed then. After [`IoError::FlushLost`] every later flush fails.
    fn flush(&self) -> Result<(), IoError> {
        self.files().iter().filter(|file| file.writable()).try_for_each(|file| file.sync())
    }

    /// Deallocate the range where that is possible. May block; best effort.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] where [`DiskInfo::discard`] is `None`; the host's error.
    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError>;

    /// Make the range read as zeros; `may_unmap` allows to deallocate it. May block.
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
        Err(not_in_use(self))
    }
}

/// Why a disk of this format does not grow now.
pub(crate) fn not_in_use<F: Format + ?Sized>(format: &F) -> OpenError {
    let path = format.files().first().map(|file| file.path().into()).unwrap_or_default();
    let reason = format!("{} images are resized while nobody uses them", format.info().kind.format);
    OpenError::Unsupported { path, reason }
}
