//! On-disk structures: Virtual Hard Disk Image Format Specification 1.0, "Hard Disk Footer Format". Big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of a footer.
pub const COOKIE: [u8; 8] = *b"conectix";
/// Feature bit that is always set.
pub const FEATURE_RESERVED: u32 = 0x2;
/// Version 1.0 of the format.
pub const FILE_FORMAT_VERSION: u32 = 0x0001_0000;
/// Data offset of a fixed disk: none.
pub const NO_DATA_OFFSET: u64 = u64::MAX;
/// Seconds from the Unix epoch to that of the format, 2000-01-01 00:00:00 UTC.
pub const EPOCH: u64 = 946_684_800;
/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Bytes of a footer.
pub const FOOTER_SIZE: usize = 512;
/// Bytes of a footer as written before Virtual PC 2004: the last, a zero, is missing.
pub const OLD_FOOTER_SIZE: usize = 511;
/// Largest virtual size, 2,040 GiB: a limit of dynamic disks that tools hold every VHD to.
pub const MAX_SIZE: u64 = 0xFF00_0000 * SECTOR;

/// Values of [`Footer::disk_type`].
pub mod disk_type {
    /// No disk.
    pub const NONE: u32 = 0;
    /// Raw data, then the footer.
    pub const FIXED: u32 = 2;
    /// Blocks allocated when they are first written.
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
    /// The host it ran on.
    pub creator_host_os: [u8; 4],
    /// Virtual size in bytes when the disk was made.
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
    /// 1 where a saved state of a machine belongs to the disk.
    pub saved_state: u8,
    /// Zero.
    pub reserved: [u8; 427],
}

const _: () = assert!(size_of::<Footer>() == FOOTER_SIZE);
const _: () = assert!(std::mem::offset_of!(Footer, current_size) == 48);
const _: () = assert!(std::mem::offset_of!(Footer, checksum) == 64);
const _: () = assert!(std::mem::offset_of!(Footer, saved_state) == 84);

impl Footer {
    /// The checksum that its other bytes call for.
    #[must_use]
    pub fn computed_checksum(&self) -> u32 {
        let sum = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
        !sum(self.as_bytes()).wrapping_sub(sum(self.checksum.as_bytes()))
    }

    /// Set the checksum.
    pub fn seal(&mut self) {
        self.checksum = self.computed_checksum().into();
    }
}
