//! Disks whose content is a range of one file: raw files, block devices, and parts of them.

use std::path::Path;
use std::sync::OnceLock;

use crate::contract::error::{BadField, IoError, OpenError};
use crate::contract::info::{DiskInfo, SectorSize};
use crate::formats::info::whole_sectors;
use crate::host::backing::BackingFile;
use crate::host::backing::units::Units;
use crate::host::store::Store;
use crate::map::extent::{Extents, Place};
use crate::map::format::{Format, Mapping, file_remarks};

pub(crate) mod passthrough;
pub(crate) mod raw;

#[expect(clippy::disallowed_types, reason = "to be resized is no request")]
use std::sync::{Arc, Mutex, PoisonError};

/// Sector sizes of a raw or pass-through disk, in place of the defaults (`None`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sectors {
    /// Default: that of the block device. Of a file 4,096 if a GPT counts in such sectors, else 512.
    pub logical: Option<SectorSize>,
    /// Bytes, a power of two from the logical sector to 1 MiB. Default: that of the block device; 4,096 for a file.
    pub physical: Option<u32>,
}

impl Sectors {
    /// The physical sector, at least the `logical` one.
    ///
    /// # Errors
    /// [`OpenError::Invalid`].
    fn physical(&self, path: &Path, logical: SectorSize, default: u32) -> Result<u32, OpenError> {
        let logical = logical.bytes();
        match self.physical {
            None => Ok(default.max(logical)),
            Some(bytes) if bytes.is_power_of_two() && (logical..=1 << 20).contains(&bytes) => Ok(bytes),
            Some(bytes) => Err(BadField::new(
                "physical sector size",
                format!("{bytes} bytes"),
                format!("a power of two from {logical} to 1048576"),
            )
            .of(path)),
        }
    }
}

/// A disk that is the first `capacity` bytes of one file.
#[derive(Debug)]
pub struct Flat {
    info: Revisions,
    files: [Arc<BackingFile>; 1],
    /// The disk is the whole file.
    whole: bool,
    /// The file ends inside the last sector, whose rest reads as zeros.
    padded: bool,
    remark: Option<String>,
    /// Serializes resizes: compare, change and publish the size.
    #[expect(clippy::disallowed_types, reason = "to be resized is no request")]
    resize: Mutex<()>,
}

impl Flat {
    /// A disk that is the first [`DiskInfo::capacity`] bytes of a file.
    pub(crate) fn new(info: DiskInfo, file: Arc<BackingFile>) -> Self {
        Self {
            info: Revisions::new(info),
            files: [file],
            whole: false,
            padded: false,
            remark: None,
            resize: Default::default(),
        }
    }

    /// A disk that is a whole file, and may grow with it.
    pub(crate) fn whole(info: DiskInfo, file: Arc<BackingFile>) -> Self {
        Self { whole: true, ..Self::new(info, file) }
    }

    /// The same with a remark for the user.
    fn remarking(mut self, remark: Option<String>) -> Self {
        self.remark = remark;
        self
    }

    /// The same for a file that ends inside the last sector.
    fn padded(mut self, padded: bool) -> Self {
        self.padded = padded;
        self
    }

    /// The capacity of the whole file at a size in bytes.
    fn capacity_of(&self, size: u64) -> u64 {
        let sector = u64::from(self.info.current().logical_sector.bytes());
        if self.padded {
            return size.checked_next_multiple_of(sector).unwrap_or(size);
        }
        let unit = self.files[0].units().map_or(sector, |units| units.bytes().max(sector));
        size - size % unit
    }

    fn unsupported(&self, reason: String) -> OpenError {
        OpenError::unsupported(self.files[0].path(), reason)
    }

    fn set_capacity(&self, capacity: u64) -> Result<u64, OpenError> {
        if self.info.set_capacity(capacity) {
            return Ok(capacity);
        }
        Err(self.unsupported("it was resized too often since it was opened".to_owned()))
    }
}

impl Format for Flat {
    #[inline]
    fn info(&self) -> &DiskInfo {
        self.info.current()
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        extents.push(len, Place::File { file: 0, offset });
        Ok(Mapping::Ready)
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.map_read(offset, len, extents)
    }

    fn zeros_past_end(&self) -> bool {
        self.padded
    }

    fn remark(&self) -> Option<String> {
        let remarks = [self.remark.clone(), file_remarks(&self.files)];
        remarks.into_iter().flatten().reduce(|one, other| format!("{one}; {other}"))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.files[0].discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.files[0].write_zeroes(offset, len, may_unmap)
    }

    fn rescan(&self) -> Result<u64, OpenError> {
        let _alone = self.resize.lock().unwrap_or_else(PoisonError::into_inner);
        let info = self.info.current();
        if !self.whole {
            return Ok(info.capacity);
        }
        let size = self.files[0].size_now()?;
        let capacity = self.capacity_of(size);
        if capacity < info.capacity {
            let reason = format!("it has become smaller: {size} bytes, of a disk of {}", info.capacity);
            return Err(self.unsupported(reason));
        }
        self.set_capacity(capacity)
    }

    fn grow(&self, capacity: u64) -> Result<u64, OpenError> {
        let _alone = self.resize.lock().unwrap_or_else(PoisonError::into_inner);
        let (info, file) = (self.info.current(), &self.files[0]);
        if !self.whole {
            return Err(crate::map::format::cannot_grow(self));
        }
        whole_sectors(file.path(), capacity, info.logical_sector)?;
        if self.capacity_of(capacity) != capacity {
            let unit = file.units().map_or(0, Units::bytes);
            return Err(self.unsupported(format!(
                "{capacity} bytes are not whole units of {unit}, which direct I/O needs here"
            )));
        }
        if capacity < info.capacity {
            let reason =
                format!("it has {} bytes: it cannot be made smaller while it is in use", info.capacity);
            return Err(self.unsupported(reason));
        }
        if capacity > file.size_now()? {
            if file.device().is_some() {
                return Err(self.unsupported("a block device has the size that its host gives it".to_owned()));
            }
            if !file.writable() {
                return Err(self.unsupported("it is open read-only".to_owned()));
            }
            let grown = file.set_size(capacity).and_then(|()| Ok(file.sync()?));
            let action = "cannot resize";
            grown.map_err(OpenError::os(file.path(), action))?;
        }
        self.set_capacity(capacity)
    }
}

/// Maximum number of changes while the disk is open: revisions are freed only when it is closed.
const MOST: usize = 1000;

/// A linked list of revisions, from the first to the current one.
#[derive(Debug)]
pub(crate) struct Revisions {
    info: DiskInfo,
    next: OnceLock<Box<Revisions>>,
}

impl Revisions {
    pub(crate) const fn new(info: DiskInfo) -> Self {
        Self { info, next: OnceLock::new() }
    }

    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |revision| revision.next.get().map(Box::as_ref))
    }

    /// The current revision.
    #[inline]
    pub(crate) fn current(&self) -> &DiskInfo {
        let mut revision = self;
        while let Some(next) = revision.next.get() {
            revision = next;
        }
        &revision.info
    }

    /// Append a revision with another capacity. False if there were too many changes.
    pub(crate) fn set_capacity(&self, capacity: u64) -> bool {
        let new = |info: &DiskInfo| Box::new(Self::new(DiskInfo { capacity, ..info.clone() }));
        if self.current().capacity == capacity {
            return true;
        }
        // If another thread appends first, this revision follows that one.
        self.all().take(MOST).any(|last| last.next.get().is_none() && last.next.set(new(&last.info)).is_ok())
    }
}

#[cfg(test)]
mod revision_tests {
    use super::*;
    use crate::contract::info::SectorSize;
    use crate::disk::memory::memory_info;

    #[test]
    fn changes_are_seen_and_counted() {
        let revisions = Revisions::new(memory_info("null", 512, SectorSize::B512).unwrap());
        let first = revisions.current();
        assert!(revisions.set_capacity(512) && revisions.next.get().is_none());
        for n in 1..=MOST as u64 {
            assert!(revisions.set_capacity(512 * (n + 1)));
            assert_eq!(revisions.current().capacity, 512 * (n + 1));
        }
        assert!(!revisions.set_capacity(512 * 5000));
        assert_eq!((first.capacity, revisions.current().kind), (512, first.kind));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use crate::contract::error::OpenError;
    use crate::formats::flat::raw::Raw;
    use crate::formats::open::OpenOptions;
    use crate::formats::vhd;

    const MIB: u64 = 1 << 20;

    fn set_len(path: &Path, len: u64) {
        File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    }

    fn refused(result: Result<u64, OpenError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn raw_files_grow_while_they_are_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.raw");
        Raw::create(&path, MIB).unwrap();
        let disk = OpenOptions::new(&path).open().unwrap();
        assert_eq!(disk.rescan().unwrap(), MIB);
        assert_eq!(disk.grow(2 * MIB).unwrap(), 2 * MIB);
        assert_eq!((disk.info().capacity, path.metadata().unwrap().len()), (2 * MIB, 2 * MIB));
        assert!(refused(disk.grow(MIB)).contains("cannot be made smaller"));
        assert!(refused(disk.grow(2 * MIB + 1)).contains("whole sectors"));
        // The file grew outside of this process, by more than whole sectors.
        set_len(&path, 3 * MIB + 100);
        assert_eq!(disk.info().capacity, 2 * MIB);
        assert_eq!(disk.rescan().unwrap(), 3 * MIB);
        assert_eq!(disk.info().capacity, 3 * MIB);
        // Data beyond the new capacity stay in the file.
        set_len(&path, 5 * MIB);
        assert_eq!(disk.grow(4 * MIB).unwrap(), 4 * MIB);
        assert_eq!(path.metadata().unwrap().len(), 5 * MIB);
        set_len(&path, MIB);
        assert!(refused(disk.rescan()).contains("has become smaller"));
        assert_eq!(disk.info().capacity, 4 * MIB);
    }

    #[test]
    fn what_does_not_grow_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.raw");
        Raw::create(&path, MIB).unwrap();
        let reader = OpenOptions { read_only: true, ..OpenOptions::new(&path) }.open().unwrap();
        assert!(refused(reader.grow(2 * MIB)).contains("read-only"));
        assert_eq!(path.metadata().unwrap().len(), MIB);
        let fixed = folder.path().join("fixed.vhd");
        vhd::create_fixed(&fixed, MIB).unwrap();
        let fixed = OpenOptions::new(&fixed).open().unwrap();
        assert!(refused(fixed.grow(2 * MIB)).contains("vhd images cannot be resized while they are in use"));
        assert_eq!(fixed.rescan().unwrap(), MIB);
    }

    #[test]
    fn who_grows_a_disk_a_little_takes_nothing_from_who_grows_it_much() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.raw");
        for _ in 0..20 {
            let _ = std::fs::remove_file(&path);
            Raw::create(&path, MIB).unwrap();
            let disk = OpenOptions::new(&path).open().unwrap();
            std::thread::scope(|scope| {
                for size in [2, 5, 3, 4] {
                    let disk = &disk;
                    // Fails if another thread has already made the disk larger.
                    scope.spawn(move || drop((disk.grow(size * MIB), disk.rescan())));
                }
            });
            assert_eq!((disk.info().capacity, path.metadata().unwrap().len()), (5 * MIB, 5 * MIB));
        }
    }
}
