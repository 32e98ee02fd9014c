//! The content of a disk as the store for an image's metadata.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::contract::disk::Status;
use crate::contract::error::IoError;
use crate::formats::copy::content::{Content, ImageError};
use crate::formats::copy::runs::{Run, Runs, zeros_until};
use crate::host::store::Store;
use crate::map::format::Format;

#[allow(clippy::disallowed_types, reason = "taken when metadata are written or the image grows")]
type Mutex<T> = std::sync::Mutex<T>;

/// Limits of the search for the last data of a disk: allocated runs that are remembered, and bytes that are read.
const RUNS_KEPT: usize = 1024;
const SEARCHED: u64 = 256 << 20;
/// Bytes that are examined at once.
const CHUNK: u64 = 1 << 20;

/// The content of a disk. The capacity is that of the disk; the length is the part that the image uses.
pub(super) struct Container {
    path: PathBuf,
    outer: Arc<dyn Format>,
    len: AtomicU64,
    writing: Mutex<()>,
    /// Stores that replace the files of the outer disk in crash tests.
    #[cfg(test)]
    pub(super) stores: Vec<Arc<dyn Store>>,
}

fn host(error: IoError) -> io::Error {
    match error {
        IoError::NoSpace => Errno::NOSPC.into(),
        IoError::Os(errno) => errno.into(),
        other => io::Error::other(other),
    }
}

fn of_image(error: ImageError) -> io::Error {
    match error {
        ImageError::Io { source, .. } | ImageError::Flush { source, .. } => host(source),
        other => io::Error::other(other),
    }
}

impl Container {
    /// All of `outer`; `path` is used in messages.
    pub(super) fn new(path: &Path, outer: Arc<dyn Format>) -> Self {
        let len = AtomicU64::new(outer.info().capacity);
        Self {
            path: path.into(),
            outer,
            len,
            writing: Mutex::new(()),
            #[cfg(test)]
            stores: Vec::new(),
        }
    }

    /// Set the end of the image. The capacity does not change.
    pub(super) fn set_len(&self, len: u64) {
        self.len.store(len.min(self.capacity()), Ordering::Release);
    }

    fn capacity(&self) -> u64 {
        self.outer.info().capacity
    }

    /// The outer disk.
    pub(super) fn outer(&self) -> &Arc<dyn Format> {
        &self.outer
    }

    fn content(&self) -> Content<'_> {
        #[cfg(test)]
        if !self.stores.is_empty() {
            return Content::over(&*self.outer, &self.stores);
        }
        Content::new(&*self.outer)
    }

    fn sector(&self) -> u64 {
        u64::from(self.outer.info().logical_sector.bytes())
    }

    /// End of the last sector that is not zeros; `None` if the search ends at its limits, or if all sectors are zeros.
    pub(super) fn data_end(&self) -> io::Result<Option<u64>> {
        let mut stored: VecDeque<Run> = VecDeque::new();
        for run in Runs::new(self.content()) {
            let run = run.map_err(of_image)?;
            if run.status == Status::Mapped {
                if stored.len() == RUNS_KEPT {
                    stored.pop_front();
                }
                stored.push_back(run);
            }
        }
        let mut bytes = vec![0; CHUNK as usize];
        let mut left = SEARCHED;
        for run in stored.iter().rev() {
            let mut end = run.offset + run.len;
            while end > run.offset && left > 0 {
                let part = (end - run.offset).min(CHUNK);
                let chunk = bytes.get_mut(..part as usize).unwrap_or_default();
                self.content().read_at(chunk, end - part).map_err(of_image)?;
                if let Some(at) = chunk.iter().rposition(|byte| *byte != 0) {
                    return Ok(Some((end - part + at as u64 + 1).next_multiple_of(512)));
                }
                end -= part;
                left = left.saturating_sub(part);
            }
        }
        Ok(None)
    }

    /// Write any range. Sectors that `data` covers only in part are read first, so no two calls for one sector may run at
    /// the same time.
    fn put(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let (sector, end) = (self.sector(), offset + data.len() as u64);
        if (offset | end).is_multiple_of(sector) {
            return self.content().write_at(data, offset).map_err(of_image);
        }
        let first = offset - offset % sector;
        let mut whole = vec![0; (end.next_multiple_of(sector) - first) as usize];
        self.content().read_at(&mut whole, first).map_err(of_image)?;
        let at = (offset - first) as usize;
        if let Some(part) = whole.get_mut(at..at + data.len()) {
            part.copy_from_slice(data);
        }
        self.content().write_at(&whole, first).map_err(of_image)
    }

    /// Zero a range of any alignment inside the capacity.
    fn zero(&self, offset: u64, end: u64, may_unmap: bool) -> Result<(), IoError> {
        let sector = self.sector();
        let (first, last) = (offset.next_multiple_of(sector), end - end % sector);
        if first >= last {
            return self.put_zeros(offset, end);
        }
        self.put_zeros(offset, first)?;
        self.outer.write_zeroes(first, last - first, may_unmap)?;
        self.put_zeros(last, end)
    }

    /// Zero a range of less than two sectors.
    fn put_zeros(&self, offset: u64, end: u64) -> Result<(), IoError> {
        match end.saturating_sub(offset) {
            0 => Ok(()),
            len => self.put(&vec![0; len as usize], offset).map_err(crate::host::store::io_error),
        }
    }

    /// Extend the image to `end` with zeros.
    fn grow(&self, end: u64) -> io::Result<()> {
        let len = self.len.load(Ordering::Acquire);
        if end > self.capacity() {
            return Err(Errno::NOSPC.into());
        }
        if end > len {
            self.zero(len, end, false).map_err(host)?;
            self.len.store(end, Ordering::Release);
        }
        Ok(())
    }

    #[allow(clippy::disallowed_types, reason = "as above")]
    fn lock(&self) -> io::Result<std::sync::MutexGuard<'_, ()>> {
        self.writing.lock().map_err(|_| host(IoError::Damaged("an earlier request panicked")))
    }
}

impl Store for Container {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.len.load(Ordering::Acquire))
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > self.len.load(Ordering::Acquire)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if data.is_empty() {
            return Ok(());
        }
        self.content().read_at(data, offset).map_err(of_image)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let _one_at_a_time = self.lock()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= self.capacity());
        let end = end.ok_or(Errno::NOSPC)?;
        if data.is_empty() {
            return Ok(());
        }
        self.grow(offset)?;
        self.put(data, offset)?;
        self.len.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let _one_at_a_time = self.lock()?;
        self.grow(size)?;
        self.len.store(size, Ordering::Release);
        Ok(())
    }

    fn reserve(&self, _start: u64, end: u64) -> io::Result<()> {
        let _one_at_a_time = self.lock()?;
        self.grow(end)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.capacity()).ok_or(IoError::OutOfRange)?;
        let whole = (offset | end).is_multiple_of(self.sector());
        let lock = || self.lock().map_err(crate::host::store::io_error);
        // Sectors that are zeroed in part are read and written back.
        let _one_at_a_time = if whole { None } else { Some(lock()?) };
        self.zero(offset, end, may_unmap)
    }

    fn clone_range(&self, _source: &dyn Store, _from: u64, _to: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn sync(&self) -> io::Result<()> {
        self.outer.flush().map_err(host)
    }

    fn check_flushes(&self) -> Result<(), IoError> {
        self.outer.files().iter().try_for_each(|file| file.check_flushes())
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        let first = offset - offset % self.sector();
        match zeros_until(self.content(), first, &AtomicBool::new(false)) {
            Ok(data) => Ok(data.max(offset)),
            Err(_) => Ok(offset),
        }
    }
}
