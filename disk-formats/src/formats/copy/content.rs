//! Reads and writes a disk's content by plain slices, on the calling thread. For tools; a disk in use is accessed by
//! queues. Also the buffers that tools use, which direct I/O can use without a copy, and the errors of tools.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::contract::disk::{Allocation, Status};
use crate::contract::error::{IoError, escaped};
use crate::contract::info::SectorSize;
use crate::contract::queue::check_range;
use crate::formats::copy::holes::write_keeping_holes;
use crate::formats::signature::gpt_sector;
use crate::host::backing::{BackingFile, KeepHoles};
use crate::host::store::{Store, io_error, read_padded};
use crate::map::extent::{Extents, Place};
use crate::map::format::{Format, map_now, path_of};

/// How data are written to a file.
type Write = fn(&dyn Store, &[u8], u64) -> io::Result<()>;

/// The content of a disk.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    format: &'a dyn Format,
    /// Stores that replace the files of the format in crash tests.
    stores: Option<&'a [Arc<dyn Store>]>,
}

impl<'a> Content<'a> {
    /// The content of a format.
    #[must_use]
    pub fn new(format: &'a dyn Format) -> Self {
        Self { format, stores: None }
    }

    /// The content of a format with `stores` in place of its files.
    #[cfg(test)]
    pub(crate) fn over(format: &'a dyn Format, stores: &'a [Arc<dyn Store>]) -> Self {
        Self { format, stores: Some(stores) }
    }

    /// Path of the image; for a chain that of the top image, which is the first file.
    #[must_use]
    pub fn path(&self) -> &'a Path {
        path_of(self.format)
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> &'a dyn Format {
        self.format
    }

    /// Capacity in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.format.info().capacity
    }

    /// Map `len` bytes at `offset` for reading; whole sectors.
    ///
    /// # Errors
    /// [`ImageError::Io`] for a range that is not whole sectors inside the disk, and for errors of the format.
    pub fn pieces(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<(), ImageError> {
        check_range(self.format.info(), offset, len)
            .and_then(|()| map_now(self.format, false, offset, len, extents))
            .map_err(|error| ImageError::io(self.path(), "map", offset, error))
    }

    /// Map `len` bytes at `offset` for writing; whole sectors. Call [`stored`](Self::stored) after writing the data.
    pub(crate) fn pieces_to_write(
        &self,
        offset: u64,
        len: u64,
        extents: &mut Extents,
    ) -> Result<(), ImageError> {
        let writable = match self.format.info().read_only {
            true => Err(IoError::ReadOnly),
            false => Ok(()),
        };
        writable
            .and_then(|()| check_range(self.format.info(), offset, len))
            .and_then(|()| map_now(self.format, true, offset, len, extents))
            .map_err(|error| ImageError::io(self.path(), "allocate", offset, error))
    }

    /// The size of the sectors that the disk's GPT counts in; `None`: it has no GPT.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn gpt_sector(&self) -> Result<Option<SectorSize>, ImageError> {
        gpt_sector(self.capacity(), |data, offset| self.read_at(data, offset))
    }

    /// Fill `data` from `offset`. Any alignment is allowed, even if the files are open for direct I/O.
    ///
    /// # Errors
    /// [`ImageError::Io`] for a range outside the disk, and the host's or the format's error.
    pub fn read_at(&self, data: &mut [u8], offset: u64) -> Result<(), ImageError> {
        let sector = u64::from(self.format.info().logical_sector.bytes());
        let outside = || ImageError::io(self.path(), "read", offset, IoError::OutOfRange);
        let end = offset.checked_add(data.len() as u64).ok_or_else(outside)?;
        let last = end.checked_next_multiple_of(sector).ok_or_else(outside)?;
        let first = offset - offset % sector;
        let mut extents = Extents::new();
        self.pieces(first, last - first, &mut extents)?;
        let (mut at, mut rest) = (first, data);
        for extent in extents.as_slice() {
            // The first and the last extent may reach beyond the requested range.
            let skip = offset.saturating_sub(at).min(extent.len);
            let len = (extent.len - skip).min(rest.len() as u64);
            let (piece, others) = rest.split_at_mut(len as usize);
            self.read_place(extent.place.advanced(skip), piece)?;
            rest = others;
            at += extent.len;
        }
        Ok(())
    }

    fn read_place(&self, place: Place, data: &mut [u8]) -> Result<(), ImageError> {
        let Place::File { file, offset } = place else {
            data.fill(0);
            return Ok(());
        };
        let file = self.file(file)?;
        let failed = |error: io::Error| ImageError::io(file.path(), "read", offset, io_error(error));
        match self.format.zeros_past_end() {
            true => read_padded(file, data, offset).map_err(failed),
            false => file.read_at(data, offset).map_err(failed),
        }
    }

    /// Write `data` at `offset`; whole sectors.
    ///
    /// # Errors
    /// [`ImageError::Io`] for a range that is not whole sectors inside the disk, a read-only disk, and errors of the host
    /// or the format.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), ImageError> {
        self.write_by(|file, data, offset| file.write_at(data, offset), data, offset)
    }

    /// As [`write_at`](Self::write_at). Zeros in `data` become holes of the file.
    pub(crate) fn write_keeping_holes(&self, data: &[u8], offset: u64) -> Result<(), ImageError> {
        self.write_by(|file, data, offset| write_keeping_holes(file, data, offset, true), data, offset)
    }

    fn write_by(&self, write: Write, data: &[u8], offset: u64) -> Result<(), ImageError> {
        let mut extents = Extents::new();
        self.pieces_to_write(offset, data.len() as u64, &mut extents)?;
        self.store_by(write, data, &extents)?;
        self.stored(offset, data.len() as u64);
        Ok(())
    }

    /// Write `data` to the extents of a mapped write.
    pub(crate) fn store(&self, data: &[u8], extents: &Extents) -> Result<(), ImageError> {
        self.store_by(|file, data, offset| file.write_at(data, offset), data, extents)
    }

    fn store_by(&self, write: Write, data: &[u8], extents: &Extents) -> Result<(), ImageError> {
        let mut rest = data;
        for extent in extents.as_slice() {
            let (piece, others) = rest.split_at(extent.len.min(rest.len() as u64) as usize);
            let (file, offset) = self.place_to_write(extent.place)?;
            write(file, piece, offset)
                .map_err(|error| ImageError::io(file.path(), "write", offset, io_error(error)))?;
            rest = others;
        }
        Ok(())
    }

    /// The data of a mapped write are in the files.
    pub(crate) fn stored(&self, offset: u64, len: u64) {
        self.format.written(offset, len);
    }

    /// The file and offset of an extent to write.
    pub(crate) fn place_to_write(&self, place: Place) -> Result<(&'a dyn Store, u64), ImageError> {
        match place {
            Place::File { file, offset } => Ok((self.file(file)?, offset)),
            Place::Zeros => {
                let wrong = IoError::Damaged("a write is mapped to no file");
                Err(ImageError::io(self.path(), "write", 0, wrong))
            }
        }
    }

    /// While the result exists, blocks that the format allocates are holes of its first file, except what is written. For tools that copy; a
    /// disk in use reserves its blocks, so that writes find their space.
    pub(crate) fn keep_holes(&self) -> Option<KeepHoles<'a>> {
        self.file(0).ok()?.backing().map(BackingFile::keep_holes)
    }

    /// Number of files of the format.
    pub(crate) fn files(&self) -> usize {
        self.stores.map_or(self.format.files().len(), <[_]>::len)
    }

    /// A file of the format by its index.
    pub(crate) fn file(&self, index: u32) -> Result<&'a dyn Store, ImageError> {
        let wrong = || ImageError::io(self.path(), "map", 0, IoError::Damaged("no such file"));
        let file: Option<&dyn Store> = match self.stores {
            None => self.format.files().get(index as usize).map(|file| &**file as &dyn Store),
            Some(stores) => stores.get(index as usize).map(|store| &**store),
        };
        file.ok_or_else(wrong)
    }

    /// The allocation status of a range of a file. `last` is what an earlier call returned, for a content that has not changed since.
    pub(crate) fn allocation(
        &self,
        file: u32,
        offset: u64,
        len: u64,
        last: &mut LastStatus,
    ) -> Result<Allocation, ImageError> {
        let sector = u64::from(self.format.info().logical_sector.bytes());
        if last.known(file, offset, sector) == 0 {
            let all = u64::MAX - offset;
            let found = match self.file(file)?.backing() {
                Some(backing) if last.is_hole_before(file, offset) => {
                    backing.stored_after_hole(offset, all, sector)
                }
                Some(backing) => backing.stored(offset, all, sector, self.format.zeros_past_end()),
                None => Allocation { len: all, status: Status::Mapped },
            };
            *last = LastStatus { file, range: offset..offset + found.len, status: found.status };
        }
        Ok(Allocation { len: len.min(last.known(file, offset, sector)), status: last.status })
    }
}

/// The file system's last answer about a file: for each one, it searches the file's extents, and what it finds is usually longer than a
/// chunk.
#[derive(Debug)]
pub(crate) struct LastStatus {
    file: u32,
    range: Range<u64>,
    status: Status,
}

impl LastStatus {
    pub(crate) const fn new() -> Self {
        Self { file: 0, range: 0..0, status: Status::Mapped }
    }

    /// Whether the answer is a hole that ends at `offset`.
    fn is_hole_before(&self, file: u32, offset: u64) -> bool {
        self.status == Status::Zeros && self.file == file && self.range.end == offset
    }

    /// Bytes from `offset` that the answer covers. Whole sectors from there: another extent may begin at another part of the file's sectors.
    fn known(&self, file: u32, offset: u64, sector: u64) -> u64 {
        let covered = self.file == file && self.range.contains(&offset);
        let len = if covered { self.range.end - offset } else { 0 };
        len - len % sector
    }
}

/// The error of an operation on an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Reading, writing or mapping failed.
    #[error("{}: cannot {action} byte {offset}: {source}", escaped(path))]
    Io {
        /// The image, or the file that failed.
        path: PathBuf,
        /// The attempted action, for example "read" or "map".
        action: &'static str,
        /// Byte offset: of the disk if `path` is the image, else of the file.
        offset: u64,
        /// The cause.
        source: IoError,
    },
    /// A flush failed.
    #[error("{}: cannot flush: {source}", escaped(path))]
    Flush {
        /// The image.
        path: PathBuf,
        /// The cause.
        source: IoError,
    },
    /// The destination is smaller than the source.
    #[error("{}: holds {capacity} bytes, expected at least the {needed} bytes of the source", escaped(path))]
    TooSmall {
        /// The destination.
        path: PathBuf,
        /// Capacity of the destination in bytes.
        capacity: u64,
        /// Capacity of the source in bytes.
        needed: u64,
    },
    /// The caller cancelled the operation.
    #[error("cancelled")]
    Cancelled,
}

impl ImageError {
    /// The same error with the path `to` in place of `from`, for files that are still under a temporary name.
    #[must_use]
    pub fn renamed(mut self, from: &Path, to: &Path) -> Self {
        if let Self::Io { path, .. } | Self::Flush { path, .. } | Self::TooSmall { path, .. } = &mut self
            && path == from
        {
            *path = to.into();
        }
        self
    }

    pub(crate) fn io(path: &Path, action: &'static str, offset: u64, source: impl Into<IoError>) -> Self {
        Self::Io { path: path.into(), action, offset, source: source.into() }
    }
}

/// Bytes that are copied or compared at once. Chunks of a disk begin at multiples of it.
pub(crate) const CHUNK: u64 = 2 << 20;

/// Alignment of the memory: a page, which suffices on every host.
const ALIGNMENT: usize = 4096;

/// A page-aligned byte buffer.
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { memory, start, len }
    }

    /// The first `len` bytes, or all if the buffer is shorter.
    pub(crate) fn first(&mut self, len: u64) -> &mut [u8] {
        let len = usize::try_from(len).map_or(self.len, |len| len.min(self.len));
        &mut self.memory[self.start..self.start + len]
    }
}

#[cfg(test)]
mod tests;
