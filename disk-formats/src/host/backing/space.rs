//! Discard, zeroing and allocation, by the fastest call that the file or device supports; and which ranges of a file the host has allocated.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, SeekFrom, Stat, Timespec, Timestamps, UTIME_OMIT, fstat, futimens, seek};
use rustix::io::{Errno, retry_on_intr};

use super::BackingFile;
use super::units::{Units, split};
use crate::contract::disk::{Allocation, Status};
use crate::contract::error::IoError;
use crate::host::memory::HostMemory;
use crate::host::store::{Store, io_error};
use crate::host::{self, sys};

/// Size in bytes of one write of zeros, if no faster call is supported.
const ZERO_CHUNK: usize = 256 << 10;
/// Bytes that the first step of an allocation reserves. Steps grow while they are quick.
const FIRST_STEP: u64 = 32 << 20;
/// If a step takes less time than this, the file system only changes its metadata.
const QUICK: Duration = Duration::from_millis(5);

impl BackingFile {
    /// Whether [`discard`](Self::discard) deallocates. Checked without changing data or the modification time.
    pub(crate) fn can_discard(&self) -> bool {
        match self.device() {
            Some(device) => self.writable && device.discard.is_some(),
            None => self.writable && self.punches_holes().is_ok_and(|punches| punches),
        }
    }

    /// Whether the file system punches holes: tried beyond the current end of the file, where no data are. That changes
    /// the modification time, by which the children of an image detect that it was changed: the time is put back.
    fn punches_holes(&self) -> io::Result<bool> {
        let before = fstat(self.file())?;
        let end = before.st_size.cast_unsigned().next_multiple_of(4096);
        let punches = punch(self, end, 4096).is_ok();
        let modified = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
        if modified(&fstat(self.file())?) != modified(&before) {
            // A file system without nanoseconds rounds them.
            let tv_nsec = before.st_mtime_nsec.try_into().unwrap_or(0);
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: before.st_mtime, tv_nsec },
            };
            // Refused to those who do not own the file. They may still discard.
            let _ = futimens(self.file(), &times);
        }
        Ok(punches)
    }

    /// Deallocate the range. Afterwards a file's range reads as zeros; a device's content is undefined.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.check_flushes()?;
        let unit = self.device().map_or(1, |device| u64::from(device.logical)).max(self.unit());
        let [before, whole, after] = split(offset, len, unit);
        if self.device().is_none() {
            self.store_zeros_in([before, after])?;
        }
        if whole.is_empty() {
            return Ok(());
        }
        let (offset, len) = (whole.start, whole.end - whole.start);
        let _registered = self.units.as_ref().map(|units| units.register(offset, len));
        let done = match self.device() {
            Some(_) => retry_on_intr(|| sys::blkdiscard(self.file(), offset, len)),
            None => punch(self, offset, len),
        };
        done.map_err(|errno| if unsupported(errno) { IoError::Unsupported } else { errno.into() })
    }

    fn unit(&self) -> u64 {
        self.units.as_ref().map_or(1, Units::bytes)
    }

    fn store_zeros_in(&self, ranges: [Range<u64>; 2]) -> Result<(), IoError> {
        let store = |range: Range<u64>| self.store_zeros(range.start, range.end - range.start);
        ranges.into_iter().filter(|range| !range.is_empty()).try_for_each(store).map_err(io_error)
    }

    /// Make the range read as zeros. `may_unmap` allows deallocating it.
    pub(crate) fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.check_flushes()?;
        let [before, whole, after] = split(offset, len, self.unit());
        self.store_zeros_in([before, after])?;
        if whole.is_empty() {
            return Ok(());
        }
        let (offset, len) = (whole.start, whole.end - whole.start);
        let registered = self.units.as_ref().map(|units| units.register(offset, len));
        if may_unmap {
            match punch(self, offset, len) {
                Err(errno) if unsupported(errno) => {}
                done => return Ok(done?),
            }
        }
        let zero_range = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let done = retry_on_intr(|| match self.device() {
            Some(_) => sys::blkzeroout(self.file(), offset, len),
            None => host::fallocate(self.file(), zero_range, offset, len),
        });
        drop(registered);
        match done {
            Err(errno) if unsupported(errno) => self.store_zeros(offset, len).map_err(io_error),
            done => Ok(done?),
        }
    }

    /// Extend an empty file to `len` bytes of allocated zeros. If the file system can reserve space, this takes
    /// constant time; otherwise it takes as long as writing the zeros. `progress` gets the bytes done and the total,
    /// and returns whether to continue. Steps that took time are flushed before they are reported.
    ///
    /// # Errors
    /// The host's error; [`io::ErrorKind::Interrupted`] if `progress` returns false.
    pub(crate) fn allocate(&self, len: u64, progress: &mut dyn FnMut(u64, u64) -> bool) -> io::Result<()> {
        self.allocate_by(len, progress, |at, len| {
            host::fallocate(self.file(), FallocateFlags::empty(), at, len)
        })
    }

    /// As [`allocate`](Self::allocate), with `reserve` as the call to the file system.
    fn allocate_by(
        &self,
        len: u64,
        progress: &mut dyn FnMut(u64, u64) -> bool,
        reserve: impl Fn(u64, u64) -> Result<(), Errno>,
    ) -> io::Result<()> {
        let (mut done, mut step, mut reserves) = (0, FIRST_STEP, true);
        while done < len {
            let part = (len - done).min(step);
            let begun = Instant::now();
            match reserves.then(|| reserve(done, part)) {
                Some(Ok(())) => {
                    if begun.elapsed() < QUICK {
                        step = step.saturating_mul(8);
                    } else {
                        // Some file systems (FAT, for example) write zeros to the page cache in this call.
                        self.sync()?;
                    }
                    done += part;
                }
                Some(Err(Errno::OPNOTSUPP | Errno::NOSYS)) => (reserves, step) = (false, FIRST_STEP),
                Some(Err(Errno::INTR)) => {}
                Some(Err(errno)) => return Err(errno.into()),
                None => {
                    self.store_zeros(done, part)?;
                    self.sync()?;
                    done += part;
                }
            }
            if !progress(done, len) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        Ok(())
    }

    /// While the result exists, [`reserve_range`](Self::reserve_range) allocates nothing: space of the file that is not written stays a
    /// hole.
    pub(crate) fn keep_holes(&self) -> KeepHoles<'_> {
        self.keeps_holes.store(true, Ordering::Relaxed);
        KeepHoles(self)
    }

    /// As [`Store::keeps_holes`].
    pub(crate) fn keeps_holes(&self) -> bool {
        self.keeps_holes.load(Ordering::Relaxed)
    }

    /// As [`Store::reserve`].
    pub(crate) fn reserve_range(&self, start: u64, end: u64) -> io::Result<()> {
        self.check_flushes()?;
        let len = end.saturating_sub(start);
        let reserved = match self.keeps_holes() {
            true => Err(Errno::OPNOTSUPP),
            false => retry_on_intr(|| host::fallocate(self.file(), FallocateFlags::empty(), start, len)),
        };
        match reserved {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if self.end()? < end => self.set_size(end),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Write zeros, if no faster call is supported.
    fn store_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        if let Some(units) = &self.units {
            let zeros = vec![0; ZERO_CHUNK.min(len as usize)];
            return (0..len).step_by(ZERO_CHUNK).try_for_each(|done| {
                let chunk = (len - done).min(ZERO_CHUNK as u64) as usize;
                self.write_in_units(units, &zeros[..chunk], offset + done)
            });
        }
        let memory = HostMemory::new(len.min(ZERO_CHUNK as u64) as usize)?;
        let mut done = 0;
        while done < len {
            let chunk = (len - done).min(ZERO_CHUNK as u64) as usize;
            match self.transfer(&memory, 0, chunk, offset + done, sys::RwMode::Write)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                put => done += put as u64,
            }
        }
        Ok(())
    }
}

/// Ends [`BackingFile::keep_holes`].
#[must_use]
pub(crate) struct KeepHoles<'a>(&'a BackingFile);

impl Drop for KeepHoles<'_> {
    fn drop(&mut self) {
        self.0.keeps_holes.store(false, Ordering::Relaxed);
    }
}

fn punch(file: &BackingFile, offset: u64, len: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry_on_intr(|| host::fallocate(file.file(), flags, offset, len))
}

/// Errors that mean that the call is not supported, as opposed to a failure.
fn unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NOTTY | Errno::NODEV)
}

impl BackingFile {
    /// Current size in bytes; [`size`](Self::size) is the size at open.
    pub(crate) fn end(&self) -> io::Result<u64> {
        Ok(seek(&self.file, SeekFrom::End(0))?)
    }

    /// The allocation status at `offset` of the file, and the length of the run, in whole sectors. A partly allocated
    /// sector counts as mapped. If the host cannot report the status, the whole run counts as mapped. So does a run
    /// beyond the end of the file, unless `zeros_past_end`: a read there has to report the error.
    pub(crate) fn stored(&self, offset: u64, len: u64, sector: u64, zeros_past_end: bool) -> Allocation {
        in_sectors(self.run(offset, len, zeros_past_end), len, sector)
    }

    /// As [`stored`](Self::stored) at the end of a hole, where data begin.
    pub(crate) fn stored_after_hole(&self, offset: u64, len: u64, sector: u64) -> Allocation {
        in_sectors(self.data_run(offset, len), len, sector)
    }

    fn run(&self, offset: u64, len: u64, zeros_past_end: bool) -> Allocation {
        let whole = Allocation { len, status: Status::Mapped };
        if self.device().is_some() {
            return whole;
        }
        let (status, end) = match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) if data > offset => (Status::Zeros, data),
            Ok(_) => return self.data_run(offset, len),
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

    fn data_run(&self, offset: u64, len: u64) -> Allocation {
        let hole = seek(&self.file, SeekFrom::Hole(offset)).unwrap_or(u64::MAX);
        Allocation { len: hole.saturating_sub(offset).min(len), status: Status::Mapped }
    }
}

/// A run at the start of `len` bytes in whole sectors; a sector that it covers only in part is mapped.
fn in_sectors(run: Allocation, len: u64, sector: u64) -> Allocation {
    match (run.status, run.len - run.len % sector) {
        (_, 0) => Allocation { len: sector.min(len), status: Status::Mapped },
        (status, len) => Allocation { len, status },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::backing::Access;

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

    /// Allocate `len` bytes of a new file with `reserve` as the file system. Returns the file, the reported progress,
    /// and the result.
    fn allocated(
        len: u64,
        stop_at: u64,
        reserve: impl Fn(&BackingFile, u64, u64) -> Result<(), Errno>,
    ) -> (tempfile::NamedTempFile, Vec<(u64, u64)>, io::Result<()>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let backing = BackingFile::open(file.path(), Access::default()).unwrap();
        let mut reported = Vec::new();
        let mut progress = |done, all| {
            reported.push((done, all));
            done < stop_at
        };
        let done = backing.allocate_by(len, &mut progress, |at, len| reserve(&backing, at, len));
        (file, reported, done)
    }

    #[test]
    fn zeros_are_written_where_the_file_system_reserves_nothing() {
        use std::os::unix::fs::MetadataExt;
        let len = 2 * FIRST_STEP + 512;
        let (file, reported, done) = allocated(len, u64::MAX, |_, _, _| Err(Errno::OPNOTSUPP));
        done.unwrap();
        // The first report is that nothing is done; then one for each step.
        assert_eq!(reported, [0, FIRST_STEP, 2 * FIRST_STEP, len].map(|done| (done, len)));
        let stat = std::fs::metadata(file.path()).unwrap();
        assert_eq!(stat.len(), len);
        assert!(stat.blocks() * 512 >= len, "{} blocks: no holes", stat.blocks());
        let (_, reported, done) = allocated(len, FIRST_STEP, |_, _, _| Err(Errno::OPNOTSUPP));
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(reported, [(0, len), (FIRST_STEP, len)], "it stops on request");
    }

    #[test]
    fn steps_grow_where_the_file_system_is_quick() {
        let reserve = |file: &BackingFile, at, len| {
            file.file().set_len(at + len).unwrap();
            Ok(())
        };
        let (file, reported, done) = allocated(1 << 41, u64::MAX, reserve);
        done.unwrap();
        assert_eq!(std::fs::metadata(file.path()).unwrap().len(), 1 << 41);
        assert!(
            reported.len() < 64 && reported.last() == Some(&(1 << 41, 1 << 41)),
            "{} steps",
            reported.len()
        );
        let slow = |_: &BackingFile, _, _| {
            std::thread::sleep(QUICK);
            Ok(())
        };
        let (_, reported, _) = allocated(4 * FIRST_STEP, u64::MAX, slow);
        assert_eq!(reported.len(), 4, "and stay where it is slow");
        let (_, _, full) = allocated(1 << 30, u64::MAX, |_, _, _| Err(Errno::NOSPC));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn reserved_space_is_a_hole_while_holes_are_kept() {
        use std::os::unix::fs::MetadataExt;
        let reserved = |keep: bool| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let backing = BackingFile::open(file.path(), Access::default()).unwrap();
            let stat = || file.as_file().metadata().unwrap();
            let mut before = 0;
            if keep {
                let _holes = backing.keep_holes();
                backing.reserve(0, 1 << 20).unwrap();
                assert_eq!((stat().len(), stat().blocks()), (1 << 20, 0));
                before = 1 << 20;
            }
            backing.reserve(before, before + (1 << 20)).unwrap();
            assert_eq!(stat().len(), before + (1 << 20));
            stat().blocks()
        };
        assert_eq!(reserved(true), reserved(false), "then it is allocated again");
    }

    /// The file has grown since it was opened. The probe must lie beyond its current end.
    #[test]
    fn to_find_out_whether_space_can_be_given_back_changes_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let backing = BackingFile::open(file.path(), Access::default()).unwrap();
        let data = vec![0x5A; 64 << 10];
        std::fs::write(file.path(), &data).unwrap();
        let modified = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        file.as_file().set_modified(modified).unwrap();
        assert!(backing.can_discard());
        assert!(std::fs::read(file.path()).unwrap() == data);
        assert_eq!(file.as_file().metadata().unwrap().modified().unwrap(), modified);
    }

    #[test]
    fn a_signal_is_no_reason_to_fail() {
        use crate::host::faults::{Fault, Host};
        use crate::host::store::Store;
        type Work = fn(&BackingFile) -> bool;
        let works: [(&str, Work); 7] = [
            ("allocate", |file| file.allocate(1 << 20, &mut |_, _| true).is_ok()),
            ("reserve", |file| file.reserve(64 << 10, 1 << 20).is_ok()),
            ("truncate", |file| file.set_size(4096).is_ok()),
            ("clone", |file| file.clone_range(file, 0, 32 << 10, 4096).is_ok()),
            ("punch", |file| file.discard(0, 4096).is_ok()),
            ("punch for zeros", |file| file.write_zeroes(0, 4096, true).is_ok()),
            ("zero range", |file| file.write_zeroes(0, 4096, false).is_ok()),
        ];
        for (name, work) in works {
            let host = Host::new();
            host.allow_clones(true);
            let path = host.folder().join("disk");
            std::fs::write(&path, vec![1; 64 << 10]).unwrap();
            let file = BackingFile::open(&path, Access::default()).unwrap();
            host.arm(Some((0, Fault::Fails(Errno::INTR))));
            assert!(work(&file), "{name}");
            assert!(host.hit(), "{name}");
            host.disarm();
        }
    }
}
