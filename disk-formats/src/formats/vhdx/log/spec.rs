//! On-disk structures of the log: [MS-VHDX] 2.3.1. Little-endian.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a log sector in bytes, and of the sector that a data descriptor changes.
pub(super) const SECTOR: usize = 4096;
/// First four bytes of an entry.
pub(super) const ENTRY: [u8; 4] = *b"loge";
/// First four bytes of a zero descriptor.
pub(super) const ZERO: [u8; 4] = *b"zero";
/// First four bytes of a data descriptor.
pub(super) const DESCRIPTOR: [u8; 4] = *b"desc";
/// First four bytes of a data sector.
pub(super) const DATA: [u8; 4] = *b"data";

/// The start of a log entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct EntryHeader {
    /// [`ENTRY`].
    pub(super) signature: [u8; 4],
    /// CRC-32C of the whole entry with this field as zero.
    pub(super) checksum: U32,
    /// Bytes of the entry, whole sectors.
    pub(super) entry_length: U32,
    /// Byte offset in the ring of the oldest entry that a replay applies; may be this one.
    pub(super) tail: U32,
    /// Sequence number: one more than that of the previous entry; not zero.
    pub(super) sequence_number: U64,
    /// Number of descriptors that follow.
    pub(super) descriptor_count: U32,
    /// Zero.
    pub(super) reserved: U32,
    /// The header's log GUID; other entries are invalid.
    pub(super) log_guid: [u8; 16],
    /// Size of the file on stable storage when the entry was written.
    pub(super) flushed_file_offset: U64,
    /// Minimum size of the file in bytes.
    pub(super) last_file_offset: U64,
}

/// A descriptor: of the data of one sector, or of a range to zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Descriptor {
    /// [`DESCRIPTOR`] or [`ZERO`].
    pub(super) signature: [u8; 4],
    /// Last four bytes of the data; zero in a zero descriptor.
    pub(super) trailing_bytes: [u8; 4],
    /// First eight bytes of the data; in a zero descriptor the length in bytes, whole sectors.
    pub(super) leading_bytes: [u8; 8],
    /// File offset in bytes, whole sectors.
    pub(super) file_offset: U64,
    /// Sequence number of the entry.
    pub(super) sequence_number: U64,
}

/// The other bytes of a data descriptor's sector.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct DataSector {
    /// [`DATA`].
    pub(super) signature: [u8; 4],
    /// Upper half of the entry's sequence number.
    pub(super) sequence_high: U32,
    /// All but the first eight and the last four bytes.
    pub(super) data: [u8; SECTOR - 12],
    /// Lower half of the entry's sequence number.
    pub(super) sequence_low: U32,
}

const _: () = assert!(size_of::<EntryHeader>() == 64);
const _: () = assert!(std::mem::offset_of!(EntryHeader, sequence_number) == 16);
const _: () = assert!(std::mem::offset_of!(EntryHeader, last_file_offset) == 56);
const _: () = assert!(size_of::<Descriptor>() == 32);
const _: () = assert!(std::mem::offset_of!(Descriptor, file_offset) == 16);
const _: () = assert!(size_of::<DataSector>() == SECTOR);
const _: () = assert!(std::mem::offset_of!(DataSector, sequence_low) == 4092);

/// Number of sectors that a header and its descriptors take.
pub(super) const fn descriptor_sectors(descriptors: u32) -> u64 {
    (size_of::<EntryHeader>() as u64 + descriptors as u64 * size_of::<Descriptor>() as u64)
        .div_ceil(SECTOR as u64)
}
