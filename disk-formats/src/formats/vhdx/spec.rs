//! On-disk structures: \[MS-VHDX\], Virtual Hard Disk v2 (VHDX) File Format, section 2. Little-endian.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Unit of offsets in the file.
pub const MIB: u64 = 1 << 20;
/// Unit of logged changes of metadata.
pub const LOG_SECTOR: u64 = 4096;
/// First eight bytes of a file (2.2.1).
pub const FILE_SIGNATURE: [u8; 8] = crate::formats::signature::VHDX_IDENTIFIER;
/// Byte offsets of the two headers (2.2.2).
pub const HEADERS_AT: [u64; 2] = [64 << 10, 128 << 10];
/// Bytes of a header, and of what its checksum covers.
pub const HEADER_SIZE: usize = 4096;
/// First four bytes of a header.
pub const HEADER_SIGNATURE: [u8; 4] = *b"head";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Byte offsets of the two region tables (2.2.3).
pub const REGION_TABLES_AT: [u64; 2] = [192 << 10, 256 << 10];
/// Bytes of a region table, and of a metadata table.
pub const TABLE_SIZE: usize = 64 << 10;
/// First four bytes of a region table.
pub const REGION_SIGNATURE: [u8; 4] = *b"regi";
/// First eight bytes of a metadata table (2.6.1).
pub const METADATA_SIGNATURE: [u8; 8] = *b"metadata";
/// Maximum number of entries of a region or metadata table.
pub const MAX_TABLE_ENTRIES: usize = 2047;
/// Bytes before the first region.
pub const HEADER_SECTION: u64 = MIB;
/// Largest virtual size.
pub const MAX_SIZE: u64 = 64 << 40;
/// Smallest and largest block.
pub const BLOCK_SIZES: std::ops::RangeInclusive<u32> = (1 << 20)..=(256 << 20);
/// Number of sectors that one bitmap block describes: 1 MiB of bits.
pub const SECTORS_PER_CHUNK: u64 = 1 << 23;
/// Largest metadata item.
pub const MAX_ITEM: u32 = 1 << 20;

/// Regions (2.2.3.2).
pub mod region {
    use super::Uuid;
    /// The block allocation table.
    pub const BAT: Uuid = Uuid::from_u128(0x2DC2_7766_F623_4200_9D64_115E_9BFD_4A08);
    /// The metadata region.
    pub const METADATA: Uuid = Uuid::from_u128(0x8B7C_A206_4790_4B9A_B8FE_575F_050F_886E);
    /// [`RegionEntry::required`](super::RegionEntry::required): a program that does not know the region must not open
    /// the file.
    pub const REQUIRED: u32 = 1;
}

/// Metadata items (2.6.2).
pub mod item {
    use super::Uuid;
    /// Block size and flags.
    pub const FILE_PARAMETERS: Uuid = Uuid::from_u128(0xCAA1_6737_FA36_4D43_B3B6_33F0_AA44_E76B);
    /// Virtual size.
    pub const VIRTUAL_DISK_SIZE: Uuid = Uuid::from_u128(0x2FA5_4224_CD1B_4876_B211_5DBE_D83B_F4B8);
    /// Identity of the disk as a guest sees it (SCSI page 83h).
    pub const VIRTUAL_DISK_ID: Uuid = Uuid::from_u128(0xBECA_12AB_B2E6_4523_93EF_C309_E000_C746);
    /// Logical sector size.
    pub const LOGICAL_SECTOR_SIZE: Uuid = Uuid::from_u128(0x8141_BF1D_A96F_4709_BA47_F233_A8FA_AB5F);
    /// Physical sector size.
    pub const PHYSICAL_SECTOR_SIZE: Uuid = Uuid::from_u128(0xCDA3_48C7_445D_4471_9CC9_E988_5251_C556);
    /// The parent of a differencing disk.
    pub const PARENT_LOCATOR: Uuid = Uuid::from_u128(0xA8D3_5F2D_B30B_454D_ABF7_D3D8_4834_AB0C);
    /// Not in the specification: marks a file whose creation is incomplete.
    pub const INCOMPLETE_FILE: Uuid = Uuid::from_u128(0x71CC_85F0_1B69_4E28_9558_C3BF_83AE_75D3);
    /// [`MetadataEntry::flags`](super::MetadataEntry::flags): a user item.
    pub const IS_USER: u32 = 1;
    /// A property of the disk, rather than of the file.
    pub const IS_VIRTUAL_DISK: u32 = 2;
    /// A program that does not know the item must not open the file.
    pub const IS_REQUIRED: u32 = 4;
}

/// The only type of parent locators (2.6.2.6.3).
pub const LOCATOR_TYPE: Uuid = Uuid::from_u128(0xB04A_EFB7_D19E_4A81_B789_25B8_E944_5913);

/// A header. The valid header with the higher sequence number is active.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`HEADER_SIGNATURE`].
    pub signature: [u8; 4],
    /// CRC-32C of the header with this field zero.
    pub checksum: U32,
    /// The header with the higher number is newer.
    pub sequence_number: U64,
    /// Changes before the first change of the file after an open.
    pub file_write_guid: [u8; 16],
    /// Changes before a change that a guest can see.
    pub data_write_guid: [u8; 16],
    /// GUID of the log entries to replay; zero if there are none.
    pub log_guid: [u8; 16],
    /// 0.
    pub log_version: U16,
    /// [`VERSION`].
    pub version: U16,
    /// Bytes of the log, whole MiB.
    pub log_length: U32,
    /// Byte offset of the log, whole MiB.
    pub log_offset: U64,
    /// Preserved.
    pub reserved: [u8; 4016],
}

/// The start of a region table.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionTableHeader {
    /// [`REGION_SIGNATURE`].
    pub signature: [u8; 4],
    /// CRC-32C of the table's 64 KiB with this field zero.
    pub checksum: U32,
    /// Entries that follow.
    pub entry_count: U32,
    /// Zero.
    pub reserved: U32,
}

/// A region.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionEntry {
    /// Type: one of [`region`].
    pub guid: [u8; 16],
    /// Byte offset, whole MiB.
    pub file_offset: U64,
    /// Bytes, whole MiB.
    pub length: U32,
    /// [`region::REQUIRED`] or 0.
    pub required: U32,
}

/// The start of a metadata table.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MetadataTableHeader {
    /// [`METADATA_SIGNATURE`].
    pub signature: [u8; 8],
    /// Zero.
    pub reserved: U16,
    /// Entries that follow.
    pub entry_count: U16,
    /// Zero.
    pub reserved2: [u8; 20],
}

/// A metadata item.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MetadataEntry {
    /// Type: one of [`item`], or a user item.
    pub item_id: [u8; 16],
    /// Byte offset in the region, after the table; 0 if `length` is 0.
    pub offset: U32,
    /// Bytes.
    pub length: U32,
    /// Flags of [`item`].
    pub flags: U32,
    /// Zero.
    pub reserved: U32,
}

/// The item [`item::FILE_PARAMETERS`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FileParameters {
    /// Bytes of a payload block.
    pub block_size: U32,
    /// [`LEAVE_BLOCK_ALLOCATED`], [`HAS_PARENT`].
    pub flags: U32,
}

/// A fixed disk: blocks keep their space.
pub const LEAVE_BLOCK_ALLOCATED: u32 = 1;
/// A differencing disk.
pub const HAS_PARENT: u32 = 2;

/// The start of the item [`item::PARENT_LOCATOR`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LocatorHeader {
    /// [`LOCATOR_TYPE`].
    pub locator_type: [u8; 16],
    /// Zero.
    pub reserved: U16,
    /// Entries that follow.
    pub key_value_count: U16,
}

/// A key and its value, UTF-16.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LocatorEntry {
    /// Byte offset of the key in the item.
    pub key_offset: U32,
    /// Byte offset of the value in the item.
    pub value_offset: U32,
    /// Bytes of the key.
    pub key_length: U16,
    /// Bytes of the value.
    pub value_length: U16,
}

const _: () = assert!(size_of::<Header>() == HEADER_SIZE);
const _: () = assert!(std::mem::offset_of!(Header, log_offset) == 72);
const _: () = assert!(size_of::<RegionTableHeader>() == 16);
const _: () = assert!(size_of::<RegionEntry>() == 32);
const _: () = assert!(size_of::<MetadataTableHeader>() == 32);
const _: () = assert!(size_of::<MetadataEntry>() == 32);
const _: () = assert!(size_of::<LocatorHeader>() == 20);
const _: () = assert!(size_of::<LocatorEntry>() == 12);
