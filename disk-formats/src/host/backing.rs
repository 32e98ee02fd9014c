//! A file or block device behind a format: opening it, its size, and the alignment that direct I/O requires.

mod device;
mod flush;
mod lock;
mod space;
pub(crate) mod units;

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, OFlags, Statx, StatxFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::contract::error::{BadField, IoError, OpenError, escaped};
use crate::host;
use crate::host::memory::{HostMemory, page_size};
use crate::host::passed;
use crate::host::sys::RwMode;

use flush::Flushes;
pub use flush::on_flush_lost;
use lock::{Locked, Refused};
use units::Units;

pub(crate) use device::DeviceLimits;
pub(crate) use space::KeepHoles;

/// How long an open waits for a file that is locked though no process has it open but such as are ending, and the time between two tries.
///
/// The locks of a process that was killed stay until its threads have left the kernel and its memory is freed. The kernel closes the files of
/// an io_uring on a thread of its own, even after the process has ended. Until then, requests of that process may be in flight.
const RELEASE_WAIT: Duration = Duration::from_secs(1);
const RELEASE_POLL: Duration = Duration::from_millis(10);

/// Open mode of a [`BackingFile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The file must not be written.
    pub read_only: bool,
    /// `O_DIRECT`: bypass the host's page cache.
    pub direct: bool,
}

impl Access {
    /// Read-only, through the host's page cache.
    pub const READ_ONLY: Self = Self { read_only: true, direct: false };
}

/// Alignment in bytes that direct I/O requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// Of buffer addresses.
    pub memory: u32,
    /// Of file offsets and lengths.
    pub offset: u32,
}

impl DirectAlignment {
    /// Whether direct I/O can transfer `data` at `offset` without a bounce buffer.
    fn allows(self, data: &[u8], offset: u64) -> bool {
        let unit = u64::from(self.offset);
        (data.as_ptr() as usize).is_multiple_of(self.memory as usize)
            && offset.is_multiple_of(unit)
            && (data.len() as u64).is_multiple_of(unit)
    }
}

/// An open and locked file or block device.
///
/// A writer excludes all other opens of the file that lock it (by paradisk and QEMU); a reader excludes writers. A
/// block device is opened exclusively (`O_EXCL`) for writing.
#[derive(Debug)]
pub struct BackingFile {
    path: PathBuf,
    file: File,
    writable: bool,
    direct: Option<DirectAlignment>,
    /// Of direct I/O in units of more than 512 bytes.
    units: Option<Units>,
    /// Direct I/O was requested, but the file does not consist of units of so many bytes.
    not_direct: Option<u32>,
    /// The file system has no locks.
    unlocked: bool,
    device: Option<DeviceLimits>,
    size: u64,
    block: u32,
    /// [`keep_holes`](Self::keep_holes).
    keeps_holes: AtomicBool,
    flushes: Flushes,
}

impl BackingFile {
    /// Open a regular file or a block device, or one that was [passed](crate::pass).
    ///
    /// # Errors
    /// [`OpenError::Os`] if the host refuses; [`OpenError::Busy`] if another process uses the file;
    /// [`OpenError::Invalid`] if `path` is neither a regular file nor a block device; [`OpenError::Unsupported`] if the
    /// file system does not support direct I/O.
    pub fn open(path: &Path, access: Access) -> Result<Self, OpenError> {
        let os = |action| OpenError::os(path, action);
        let given = passed::copy_of(path).transpose().map_err(os("cannot copy the descriptor"))?;
        let metadata = given.as_ref().map_or_else(|| std::fs::metadata(path), File::metadata);
        let kind = metadata.map_err(os("cannot open"))?.file_type();
        // The open of another kind of file may wait, or have effects.
        check_kind(path, kind)?;
        if let Some(file) = given {
            fit(path, &file, access)?;
            return Self::from_file(path, file, access);
        }
        let is_device = kind.is_block_device();
        let exclusive = is_device && !access.read_only;
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
        if access.direct {
            flags |= OFlags::DIRECT;
        }
        if exclusive {
            flags |= OFlags::EXCL;
        }
        // The path may lead to another file by now: a pipe must not block the open.
        let wait = if is_device { OFlags::empty() } else { OFlags::NONBLOCK };
        let with = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(!access.read_only).custom_flags(flags.bits() as i32).open(path)
        };
        let open = || {
            let opened = match with(flags | wait) {
                // A lease of another process on the file: the open waits until it is given back.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => with(flags),
                opened => opened,
            };
            opened.map_err(|error| refused(path, access, exclusive, error))
        };
        let file = when_released(open).map_err(|refused| match refused {
            Refused::Busy(holder) => {
                let holder = holder.unwrap_or_else(|| "another process has it open exclusively".into());
                OpenError::Busy { path: path.into(), holder }
            }
            Refused::Other(error) => error,
        })?;
        check_kind(path, file.metadata().map_err(os("cannot read its attributes"))?.file_type())?;
        // io_uring would not wait for data of the file.
        let flags = fcntl_getfl(&file).map_err(|errno| os("cannot read its flags")(errno.into()))?;
        if flags.contains(OFlags::NONBLOCK) {
            let cleared = fcntl_setfl(&file, flags - OFlags::NONBLOCK);
            cleared.map_err(|errno| os("cannot change its flags")(errno.into()))?;
        }
        Self::from_file(path, file, access)
    }

    /// Create a regular file of `size` bytes, which must not exist yet. It reads as zeros.
    ///
    /// # Errors
    /// As for [`open`](Self::open). After an error the file does not exist.
    pub fn create(path: &Path, size: u64) -> Result<Self, OpenError> {
        let os = |action| OpenError::os(path, action);
        let file = host::create_new(path).map_err(os("cannot create"))?;
        let sized = host::set_len(&file, size).map_err(os("cannot set the size"));
        sized.and_then(|()| Self::from_file(path, file, Access::default())).inspect_err(|_| remove(path))
    }

    /// Create an image and let `write` fill it. On success the data and the directory entry are on stable storage.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and those of `write`. After an error the file does not exist.
    pub(crate) fn create_image(
        path: &Path,
        size: u64,
        write: impl FnOnce(&Self) -> io::Result<()>,
    ) -> Result<(), OpenError> {
        let file = Self::create(path, size)?;
        let os = |action| OpenError::os(path, action);
        write(&file)
            .and_then(|()| Ok(file.sync()?))
            .map_err(os("cannot write the image"))
            .and_then(|()| host::sync_folder_of(path).map_err(os("cannot flush its directory")))
            .inspect_err(|_| remove(path))
    }

    fn from_file(path: &Path, file: File, access: Access) -> Result<Self, OpenError> {
        let os = |action| OpenError::os(path, action);
        let metadata = file.metadata().map_err(OpenError::os(path, "cannot read its attributes"))?;
        let is_device = metadata.file_type().is_block_device();
        let unlocked = match !is_device || !access.read_only {
            true => lock(path, &file, access)? == Locked::Unsupported,
            false => false,
        };
        let device = if is_device {
            Some(DeviceLimits::read(&file, &metadata).map_err(os("cannot read the device's limits"))?)
        } else {
            None
        };
        let size =
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(os("cannot read the size"))?;
        let stat = statx(&file).map_err(os("cannot read its attributes"))?;
        let direct = match access.direct {
            true => Some(direct_alignment(path, &stat, device.as_ref())?),
            false => None,
        };
        let block = stat.stx_blksize.max(512);
        let units = direct.filter(|direct| direct.offset > 512).map(|direct| Units::new(direct.offset));
        let whole = units.as_ref().is_none_or(|units| size.is_multiple_of(units.bytes()));
        let (writable, flushes) = (!access.read_only, Flushes::default());
        let path = path.to_path_buf();
        let mut file = Self {
            path,
            file,
            writable,
            direct,
            units,
            not_direct: None,
            unlocked,
            device,
            size,
            block,
            keeps_holes: AtomicBool::new(false),
            flushes,
        };
        if !whole {
            file.use_page_cache()?;
        }
        Ok(file)
    }

    /// Use the page cache in place of direct I/O, for a file that does not consist of the units of direct I/O.
    ///
    /// # Errors
    /// [`OpenError::Os`].
    pub(crate) fn use_page_cache(&mut self) -> Result<(), OpenError> {
        let Some(direct) = self.direct else { return Ok(()) };
        let flags = fcntl_getfl(&self.file).and_then(|flags| fcntl_setfl(&self.file, flags - OFlags::DIRECT));
        let os = OpenError::os(&self.path, "cannot change O_DIRECT");
        flags.map_err(os)?;
        (self.direct, self.units, self.not_direct) = (None, None, Some(direct.offset));
        Ok(())
    }

    /// As with direct I/O in units of so many bytes, a power of two.
    #[cfg(test)]
    pub(crate) fn in_units(mut self, bytes: u32) -> Self {
        self.units = Some(Units::new(bytes));
        self
    }

    /// A remark for the user if direct I/O was requested and is not used, or if the file is not locked.
    pub(crate) fn remark(&self) -> Option<String> {
        let path = escaped(&self.path);
        let cached = self.not_direct.map(|unit| {
            format!(
                "{path} does not consist of units of {unit} bytes, which direct I/O needs here: the page cache is used"
            )
        });
        let unlocked = self.unlocked.then(|| {
            format!("{path} is on a file system without locks: nothing keeps other programs from changing it")
        });
        [cached, unlocked].into_iter().flatten().reduce(|one, other| format!("{one}; {other}"))
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file. Flush it only by [`sync`](Self::sync), which records failures.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Flush by fdatasync: all completed writes, and the file-system metadata needed to read them, are on stable
    /// storage afterwards. May block.
    ///
    /// # Errors
    /// [`IoError::FlushLost`] if this flush or an earlier flush of this file failed.
    pub fn sync(&self) -> Result<(), IoError> {
        self.flushes.sync(&self.file, &self.path)
    }

    /// Start writeback of a range of the page cache without waiting for its end. A performance hint.
    pub(crate) fn start_writeback(&self, offset: u64, len: u64) {
        self.flushes.start_writeback(&self.file, &self.path, offset, len);
    }

    /// Record that a flush of the file failed. Returns the error of this and every later flush.
    pub(crate) fn flush_failed(&self, cause: Errno) -> IoError {
        self.flushes.failed(&self.path, cause)
    }

    /// Call this before changing metadata.
    ///
    /// # Errors
    /// [`IoError::FlushLost`] if a flush has failed since the file was opened.
    #[inline]
    pub(crate) fn check_flushes(&self) -> Result<(), IoError> {
        self.flushes.check()
    }

    /// Whether the file was opened for writing.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Size in bytes at open.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Current size in bytes.
    pub(crate) fn size_now(&self) -> Result<u64, OpenError> {
        let seek = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0));
        let action = "cannot read the size";
        seek.map_err(OpenError::os(&self.path, action))
    }

    /// Alignment that direct I/O requires; `None` if I/O goes through the page cache.
    #[must_use]
    pub fn direct(&self) -> Option<DirectAlignment> {
        self.direct
    }

    /// The units of direct I/O, if they are larger than 512 bytes.
    #[inline]
    pub(crate) fn units(&self) -> Option<&Units> {
        self.units.as_ref()
    }

    /// Limits of a block device; `None` for a regular file.
    pub(crate) fn device(&self) -> Option<&DeviceLimits> {
        self.device.as_ref()
    }

    /// Allocation unit of the file system in bytes.
    pub(crate) fn block_size(&self) -> u32 {
        self.block
    }

    /// Fill `data` from `offset`: for metadata, not payload. Any alignment is allowed.
    ///
    /// # Errors
    /// The host's error; `UnexpectedEof` if the file ends before.
    pub fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        let Some(alignment) = self.direct else { return host::read_exact_at(&self.file, data, offset) };
        if alignment.allows(data, offset) && host::read_at(&self.file, data, offset)? == data.len() {
            return Ok(());
        }
        let unit = u64::from(alignment.offset);
        let start = offset - offset % unit;
        let skip = (offset - start) as usize;
        let len = (skip + data.len()).next_multiple_of(alignment.offset as usize);
        let memory = HostMemory::new(len)?;
        let mut have = 0;
        while have < skip + data.len() {
            let got = self.transfer(&memory, have, len - have, start + have as u64, RwMode::Read)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            have += got;
        }
        memory.buf(skip, data.len()).read(data);
        Ok(())
    }

    /// Write all of `data` at `offset`: for metadata, and for payload that does not fill the units of direct I/O. If
    /// these are 512 bytes, offset and length must be multiples.
    ///
    /// # Errors
    /// The host's error, or [`IoError::FlushLost`] inside an [`io::Error`] if a flush of the file failed.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check_flushes()?;
        if let Some(units) = &self.units {
            return self.write_in_units(units, data, offset);
        }
        if self.direct.is_none() {
            return host::write_all_at(&self.file, data, offset);
        }
        if self.direct.is_some_and(|direct| direct.allows(data, offset))
            && host::write_at(&self.file, data, offset)? == data.len()
        {
            return Ok(());
        }
        let memory = HostMemory::new(data.len())?;
        memory.buf(0, data.len()).write(data);
        self.write_memory(&memory, data.len(), offset)
    }

    /// Write all of `data` at `offset`, whatever their alignment. Waits for other writes of the same units.
    fn write_in_units(&self, units: &Units, data: &[u8], offset: u64) -> io::Result<()> {
        let registered = units.register(offset, data.len() as u64);
        let Range { start, end } = registered.range();
        let memory = HostMemory::new((end - start) as usize)?;
        if registered.is_partial() {
            let last = (end - units.bytes() > start).then_some(end - units.bytes());
            for unit in [Some(start), last].into_iter().flatten() {
                let mut have = 0;
                // Behind the end of the file there are zeros, as in the new memory.
                while have < units.bytes() {
                    let at = (unit - start + have) as usize;
                    match self.transfer(
                        &memory,
                        at,
                        (units.bytes() - have) as usize,
                        unit + have,
                        RwMode::Read,
                    )? {
                        0 => break,
                        got => have += got as u64,
                    }
                }
            }
        }
        memory.buf((offset - start) as usize, data.len()).write(data);
        self.write_memory(&memory, (end - start) as usize, start)
    }

    /// Write the first `len` bytes of `memory` at `offset`.
    fn write_memory(&self, memory: &HostMemory, len: usize, offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            match self.transfer(memory, done, len - done, offset + done as u64, RwMode::Write)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                put => done += put,
            }
        }
        Ok(())
    }

    fn transfer(
        &self,
        memory: &HostMemory,
        start: usize,
        len: usize,
        at: u64,
        mode: RwMode,
    ) -> io::Result<usize> {
        let buf = memory.buf(start, len);
        loop {
            match host::transfer(self.file.as_fd(), &[buf], at, mode) {
                Err(Errno::INTR) => {}
                result => return result.map_err(Into::into),
            }
        }
    }

    /// Evict the file from the page cache, as far as possible.
    ///
    /// # Errors
    /// The host's, if dirty pages could not be written back.
    pub(crate) fn uncache(&self) -> Result<(), IoError> {
        if self.writable {
            self.sync()?;
        }
        Ok(host::drop_cache(&self.file)?)
    }
}

impl Drop for BackingFile {
    /// Releases the lock explicitly: a child process that another thread forks may have a copy of the descriptor, and
    /// so the lock, for a moment longer.
    fn drop(&mut self) {
        self.flushes.forget_lost_writes(&self.file);
        lock::unlock(&self.file);
    }
}

/// Remove an incomplete file. An error is ignored: the caller reports the original error.
fn remove(path: &Path) {
    let _ = host::remove_file(path);
}

/// Check that a passed descriptor allows this access, and set or clear its `O_DIRECT` accordingly.
fn fit(path: &Path, file: &File, access: Access) -> Result<(), OpenError> {
    let os = |action| OpenError::os(path, action);
    let refused = |value: &str, expected: &str| Err(BadField::new("descriptor", value, expected).of(path));
    let flags = fcntl_getfl(file).map_err(os("cannot read the descriptor's flags"))?;
    let mode = flags & OFlags::ACCMODE;
    if flags.contains(OFlags::PATH) || mode == OFlags::WRONLY {
        return refused("not open for reading", "one that is open for reading");
    }
    if mode == OFlags::RDONLY && !access.read_only {
        return refused("read-only", "one that is open for reading and writing, or a read-only disk");
    }
    if flags.contains(OFlags::APPEND) {
        return refused("open for appending", "one without O_APPEND");
    }
    if flags.contains(OFlags::DIRECT) != access.direct {
        let mut wanted = flags;
        wanted.set(OFlags::DIRECT, access.direct);
        fcntl_setfl(file, wanted).map_err(os("cannot change O_DIRECT"))?;
    }
    Ok(())
}

/// Refuse a file that is neither a regular file nor a block device.
fn check_kind(path: &Path, kind: std::fs::FileType) -> Result<(), OpenError> {
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err(BadField::new("type of file", describe(kind), "a regular file or a block device").of(path))
}

fn describe(kind: std::fs::FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_char_device() => "a character device",
        () if kind.is_fifo() => "a pipe",
        () => "a socket",
    }
}

/// Map an error of open(2) to an [`OpenError`].
fn refused(path: &Path, access: Access, exclusive: bool, error: io::Error) -> Refused<OpenError> {
    match Errno::from_io_error(&error) {
        Some(Errno::BUSY) if exclusive => Refused::Busy(device::holder(path)),
        Some(Errno::INVAL) if access.direct => {
            Refused::Other(OpenError::unsupported(path, "its file system has no direct I/O"))
        }
        _ => Refused::Other(OpenError::os(path, "cannot open")(error)),
    }
}

/// Lock the file ([`lock::lock`]). A block device that is only read is not locked.
fn lock(path: &Path, file: &File, access: Access) -> Result<Locked, OpenError> {
    when_released(|| lock::lock(file, !access.read_only)).map_err(|refused| match refused {
        Refused::Busy(holder) => {
            let holder = holder.unwrap_or_else(|| "another process has it open".into());
            OpenError::Busy { path: path.into(), holder }
        }
        Refused::Other(errno) => OpenError::os(path, "cannot lock")(errno),
    })
}

/// Try to get a file. While others use it, but no process is known to have it open that is not ending, try again for [`RELEASE_WAIT`].
fn when_released<T, E>(mut attempt: impl FnMut() -> Result<T, Refused<E>>) -> Result<T, Refused<E>> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(Refused::Busy(None)) if begin.elapsed() < RELEASE_WAIT => thread::sleep(RELEASE_POLL),
            done => return done,
        }
    }
}

fn statx(file: &File) -> Result<Statx, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)
}

/// The alignment from statx (Linux 6.1), else the device's logical block size, else the page size, which is always
/// sufficient.
fn direct_alignment(
    path: &Path,
    stat: &Statx,
    device: Option<&DeviceLimits>,
) -> Result<DirectAlignment, OpenError> {
    let told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    if told && stat.stx_dio_offset_align == 0 {
        return Err(OpenError::unsupported(path, "its file system has no direct I/O"));
    }
    let page = page_size() as u32;
    let usable = |value: u32, fallback: u32| if value.is_power_of_two() { value } else { fallback };
    if told {
        let offset = usable(stat.stx_dio_offset_align, page);
        return Ok(DirectAlignment { memory: usable(stat.stx_dio_mem_align, page), offset });
    }
    let unit = device.map_or(page, |device| usable(device.logical, page));
    Ok(DirectAlignment { memory: unit, offset: unit })
}

#[cfg(test)]
mod tests;
