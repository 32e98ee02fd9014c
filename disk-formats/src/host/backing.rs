//! A file or block device behind a format: how it is opened, how large it is, and what direct I/O demands of it.

mod device;
mod flush;
mod lock;
mod space;
mod stored;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::error::{IoError, OpenError};
use crate::host;
use crate::host::memory::{HostMemory, page_size};
use crate::image::sync_folder_of;

use flush::Flushes;
pub use flush::on_flush_lost;
use lock::Refused;

pub(crate) use device::DeviceLimits;

/// How a [`BackingFile`] is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Nothing may be written.
    pub read_only: bool,
    /// `O_DIRECT`: past the host's page cache.
    pub direct: bool,
}

impl Access {
    /// For reading, through the host's page cache.
    pub const READ_ONLY: Self = Self { read_only: true, direct: false };
}

/// What direct I/O demands, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// Of buffer addresses.
    pub memory: u32,
    /// Of file offsets and lengths.
    pub offset: u32,
}

impl DirectAlignment {
    /// Whether `data` can go to or come from `offset` without a bounce buffer.
    fn allows(self, data: &[u8], offset: u64) -> bool {
        let unit = u64::from(self.offset);
        (data.as_ptr() as usize).is_multiple_of(self.memory as usize)
            && offset.is_multiple_of(unit)
            && (data.len() as u64).is_multiple_of(unit)
    }
}

/// An open file, how it was opened, and what direct I/O demands of it.
///
/// Writers of a file exclude every other open of it that locks (paradisk's, and QEMU's), readers exclude writers; a block
/// device is opened exclusively for writing.
#[derive(Debug)]
pub struct BackingFile {
    path: PathBuf,
    file: File,
    writable: bool,
    direct: Option<DirectAlignment>,
    device: Option<DeviceLimits>,
    size: u64,
    block: u32,
    flushes: Flushes,
}

impl BackingFile {
    /// Open a regular file or a block device.
    ///
    /// # Errors
    /// [`OpenError::Os`] where the host refuses, [`OpenError::Busy`] where another process uses it,
    /// [`OpenError::Invalid`] where it is neither file nor block device, [`OpenError::Unsupported`] where its file
    /// system has no direct I/O.
    pub fn open(path: &Path, access: Access) -> Result<Self, OpenError> {
        let os = |action| move |source| OpenError::Os { path: path.into(), action, source };
        let kind = std::fs::metadata(path).map_err(os("cannot open"))?.file_type();
        let is_device = kind.is_block_device();
        if !is_device && !kind.is_file() {
            return Err(OpenError::Invalid {
                path: path.into(),
                field: "type of file",
                value: describe(kind).into(),
                expected: "a regular file or a block device".into(),
            });
        }
        let exclusive = is_device && !access.read_only;
        let mut flags = OFlags::CLOEXEC;
        if access.direct {
            flags |= OFlags::DIRECT;
        }
        if exclusive {
            flags |= OFlags::EXCL;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(!access.read_only)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(|error| refused(path, access, exclusive, error))?;
        Self::from_file(path, file, access)
    }

    /// Create a regular file of `size` bytes that must not exist yet; its content reads as zeros.
    ///
    /// # Errors
    /// As for [`open`](Self::open); nothing is left behind then.
    pub fn create(path: &Path, size: u64) -> Result<Self, OpenError> {
        let os = |action| move |source| OpenError::Os { path: path.into(), action, source };
        let file = host::create_new(path).map_err(os("cannot create"))?;
        let sized = host::set_len(&file, size).map_err(os("cannot set the size"));
        sized.and_then(|()| Self::from_file(path, file, Access::default())).inspect_err(|_| remove(path))
    }

    /// Create an image: the file with what `write` puts into it, and its name in its directory, on stable storage.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and those of `write`; nothing is left behind then.
    pub(crate) fn create_image(
        path: &Path,
        size: u64,
        write: impl FnOnce(&Self) -> io::Result<()>,
    ) -> Result<(), OpenError> {
        let file = Self::create(path, size)?;
        let os = |action| move |source| OpenError::Os { path: path.into(), action, source };
        write(&file)
            .and_then(|()| Ok(file.sync()?))
            .map_err(os("cannot write the image"))
            .and_then(|()| sync_folder_of(path).map_err(os("cannot synchronise its folder")))
            .inspect_err(|_| remove(path))
    }

    fn from_file(path: &Path, file: File, access: Access) -> Result<Self, OpenError> {
        let os =
            |action| move |errno: Errno| OpenError::Os { path: path.into(), action, source: errno.into() };
        let metadata = file.metadata().map_err(|source| OpenError::Os {
            path: path.into(),
            action: "cannot read its attributes",
            source,
        })?;
        let is_device = metadata.file_type().is_block_device();
        if !is_device || !access.read_only {
            lock(path, &file, access)?;
        }
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
        let (path, writable, flushes) = (path.into(), !access.read_only, Flushes::default());
        Ok(Self { path, file, writable, direct, device, size, block, flushes })
    }

    /// The path, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file. Flush it with [`sync`](Self::sync) only: an fdatasync made elsewhere that fails would not be
    /// recorded.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Have everything written so far on stable storage: the data, and the metadata of the file system needed to find them
    /// (fdatasync). May block.
    ///
    /// # Errors
    /// [`IoError::FlushLost`] where this flush or an earlier one of this file has failed.
    pub fn sync(&self) -> Result<(), IoError> {
        self.flushes.sync(&self.file, &self.path)
    }

    /// Start writeback of a range of the page cache, without waiting for it. A performance hint.
    pub(crate) fn start_writeback(&self, offset: u64, len: u64) {
        self.flushes.start_writeback(&self.file, &self.path, offset, len);
    }

    /// Note that a flush of the file has failed; the error of it, and of every later one.
    pub(crate) fn flush_failed(&self, cause: Errno) -> IoError {
        self.flushes.failed(&self.path, cause)
    }

    /// Before metadata change.
    ///
    /// # Errors
    /// [`IoError::FlushLost`] where a flush has failed since the file was opened.
    #[inline]
    pub(crate) fn check_flushes(&self) -> Result<(), IoError> {
        self.flushes.check()
    }

    /// Whether it was opened for writing.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Bytes, when it was opened.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes, as it is now.
    pub(crate) fn size_now(&self) -> Result<u64, OpenError> {
        let seek = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0));
        let action = "cannot read the size";
        seek.map_err(|errno| OpenError::Os { path: self.path.clone(), action, source: errno.into() })
    }

    /// What direct I/O demands; `None` where I/O goes through the page cache.
    #[must_use]
    pub fn direct(&self) -> Option<DirectAlignment> {
        self.direct
    }

    /// Sizes and limits of a block device; `None` for a file.
    pub(crate) fn device(&self) -> Option<&DeviceLimits> {
        self.device.as_ref()
    }

    /// Allocation unit of the file system, in bytes.
    pub(crate) fn block_size(&self) -> u32 {
        self.block
    }

    /// Read exactly `data` from `offset`: metadata, not payload. Allowed at any alignment.
    ///
    /// # Errors
    /// The host's error; `UnexpectedEof` where the file ends before.
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
            let got = self.transfer(&memory, have, len - have, start + have as u64, false)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            have += got;
        }
        memory.buf(skip, data.len()).read(data);
        Ok(())
    }

    /// Write exactly `data` at `offset`: metadata, not payload. Where the file is open for direct I/O, both must be
    /// aligned to its units.
    ///
    /// # Errors
    /// The host's error; [`IoError::FlushLost`] inside where a flush of the file has failed.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check_flushes()?;
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
        let mut done = 0;
        while done < data.len() {
            match self.transfer(&memory, done, data.len() - done, offset + done as u64, true)? {
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
        write: bool,
    ) -> io::Result<usize> {
        let buf = memory.buf(start, len);
        loop {
            match crate::queue::engine::transfer(self.file.as_fd(), &[buf], at, write, false) {
                Err(Errno::INTR) => {}
                result => return result.map_err(Into::into),
            }
        }
    }

    /// Have the page cache forget what it holds of the file, as far as it can.
    ///
    /// # Errors
    /// The host's, where changes could not be written back before.
    pub(crate) fn uncache(&self) -> Result<(), IoError> {
        if self.writable {
            self.sync()?;
        }
        Ok(host::forget(&self.file)?)
    }
}

impl Drop for BackingFile {
    /// The lock is released here: a child process that another thread is forking may hold a copy of the descriptor for
    /// a moment longer.
    fn drop(&mut self) {
        self.flushes.forget_lost_writes(&self.file);
        lock::unlock(&self.file);
    }
}

/// Remove a file that was not completed: the caller reports the error that was the reason.
fn remove(path: &Path) {
    let _ = host::remove_file(path);
}

fn describe(kind: std::fs::FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_char_device() => "a character device",
        () if kind.is_fifo() => "a pipe",
        () => "a socket",
    }
}

/// Why opening failed, in the words of the error type.
fn refused(path: &Path, access: Access, exclusive: bool, error: io::Error) -> OpenError {
    match Errno::from_io_error(&error) {
        Some(Errno::BUSY) if exclusive => OpenError::Busy { path: path.into(), holder: device::holder(path) },
        Some(Errno::INVAL) if access.direct => {
            OpenError::Unsupported { path: path.into(), reason: "its file system has no direct I/O".into() }
        }
        _ => OpenError::Os { path: path.into(), action: "cannot open", source: error },
    }
}

/// Exclude others: of a file those whom reading or writing would harm, of a block device those who write while we do.
fn lock(path: &Path, file: &File, access: Access) -> Result<(), OpenError> {
    lock::lock(file, !access.read_only).map_err(|refused| match refused {
        Refused::Busy(holder) => OpenError::Busy { path: path.into(), holder },
        Refused::Os(errno) => {
            OpenError::Os { path: path.into(), action: "cannot lock", source: errno.into() }
        }
    })
}

fn statx(file: &File) -> Result<Statx, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)
}

/// From statx (Linux 6.1), else from the device, else the page: always allowed, if more than is needed.
fn direct_alignment(
    path: &Path,
    stat: &Statx,
    device: Option<&DeviceLimits>,
) -> Result<DirectAlignment, OpenError> {
    let told = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    if told && stat.stx_dio_offset_align == 0 {
        return Err(OpenError::Unsupported {
            path: path.into(),
            reason: "its file system has no direct I/O".into(),
        });
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
