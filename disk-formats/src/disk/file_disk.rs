//! A disk of any format: how it is opened by its path, which may lead into another disk (a nested image); its queues; its identity, which is
//! stable from one open to the next; and its allocation status as the host reports it.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::contract::disk::{Allocation, Disk, Identity, MapMemory, Status};
use crate::contract::error::{IoError, OpenError, escaped};
use crate::contract::info::DiskInfo;
use crate::contract::queue::{DiskQueue, QueueConfig};
use crate::formats::name::FormatName;
use crate::formats::nested;
use crate::formats::open::{OpenOptions, open_file, probe_file};
use crate::host::backing::BackingFile;
use crate::map::extent::{Extents, Place};
use crate::map::format::{Format, map_now};
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
        // Some programs write an identity of zeros.
        let image = self.format.image_id().filter(|id| *id != [0; 16]);
        Identity { image, file: self.format.files().first().and_then(|file| identity_of(file)) }
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

/// See [`Identity::file`]; `None` if the host does not report it.
fn identity_of(file: &BackingFile) -> Option<[u8; 16]> {
    let metadata = file.file().metadata().ok()?;
    if metadata.file_type().is_block_device() {
        // Inode and device number of a block device may change at the host's next boot. A path below /dev/disk/by-id is
        // stable, so it is not resolved.
        let path = std::path::absolute(file.path()).ok()?;
        return Some(digest(&[path.as_os_str().as_bytes()]));
    }
    let path = file.path().canonicalize().ok()?;
    // The path stands for the file system, too. Its number (statvfs) would not do: on XFS and F2FS it is a device
    // number, which may change at the host's next boot.
    Some(digest(&[&metadata.ino().to_le_bytes(), path.as_os_str().as_bytes()]))
}

/// 128 bits: FNV-1a over all parts with two offset bases, each finalized as in SplitMix64.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let half = |start: u64| {
        let bytes = parts.iter().flat_map(|part| part.iter());
        let hash = bytes.fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ hash >> 31
    };
    let halves = u128::from(half(0xcbf2_9ce4_8422_2325)) << 64 | u128::from(half(0x6c62_272e_07bb_0142));
    halves.to_be_bytes()
}

/// Limits of one call of [`allocations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationLimits {
    /// Number of pieces to return.
    pub pieces: usize,
    /// Number of calls of [`Disk::status`].
    pub look_ups: usize,
    /// Bytes that one call of [`Disk::status`] covers.
    pub window: u64,
    /// Time after which [`Disk::status`] is not called again.
    pub time: Duration,
}

/// The allocation status of the range of `len` bytes at `offset`, which lies inside the disk. The result starts at
/// `offset` and covers the range, or as much of it as the limits allow. It has at least one piece, and neighbors differ
/// in status.
///
/// # Errors
/// The disk's, if even the status at `offset` cannot be read.
pub fn allocations(
    disk: &dyn Disk,
    offset: u64,
    len: u64,
    limits: AllocationLimits,
) -> Result<Vec<Allocation>, IoError> {
    let begin = Instant::now();
    let mut found: Vec<Allocation> = Vec::new();
    let (mut at, mut left) = (offset, len);
    for _ in 0..limits.look_ups.max(1) {
        let piece = match disk.status(at, limits.window.min(left)) {
            Ok(piece) => piece,
            Err(_) if !found.is_empty() => break,
            Err(error) => return Err(error),
        };
        // A length of 0 would loop forever. A piece must not reach beyond the requested range.
        let piece = Allocation { len: piece.len.min(left), ..piece };
        if piece.len == 0 {
            break;
        }
        let full = found.len() >= limits.pieces.max(1);
        match found.last_mut() {
            Some(last) if last.status == piece.status => last.len += piece.len,
            _ if full => break,
            _ => found.push(piece),
        }
        at += piece.len;
        left -= piece.len;
        if left == 0 || begin.elapsed() > limits.time {
            break;
        }
    }
    if found.is_empty() { Err(IoError::OutOfRange) } else { Ok(found) }
}

impl FormatName {
    /// The format of the disk at `path`: see [`OpenOptions::format`].
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] if name and content disagree; the host's error.
    pub fn probe(path: &Path) -> Result<Self, OpenError> {
        let inside = OpenOptions { read_only: true, ..OpenOptions::new(path) };
        let Some(opened) = nested::open(&inside) else { return probe_file(path) };
        let format = opened?.info().kind.format;
        format.parse().map_err(|_| OpenError::unsupported(path, format))
    }
}

impl OpenOptions {
    /// Open the disk.
    ///
    /// # Errors
    /// [`OpenError`] names the path and what is wrong.
    pub fn open(&self) -> Result<Arc<dyn Disk>, OpenError> {
        Ok(Arc::new(FileDisk::new(self.open_format()?)))
    }

    /// Open only the format, for tools that map ranges rather than transfer data.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_format(&self) -> Result<Arc<dyn Format>, OpenError> {
        let format = nested::open(self).unwrap_or_else(|| open_file(self))?;
        let info = format.info();
        tracing::info!(
            path = %escaped(&self.path),
            format = %info.kind.format,
            capacity = info.capacity,
            read_only = info.read_only,
            files = format.files().len(),
            "disk opened"
        );
        Ok(format)
    }
}

#[cfg(test)]
mod open_tests;

#[cfg(test)]
mod identity_tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::contract::disk::Disk;
    use crate::formats::flat::raw::Raw;
    use crate::formats::open::OpenOptions;

    fn open(path: &Path) -> Arc<dyn Disk> {
        OpenOptions { read_only: true, ..OpenOptions::new(path) }.open().unwrap()
    }

    #[test]
    fn files_are_distinguished_and_recognized() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, link] = ["a", "b", "link"].map(|name| folder.path().join(name));
        Raw::create(&a, 1 << 20).unwrap();
        std::fs::copy(&a, &b).unwrap();
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let [of_a, of_b, of_link] = [&a, &b, &link].map(|path| open(path).identity());
        assert_eq!((of_a.image, of_a), (None, open(&a).identity()));
        assert!(of_a.file.is_some() && of_a != of_b);
        assert_eq!(of_a, of_link);
        // The same name for another file.
        std::fs::rename(&b, &a).unwrap();
        assert_ne!(open(&a).identity(), of_a);
        // Nothing else is part of the digest, such as the file system's number, which may change at the host's next
        // boot.
        let path = a.canonicalize().unwrap();
        let parts = [&a.metadata().unwrap().ino().to_le_bytes()[..], path.as_os_str().as_bytes()];
        assert_eq!(open(&a).identity().file, Some(digest(&parts)));
    }

    #[cfg(all(feature = "vhd", feature = "vhdx"))]
    #[test]
    fn images_say_who_they_are() {
        use crate::disk::image::Image;
        use crate::formats::info::Scope;
        use crate::formats::{vhd, vhdx};
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        vhd::create_fixed(&path("fixed.vhd"), 1 << 20).unwrap();
        vhd::create_dynamic(&path("dynamic.vhd"), 1 << 20, None).unwrap();
        vhd::create_differencing(&path("child.vhd"), &path("dynamic.vhd"), None).unwrap();
        vhdx::create_dynamic(&path("dynamic.vhdx"), 1 << 20, vhdx::CreateOptions::default()).unwrap();
        vhdx::create_differencing(&path("child.vhdx"), &path("dynamic.vhdx"), None).unwrap();
        let told = |name| Image::open(path(name)).unwrap().info(Scope::Image).unwrap().remove(0).id;
        for name in ["fixed.vhd", "dynamic.vhd", "child.vhd"] {
            let told = told(name);
            let id = open(&path(name)).identity().image.unwrap();
            assert_eq!(id.map(|byte| format!("{byte:02x}")).concat(), told.replace('-', ""), "{name}");
        }
        for name in ["dynamic.vhdx", "child.vhdx"] {
            let told = told(name);
            let id = open(&path(name)).identity().image.map(|id| uuid::Uuid::from_bytes(id).to_string());
            assert_eq!(id, Some(told), "{name}");
        }
        // A copy of an image is another file.
        std::fs::copy(path("dynamic.vhdx"), path("copy.vhdx")).unwrap();
        let (copied, copy) = (open(&path("dynamic.vhdx")).identity(), open(&path("copy.vhdx")).identity());
        assert_eq!(copied.image, copy.image);
        assert_ne!(copied.file, copy.file);
        // An identifier of zeros is none.
        let mut image = std::fs::read(path("fixed.vhd")).unwrap();
        let footer = image.len() - 512;
        image[footer + 64..footer + 84].fill(0);
        let sum: u32 = image[footer..].iter().map(|byte| u32::from(*byte)).sum();
        image[footer + 64..footer + 68].copy_from_slice(&(!sum).to_be_bytes());
        std::fs::write(path("zero.vhd"), image).unwrap();
        assert_eq!(open(&path("zero.vhd")).identity().image, None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::contract::info::SectorSize;
    use crate::disk::memory::NullDisk;
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
