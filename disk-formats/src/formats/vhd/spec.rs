//! On-disk structures: Virtual Hard Disk Image Format Specification 1.0, "Hard Disk Footer Format". Big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::formats::signature;

/// First eight bytes of a footer.
pub const COOKIE: [u8; 8] = signature::VHD_COOKIE;
/// Feature bit that is always 1.
pub const FEATURE_RESERVED: u32 = 0x2;
/// Version 1.0 of the format.
pub const FILE_FORMAT_VERSION: u32 = 0x0001_0000;
/// Data offset of a fixed disk, which has no dynamic header.
pub const NO_DATA_OFFSET: u64 = u64::MAX;
/// Seconds from 1970-01-01 to the format's epoch, 2000-01-01 00:00:00 UTC.
pub const EPOCH: u64 = 946_684_800;

/// Creator of images that this program writes. Readers take the size of unknown creators' disks from the current size,
/// which is exact.
pub(super) const CREATOR: [u8; 4] = *b"pdsk";
/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Bytes of a footer.
pub const FOOTER_SIZE: usize = signature::VHD_FOOTER_SIZE;
/// Bytes of a footer that was written before Virtual PC 2004: it lacks the last byte, which is zero.
pub const OLD_FOOTER_SIZE: usize = signature::OLD_VHD_FOOTER_SIZE;
/// Largest virtual size of a dynamic or differencing disk, 2,040 GiB: BAT entries are 32-bit sector numbers.
pub const MAX_SPARSE_SIZE: u64 = 0xFF00_0000 * SECTOR;
/// Largest virtual size of a fixed disk that is supported, 16 TiB. The format has no limit; many programs stop at 2,040
/// GiB.
pub const MAX_FIXED_SIZE: u64 = 16 << 40;
/// First eight bytes of a dynamic header.
pub const SPARSE_COOKIE: [u8; 8] = *b"cxsparse";
/// Version 1.0 of the dynamic header.
pub const HEADER_VERSION: u32 = 0x0001_0000;
/// Bytes of a dynamic header.
pub const HEADER_SIZE: usize = 1024;
/// A BAT entry without a block.
pub const UNALLOCATED: u32 = u32::MAX;
/// The usual block size, 2 MiB.
pub const DEFAULT_BLOCK_SIZE: u32 = 2 << 20;
/// Number of sectors that one sector of a bitmap describes: 2 MiB of data.
pub const SECTORS_PER_BITMAP_SECTOR: u64 = 8 * SECTOR;

/// Values of [`Footer::disk_type`].
pub mod disk_type {
    /// No disk.
    pub const NONE: u32 = 0;
    /// Raw data, then the footer.
    pub const FIXED: u32 = 2;
    /// Blocks that are allocated at their first write.
    pub const DYNAMIC: u32 = 3;
    /// Blocks over a parent.
    pub const DIFFERENCING: u32 = 4;
}

/// The footer, in the last sector of the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Footer {
    /// [`COOKIE`].
    pub cookie: [u8; 8],
    /// Feature bits.
    pub features: U32,
    /// [`FILE_FORMAT_VERSION`].
    pub file_format_version: U32,
    /// Byte offset of the dynamic header.
    pub data_offset: U64,
    /// Seconds since [`EPOCH`].
    pub time_stamp: U32,
    /// The program that wrote it.
    pub creator_application: [u8; 4],
    /// Its version, major and minor in 16 bits each.
    pub creator_version: U32,
    /// The host that it ran on.
    pub creator_host_os: [u8; 4],
    /// Virtual size in bytes at creation.
    pub original_size: U64,
    /// Virtual size in bytes.
    pub current_size: U64,
    /// Cylinders of the geometry.
    pub cylinders: U16,
    /// Heads of the geometry.
    pub heads: u8,
    /// Sectors per track of the geometry.
    pub sectors_per_track: u8,
    /// One of [`disk_type`].
    pub disk_type: U32,
    /// One's complement of the sum of the other bytes.
    pub checksum: U32,
    /// Identity of the disk.
    pub unique_id: [u8; 16],
    /// 1 if a saved state of a virtual machine belongs to the disk.
    pub saved_state: u8,
    /// Zero by the specification, but some programs store data here, which this program keeps.
    pub reserved: [u8; 427],
}

const _: () = assert!(size_of::<Footer>() == FOOTER_SIZE);
const _: () = assert!(std::mem::offset_of!(Footer, current_size) == 48);
const _: () = assert!(std::mem::offset_of!(Footer, checksum) == 64);
const _: () = assert!(std::mem::offset_of!(Footer, saved_state) == 84);

/// Values of [`ParentLocator::platform_code`].
pub mod platform {
    /// An empty slot.
    pub const NONE: [u8; 4] = [0; 4];
    /// UTF-16 little-endian, relative to the child.
    pub const W2RU: [u8; 4] = *b"W2ru";
    /// UTF-16 little-endian, absolute.
    pub const W2KU: [u8; 4] = *b"W2ku";
    /// Deprecated: relative to the child.
    pub const WI2R: [u8; 4] = *b"Wi2r";
    /// Deprecated: absolute.
    pub const WI2K: [u8; 4] = *b"Wi2k";
    /// A file URL in UTF-8.
    pub const MACX: [u8; 4] = *b"MacX";
}

/// A reference to the parent of a differencing disk.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ParentLocator {
    /// One of [`platform`].
    pub platform_code: [u8; 4],
    /// Space for the path: bytes in practice, sectors by the specification.
    pub data_space: U32,
    /// Bytes of the path.
    pub data_length: U32,
    /// Zero.
    pub reserved: U32,
    /// Offset of the path in the file in bytes.
    pub data_offset: U64,
}

/// The dynamic disk header, of dynamic and differencing disks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DynamicHeader {
    /// [`SPARSE_COOKIE`].
    pub cookie: [u8; 8],
    /// All ones.
    pub data_offset: U64,
    /// Byte offset of the block allocation table.
    pub table_offset: U64,
    /// [`HEADER_VERSION`].
    pub header_version: U32,
    /// Entries of the table.
    pub max_table_entries: U32,
    /// Bytes of a block's data; a power of two.
    pub block_size: U32,
    /// As that of the footer.
    pub checksum: U32,
    /// Identity of the parent.
    pub parent_unique_id: [u8; 16],
    /// The parent's time stamp when the child was created, or last merged or rebased.
    pub parent_time_stamp: U32,
    /// Zero.
    pub reserved1: U32,
    /// Name of the parent, UTF-16 big-endian, padded with zeros.
    pub parent_unicode_name: [u8; 512],
    /// References to the parent.
    pub parent_locators: [ParentLocator; 8],
    /// Zero.
    pub reserved2: [u8; 256],
}

const _: () = assert!(size_of::<DynamicHeader>() == HEADER_SIZE);
const _: () = assert!(std::mem::offset_of!(DynamicHeader, parent_unique_id) == 40);
const _: () = assert!(std::mem::offset_of!(DynamicHeader, parent_locators) == 576);

/// The checksum of a structure: one's complement of the sum of all bytes except those of the checksum.
fn checksum(bytes: &[u8], stored: &U32) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    !sum(bytes).wrapping_sub(sum(stored.as_bytes()))
}

impl DynamicHeader {
    /// The checksum of the other bytes.
    #[must_use]
    pub fn computed_checksum(&self) -> u32 {
        checksum(self.as_bytes(), &self.checksum)
    }

    /// Set the checksum.
    pub fn seal(&mut self) {
        self.checksum = self.computed_checksum().into();
    }
}

impl Footer {
    /// The checksum of the other bytes.
    #[must_use]
    pub fn computed_checksum(&self) -> u32 {
        checksum(self.as_bytes(), &self.checksum)
    }

    /// Set the checksum.
    pub fn seal(&mut self) {
        self.checksum = self.computed_checksum().into();
    }
}
