//! Giving space back and writing zeros, by the cheapest call that the file or device takes.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::BackingFile;
use crate::memory::Memory;
use crate::{IoError, sys};

/// Bytes of zeros written at once where nothing better works.
const ZERO_CHUNK: usize = 256 << 10;

impl BackingFile {
    /// Whether [`discard`](Self::discard) gives space back; found out without changing any data.
    pub(crate) fn can_discard(&self) -> bool {
        match self.device() {
            Some(device) => self.writable && device.discard.is_some(),
            // A hole beyond the end of the file is no change.
            None => self.writable && punch(self, self.size().next_multiple_of(4096), 4096).is_ok(),
        }
    }

    /// Give the range's space back. A file's range reads as zeros afterwards, a device's as it likes.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let done = match self.device() {
            Some(_) => sys::blkdiscard(self.file(), offset, len),
            None => punch(self, offset, len),
        };
        done.map_err(|errno| if unsupported(errno) { IoError::Unsupported } else { errno.into() })
    }

    /// Make the range read as zeros; `may_unmap` allows to give its space back.
    pub(crate) fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        if may_unmap {
            match punch(self, offset, len) {
                Err(errno) if unsupported(errno) => {}
                done => return Ok(done?),
            }
        }
        let done = match self.device() {
            Some(_) => sys::blkzeroout(self.file(), offset, len),
            None => {
                fallocate(self.file(), FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, offset, len)
            }
        };
        match done {
            Err(errno) if unsupported(errno) => self.store_zeros(offset, len),
            done => Ok(done?),
        }
    }

    /// The last resort: write them.
    fn store_zeros(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let memory = Memory::new(ZERO_CHUNK)?;
        let mut done = 0;
        while done < len {
            let chunk = (len - done).min(ZERO_CHUNK as u64) as usize;
            match self.transfer(&memory, 0, chunk, offset + done, true) {
                Ok(0) => return Err(IoError::Os(Errno::IO)),
                Ok(put) => done += put as u64,
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO).into()),
            }
        }
        Ok(())
    }
}

fn punch(file: &BackingFile, offset: u64, len: u64) -> Result<(), Errno> {
    fallocate(file.file(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

/// Answers that mean "not this way" rather than "it failed".
fn unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NOTTY | Errno::NODEV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::Access;

    #[test]
    fn zeros_are_stored_where_nothing_better_works() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let size = 3 * ZERO_CHUNK;
        std::fs::write(file.path(), vec![0x5A; size]).unwrap();
        let backing = BackingFile::open(file.path(), Access::default()).unwrap();
        backing.store_zeros(512, 2 * ZERO_CHUNK as u64 + 512).unwrap();
        drop(backing);
        let data = std::fs::read(file.path()).unwrap();
        let end = 1024 + 2 * ZERO_CHUNK;
        assert!(data[..512].iter().chain(&data[end..]).all(|byte| *byte == 0x5A));
        assert!(data[512..end].iter().all(|byte| *byte == 0));
    }
}
