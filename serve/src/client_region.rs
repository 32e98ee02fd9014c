//! A range of a client's file, mapped as memory of this process.
//!
//! - **Huge pages.** A file of hugetlbfs is mapped in whole huge pages, and a part of one cannot be unmapped. So the mapping has the whole
//!   pages around the range, and the region shows the range alone.
//! - **Bounds.** A client's file may be sparse, so its length costs the client nothing, while each mapping takes address space, without which
//!   this process could not allocate memory. So the bytes that are mapped are bounded for all clients of the process together
//!   ([`MOST_BYTES`]), and so is the number of mappings ([`Watched`]).
//! - **Files that shrink.** See [`sigbus`](crate::sigbus).

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use vm_memory::guest_memory::{Error, GuestUsize, MemoryRegionAddress, Result};
use vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryRegion, GuestMemoryRegionBytes, MmapRegion, VolatileMemory,
    VolatileSlice,
};

use crate::sigbus::Watched;

/// Maximum number of bytes that are mapped: half of the address space that Linux gives a process without being asked for more.
const MOST_BYTES: u64 = 64 << 40;

/// `f_type` of hugetlbfs (include/uapi/linux/magic.h).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// [`MOST_BYTES`], or less where the process is limited.
static LIMIT: OnceLock<u64> = OnceLock::new();
/// Bytes that are mapped.
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// Read the limit on the address space of this process (RLIMIT_AS), half of which is for clients. A server does so before it accepts
/// clients: later, the sandbox refuses it.
pub(crate) fn read_limit() {
    let half = || getrlimit(Resource::As).current.map_or(MOST_BYTES, |limit| MOST_BYTES.min(limit / 2));
    LIMIT.get_or_init(half);
}

/// Why a range is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotMapped {
    #[error("the client's memory exceeds its file, or is in neither a regular file nor a DAX device")]
    Invalid,
    #[error("the client's memory exceeds {0} bytes")]
    TooLarge(u64),
    #[error("the client's memory cannot be mapped: {0}")]
    Host(#[from] Errno),
}

impl NotMapped {
    pub(crate) const fn errno(self) -> Errno {
        match self {
            Self::Invalid => Errno::INVAL,
            Self::TooLarge(_) => Errno::NOMEM,
            Self::Host(errno) => errno,
        }
    }
}

impl From<NotMapped> for io::Error {
    fn from(error: NotMapped) -> Self {
        Self::other(error)
    }
}

/// A mapped range, at an address of the guest.
#[derive(Debug)]
pub struct ClientRegion {
    /// Before the mapping, so dropped before it.
    _watched: Watched,
    /// The whole pages around the range.
    pages: MmapRegion<()>,
    /// After the mapping, so dropped after it.
    _charge: Charge,
    guest: GuestAddress,
    /// Bytes of the pages before the range.
    before: usize,
    size: usize,
}

impl ClientRegion {
    /// Map `size` bytes of a client's file, from `offset`, as memory of the guest at `guest`. The file is one of the
    /// [`MemorySources`](crate::MemorySources).
    ///
    /// # Errors
    /// The range is empty, exceeds the file or the guest's address space, or cannot be mapped.
    pub(crate) fn map(
        file: File,
        offset: u64,
        size: u64,
        guest: u64,
        writable: bool,
    ) -> std::result::Result<Self, NotMapped> {
        // Not by statx, as the standard library has it: that call takes a path, too, so the sandbox refuses it.
        let stat = fstat(&file)?;
        // Only regular files have a length; a device refuses what it does not have.
        let length = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => stat.st_size as u64,
            FileType::CharacterDevice => u64::MAX,
            _ => return Err(NotMapped::Invalid),
        };
        let (start, len) =
            whole_pages(offset, size, page_size_of(&file)?, length).ok_or(NotMapped::Invalid)?;
        guest.checked_add(size).ok_or(NotMapped::Invalid)?;
        let charge = Charge::new(len)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let pages = MmapRegionBuilder::new(len as usize)
            .with_file_offset(FileOffset::new(file, start))
            .with_mmap_prot(protection.bits() as i32)
            .with_mmap_flags((MapFlags::SHARED | MapFlags::NORESERVE).bits() as i32)
            .build()
            .map_err(|error| match error {
                MmapRegionError::Mmap(error) => Errno::from_io_error(&error).unwrap_or(Errno::NOMEM),
                _ => Errno::INVAL,
            })?;
        // The file is long enough, but it may shrink later.
        let watched = Watched::new(pages.as_ptr(), pages.size()).map_err(|_| Errno::NOMEM)?;
        Ok(Self {
            _watched: watched,
            pages,
            _charge: charge,
            guest: GuestAddress(guest),
            before: (offset - start) as usize,
            size: size as usize,
        })
    }
}

impl GuestMemoryRegion for ClientRegion {
    type B = ();

    #[inline]
    fn len(&self) -> GuestUsize {
        self.size as u64
    }

    #[inline]
    fn start_addr(&self) -> GuestAddress {
        self.guest
    }

    fn bitmap(&self) {}

    #[inline]
    fn get_host_address(&self, address: MemoryRegionAddress) -> Result<*mut u8> {
        let address = self.check_address(address).ok_or(Error::InvalidBackendAddress)?;
        Ok(self.pages.as_ptr().wrapping_add(self.before + address.0 as usize))
    }

    #[inline]
    fn get_slice(&self, offset: MemoryRegionAddress, count: usize) -> Result<VolatileSlice<'_>> {
        // Not beyond the range, although the pages go on.
        let end = offset.0.checked_add(count as u64).filter(|end| *end <= self.len());
        end.ok_or(Error::InvalidBackendAddress)?;
        Ok(self.pages.get_slice(self.before + offset.0 as usize, count)?)
    }
}

impl GuestMemoryRegionBytes for ClientRegion {}

/// The size of the file's pages in bytes.
fn page_size_of(file: &File) -> std::result::Result<u64, Errno> {
    // Other file systems have no seals, and may ask a daemon for their statistics.
    if fcntl_get_seals(file).is_ok() {
        let found = fstatfs(file)?;
        if found.f_type as u64 == HUGETLBFS_MAGIC {
            return Ok(found.f_bsize as u64);
        }
    }
    Ok(page_size() as u64)
}

/// Start and length of the whole pages around `size` bytes at `offset` of a file of `length` bytes. `None`: the range is empty or exceeds
/// the file.
fn whole_pages(offset: u64, size: u64, page: u64, length: u64) -> Option<(u64, u64)> {
    let end = offset.checked_add(size).filter(|end| size > 0 && *end <= length)?;
    let start = offset - offset.checked_rem(page)?;
    let len = end.checked_next_multiple_of(page)? - start;
    // Offsets of files are signed.
    i64::try_from(start.checked_add(len)?).is_ok().then_some((start, len))
}

/// So many bytes of [`MAPPED`].
#[derive(Debug)]
struct Charge(u64);

impl Charge {
    fn new(bytes: u64) -> std::result::Result<Self, NotMapped> {
        let limit = LIMIT.get().copied().unwrap_or(MOST_BYTES);
        let sum = |mapped: u64| mapped.checked_add(bytes).filter(|sum| *sum <= limit);
        let charged = MAPPED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        charged.map(|_| Self(bytes)).map_err(|_| NotMapped::TooLarge(limit))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
    use vm_memory::Bytes;

    use super::*;

    const HUGE: u64 = 2 << 20;

    #[test]
    fn ranges_become_whole_pages() {
        let file = 8 * HUGE;
        for (offset, size, page, expected) in [
            (0, 4096, 4096, Some((0, 4096))),
            (4096, 4097, 4096, Some((4096, 8192))),
            (5000, 100, 4096, Some((4096, 4096))),
            (0, 0xa_0000, HUGE, Some((0, HUGE))),
            (0xc_0000, 2 * HUGE, HUGE, Some((0, 3 * HUGE))),
            (HUGE, HUGE, HUGE, Some((HUGE, HUGE))),
            (7 * HUGE + 4096, HUGE - 4096, HUGE, Some((7 * HUGE, HUGE))),
            (7 * HUGE + 4096, HUGE, HUGE, None),
            (0, file, 4096, Some((0, file))),
            (0, file + 1, 4096, None),
            (file, 0, 4096, None),
            (u64::MAX, 4096, 4096, None),
        ] {
            assert_eq!(whole_pages(offset, size, page, file), expected, "{offset:#x} {size:#x} {page:#x}");
        }
        // A device has no length.
        assert_eq!(whole_pages(u64::MAX - 4096, 4096, 4096, u64::MAX), None);
        assert_eq!(whole_pages(1 << 63, 4096, 4096, u64::MAX), None);
    }

    fn memfd(name: &str, flags: MemfdFlags, size: u64) -> std::result::Result<File, Errno> {
        let file = memfd_create(name, flags | MemfdFlags::CLOEXEC)?;
        ftruncate(&file, size)?;
        Ok(file.into())
    }

    /// Bytes of the address space that mappings of memfds take.
    fn mapped() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_line = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            Some(u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?)
        };
        maps.lines().filter(|line| line.contains("/memfd:whole-pages")).filter_map(of_line).sum()
    }

    /// A range that begins and ends inside a page shows nothing of the pages beside it, and all of it is unmapped.
    #[track_caller]
    fn a_part_is_shown(file: &File, page: u64) {
        let (offset, size) = (page - 4096, page);
        let region = ClientRegion::map(file.try_clone().unwrap(), offset, size, 1 << 32, true).unwrap();
        assert_eq!(mapped(), 2 * page);
        assert_eq!((region.len(), region.start_addr()), (size, GuestAddress(1 << 32)));
        region.write_obj(0x1122_3344u32, MemoryRegionAddress(size - 4)).unwrap();
        assert!(region.get_slice(MemoryRegionAddress(size - 3), 4).is_err());
        assert!(region.get_host_address(MemoryRegionAddress(size)).is_err());
        let whole = ClientRegion::map(file.try_clone().unwrap(), 0, 2 * page, 0, false).unwrap();
        assert_eq!(whole.read_obj::<u32>(MemoryRegionAddress(offset + size - 4)).unwrap(), 0x1122_3344);
        let places = [(&region, 0), (&whole, offset)];
        let [part, same] = places.map(|(region, at)| region.get_slice(MemoryRegionAddress(at), 4).unwrap());
        assert_ne!(part.ptr_guard().as_ptr(), same.ptr_guard().as_ptr(), "two mappings");
        drop((region, whole));
        assert_eq!(mapped(), 0);
        let beyond = ClientRegion::map(file.try_clone().unwrap(), page, page + 4096, 0, true);
        assert_eq!(beyond.unwrap_err(), NotMapped::Invalid);
    }

    /// Huge pages that the kernel may make when they are used, beside those that are reserved: two more (needs root), until this is dropped.
    struct MoreHugePages(Option<u64>);

    const OVERCOMMIT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

    impl MoreHugePages {
        fn new() -> Self {
            let before = std::fs::read_to_string(OVERCOMMIT).ok().and_then(|text| text.trim().parse().ok());
            Self(before.filter(|before: &u64| std::fs::write(OVERCOMMIT, (before + 2).to_string()).is_ok()))
        }
    }

    impl Drop for MoreHugePages {
        fn drop(&mut self) {
            if let Some(before) = self.0 {
                let _ = std::fs::write(OVERCOMMIT, before.to_string());
            }
        }
    }

    #[test]
    fn huge_pages_are_mapped_and_unmapped_as_a_whole() {
        let _more = MoreHugePages::new();
        let file = match memfd("whole-pages", MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, 2 * HUGE) {
            Ok(file) => file,
            Err(errno) => {
                return println!(
                    "SKIP: huge_pages_are_mapped_and_unmapped_as_a_whole: no huge pages: {errno}"
                );
            }
        };
        assert_eq!(page_size_of(&file), Ok(HUGE));
        // Without free pages, an access raises SIGBUS, which replaces the mapping.
        if fallocate(&file, FallocateFlags::empty(), 0, 2 * HUGE).is_err() {
            return println!("SKIP: huge_pages_are_mapped_and_unmapped_as_a_whole: no huge pages are free");
        }
        a_part_is_shown(&file, HUGE);
    }

    #[test]
    fn what_is_mapped_is_bounded_and_comes_back() {
        let file = memfd("m", MemfdFlags::empty(), MOST_BYTES).unwrap();
        let map = |size| ClientRegion::map(file.try_clone().unwrap(), 0, size, 0, true);
        // Other tests map little.
        let half = map(MOST_BYTES / 2).unwrap();
        assert_eq!(map(MOST_BYTES / 2 + 1).unwrap_err(), NotMapped::TooLarge(MOST_BYTES));
        drop(half);
        map(MOST_BYTES / 2 + 1).unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(ClientRegion::map(pipe, 0, 4096, 0, true).unwrap_err(), NotMapped::Invalid);
        let huge = memfd("m", MemfdFlags::empty(), 1 << 62).unwrap();
        assert_eq!(
            ClientRegion::map(huge, 0, 1 << 62, 0, true).unwrap_err(),
            NotMapped::TooLarge(MOST_BYTES)
        );
    }
}
