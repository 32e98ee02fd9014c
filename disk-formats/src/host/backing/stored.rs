//! Which ranges of a file the host has allocated (SEEK_HOLE and SEEK_DATA).

use std::io;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::BackingFile;
use crate::contract::disk::{Allocation, Status};

impl BackingFile {
    /// Current size in bytes; [`size`](Self::size) is the size at open.
    pub(crate) fn end(&self) -> io::Result<u64> {
        Ok(seek(&self.file, SeekFrom::End(0))?)
    }

    /// The allocation status at `offset` of the file, and the length of the run, in whole sectors. A partly allocated
    /// sector counts as mapped. If the host cannot report the status, the whole run counts as mapped. So does a run
    /// beyond the end of the file, unless `zeros_past_end`: a read there has to report the error.
    pub(crate) fn stored(&self, offset: u64, len: u64, sector: u64, zeros_past_end: bool) -> Allocation {
        let run = self.run(offset, len, zeros_past_end);
        match (run.status, run.len - run.len % sector) {
            (_, 0) => Allocation { len: sector.min(len), status: Status::Mapped },
            (status, len) => Allocation { len, status },
        }
    }

    fn run(&self, offset: u64, len: u64, zeros_past_end: bool) -> Allocation {
        let whole = Allocation { len, status: Status::Mapped };
        if self.device().is_some() {
            return whole;
        }
        let (status, end) = match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) if data > offset => (Status::Zeros, data),
            Ok(_) => match seek(&self.file, SeekFrom::Hole(offset)) {
                Ok(hole) => (Status::Mapped, hole),
                Err(_) => return whole,
            },
            // No data between the offset and the end of the file.
            Err(Errno::NXIO) if zeros_past_end => (Status::Zeros, u64::MAX),
            Err(Errno::NXIO) => match self.end() {
                Ok(end) if end > offset => (Status::Zeros, end),
                _ => return whole,
            },
            Err(_) => return whole,
        };
        Allocation { len: (end - offset).min(len), status }
    }
}
