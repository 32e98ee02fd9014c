//! A disk of any format: its queues, and its allocation status as the host reports it.

use std::sync::Arc;

use crate::contract::disk::{Allocation, Disk, Identity, MapMemory, Status};
use crate::contract::error::{IoError, OpenError};
use crate::contract::info::DiskInfo;
use crate::contract::queue::{DiskQueue, QueueConfig};
use crate::host::identity;
use crate::map::extent::{Extents, Place};
use crate::map::format::Format;
use crate::map::map_now::map_now;
use crate::queue::file_queue::file_queue;

/// Maximum number of bytes that one status covers.
const STATUS: u64 = 64 << 30;
/// Window in bytes that one step maps: the first, and the largest. Mapping costs time and map memory for each extent of
/// the window, though only the first extent is used.
const FIRST_WINDOW: u64 = 1 << 20;
const LAST_WINDOW: u64 = 32 << 20;

/// A [`Format`] as a [`Disk`].
pub struct FileDisk {
    format: Arc<dyn Format>,
}

impl FileDisk {
    /// The disk of `format`.
    #[must_use]
    pub fn new(format: Arc<dyn Format>) -> Self {
        Self { format }
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> &Arc<dyn Format> {
        &self.format
    }
}

impl Disk for FileDisk {
    fn info(&self) -> &DiskInfo {
        self.format.info()
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        file_queue(&self.format, config)
    }

    fn map_memory(&self) -> Option<MapMemory> {
        self.format.map_memory()
    }

    fn identity(&self) -> Identity {
        let file = self.format.files().first().and_then(|file| identity::of_file(file));
        Identity { image: self.format.image_id(), file }
    }

    fn uncache(&self) -> Result<(), IoError> {
        self.format.files().iter().try_for_each(|file| file.uncache())
    }

    fn rescan(&self) -> Result<u64, OpenError> {
        self.format.rescan()
    }

    fn grow(&self, capacity: u64) -> Result<u64, OpenError> {
        self.format.grow(capacity)
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        let info = self.info();
        let sector = u64::from(info.logical_sector.bytes());
        let left = info.capacity.checked_sub(offset).filter(|left| *left > 0).ok_or(IoError::OutOfRange)?;
        if !offset.is_multiple_of(sector) {
            return Err(IoError::Misaligned);
        }
        let limit = (limit - limit % sector).max(sector).min(left);
        let limit = limit.min(STATUS);
        let (mut extents, mut len, mut found) = (Extents::new(), 0, None);
        let mut widest = FIRST_WINDOW;
        while len < limit {
            let window = widest.min(limit - len);
            widest = (2 * widest).min(LAST_WINDOW);
            map_now(self.format.as_ref(), false, offset + len, window, &mut extents)?;
            let next = extents.as_slice().first().ok_or(IoError::Damaged("the mapping is empty"))?;
            if found.get_or_insert(next.place).advanced(len) != next.place {
                break;
            }
            len += next.len;
            if next.len < window {
                break;
            }
        }
        let Some(Place::File { file, offset }) = found else {
            return Ok(Allocation { len, status: Status::Zeros });
        };
        let file = self.format.files().get(file as usize).ok_or(IoError::Damaged("no such file"))?;
        Ok(file.stored(offset, len, sector, self.format.zeros_past_end()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::contract::info::SectorSize;
    use crate::disk::null::NullDisk;
    use crate::host::backing::BackingFile;
    use crate::map::format::Mapping;

    /// A disk whose odd sectors are mapped and even sectors are zeros (`scattered`), or that is all zeros. Records the
    /// longest range that was mapped at once.
    struct Pieces {
        info: DiskInfo,
        scattered: bool,
        longest: Arc<AtomicU64>,
    }

    impl Format for Pieces {
        fn info(&self) -> &DiskInfo {
            &self.info
        }
        fn files(&self) -> &[Arc<BackingFile>] {
            &[]
        }
        fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
            self.longest.fetch_max(len, Ordering::Relaxed);
            if !self.scattered {
                extents.push(len, Place::Zeros);
                return Ok(Mapping::Ready);
            }
            for sector in (offset..offset + len).step_by(512) {
                let zeros = sector.is_multiple_of(1024);
                extents.push(512, if zeros { Place::Zeros } else { Place::File { file: 0, offset: sector } });
            }
            Ok(Mapping::Ready)
        }
        fn map_write(&self, _offset: u64, _len: u64, _extents: &mut Extents) -> Result<Mapping, IoError> {
            Ok(Mapping::Blocked)
        }
        fn discard(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
            Ok(())
        }
        fn write_zeroes(&self, _offset: u64, _len: u64, _may_unmap: bool) -> Result<(), IoError> {
            Ok(())
        }
    }

    /// The cost of a status does not depend on the limit: a short piece is found in a short window.
    #[test]
    fn a_status_of_scattered_sectors_maps_little() {
        for (scattered, found, most) in [(true, 512, 1 << 20), (false, 1 << 30, 32 << 20)] {
            let longest = Arc::new(AtomicU64::new(0));
            let info = NullDisk::new(1 << 30, SectorSize::B512).unwrap().info().clone();
            let disk = FileDisk::new(Arc::new(Pieces { info, scattered, longest: Arc::clone(&longest) }));
            let allocation = disk.status(0, 1 << 30).unwrap();
            assert_eq!((allocation.len, allocation.status), (found, Status::Zeros));
            assert_eq!(longest.load(Ordering::Relaxed), most);
        }
    }
}
