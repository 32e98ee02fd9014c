//! What a format's metadata are kept in: a file, or in crash tests a record of every write that can be cut anywhere.

use std::io;
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::{BackingFile, IoError, Status};

/// A growing run of bytes with explicit durability.
///
/// # Contract
/// - Space gained by [`set_size`](Self::set_size) and [`reserve`](Self::reserve) reads as zeros.
/// - Nothing is durable, and nothing is in order, before [`sync`](Self::sync) has returned; changes of the size neither.
pub(crate) trait Store: Send + Sync {
    /// For messages.
    fn path(&self) -> &Path;

    /// Bytes now.
    fn len(&self) -> io::Result<u64>;

    /// Read exactly `data` from `offset`.
    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()>;

    /// Whether the host knows, without reading, that the range holds nothing but zeros.
    fn is_hole(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    /// Write exactly `data` at `offset`, growing as needed. Whole sectors of 512 bytes.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;

    /// Cut or grow.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Grow to `end` at the least, with space behind `[start, end)` where the host can promise any.
    fn reserve(&self, start: u64, end: u64) -> io::Result<()>;

    /// Make a range inside read as zeros, giving its space back where `may_unmap` allows it.
    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError>;

    /// Make everything done so far durable.
    fn sync(&self) -> io::Result<()>;
}

impl Store for BackingFile {
    fn path(&self) -> &Path {
        self.path()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(seek(self.file(), SeekFrom::End(0))?)
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(data, offset)
    }

    fn is_hole(&self, offset: u64, len: u64) -> bool {
        let run = self.stored(offset, len, 1, false);
        run.status == Status::Zeros && run.len == len
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(data, offset)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file().set_len(size)
    }

    fn reserve(&self, start: u64, end: u64) -> io::Result<()> {
        match fallocate(self.file(), FallocateFlags::empty(), start, end.saturating_sub(start)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => match Store::len(self)? {
                have if have < end => self.set_size(end),
                _ => Ok(()),
            },
            done => Ok(done?),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.write_zeroes(offset, len, may_unmap)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(self.file())?)
    }
}

/// An operating-system error as that of a request.
pub(crate) fn io_error(error: &io::Error) -> IoError {
    Errno::from_io_error(error).map_or(IoError::Damaged("a file ends inside the image"), IoError::from)
}
