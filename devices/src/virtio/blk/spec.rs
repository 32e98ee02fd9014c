//! Constants and structures of the block device (VIRTIO 1.2, 5.2).

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the sectors that requests and configuration count in, whatever the disk's sector size.
pub const SECTOR_SIZE: u64 = 512;

bitflags! {
    /// Feature bits (5.2.3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BlkFeatures: u64 {
        /// The number of segments of a request is limited.
        const SEG_MAX = 1 << 2;
        /// Writes are refused.
        const RO = 1 << 5;
        /// The disk's sector size is known.
        const BLK_SIZE = 1 << 6;
        /// Flush is supported.
        const FLUSH = 1 << 9;
        /// Physical sectors and best sizes are known.
        const TOPOLOGY = 1 << 10;
        /// The guest can switch between write-back and write-through.
        const CONFIG_WCE = 1 << 11;
        /// There are several queues.
        const MQ = 1 << 12;
        /// Discard is supported.
        const DISCARD = 1 << 13;
        /// Writing zeros without data is supported.
        const WRITE_ZEROES = 1 << 14;
    }
}

/// Configuration (`struct virtio_blk_config`, 5.2.4).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlkConfig {
    /// Capacity in sectors of 512 bytes.
    pub capacity: U64,
    /// Maximum number of bytes of a segment (not offered).
    pub size_max: U32,
    /// Maximum number of segments of a request.
    pub seg_max: U32,
    /// Cylinders, heads, sectors (not offered).
    pub geometry: [u8; 4],
    /// Bytes of the disk's sectors.
    pub blk_size: U32,
    /// Base-2 logarithm of the number of the disk's sectors in a physical sector.
    pub physical_block_exp: u8,
    /// First physical sector's offset in the disk's sectors.
    pub alignment_offset: u8,
    /// Suggested minimum size of a request in the disk's sectors.
    pub min_io_size: U16,
    /// Suggested maximum size of a request in the disk's sectors; 0: no suggestion.
    pub opt_io_size: U32,
    /// One: write-back mode (writes may be lost until they are flushed). Zero: write-through.
    pub writeback: u8,
    /// Zero.
    pub unused0: u8,
    /// Queues.
    pub num_queues: U16,
    /// Maximum number of sectors of a range to discard.
    pub max_discard_sectors: U32,
    /// Maximum number of ranges of a discard.
    pub max_discard_seg: U32,
    /// Alignment for splitting discards, in sectors.
    pub discard_sector_alignment: U32,
    /// Maximum number of sectors of a range to zero.
    pub max_write_zeroes_sectors: U32,
    /// Maximum number of ranges of a write of zeros.
    pub max_write_zeroes_seg: U32,
    /// One: a write of zeros may unmap.
    pub write_zeroes_may_unmap: u8,
    /// Zero.
    pub unused1: [u8; 3],
}

/// Offset of [`BlkConfig::writeback`].
pub const WRITEBACK: u64 = std::mem::offset_of!(BlkConfig, writeback) as u64;

/// Header of a request (`struct virtio_blk_req`, 5.2.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// Type, one of `VIRTIO_BLK_T_`...
    pub request_type: U32,
    /// Zero.
    pub reserved: U32,
    /// First sector.
    pub sector: U64,
}

/// A range of a discard or a write of zeros (`struct virtio_blk_discard_write_zeroes`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RangeDesc {
    /// First sector.
    pub sector: U64,
    /// Sectors.
    pub num_sectors: U32,
    /// [`RANGE_UNMAP`].
    pub flags: U32,
}

/// In the flags of a range: the range may be unmapped.
pub const RANGE_UNMAP: u32 = 1;

/// Read.
pub const VIRTIO_BLK_T_IN: u32 = 0;
/// Write.
pub const VIRTIO_BLK_T_OUT: u32 = 1;
/// Flush.
pub const VIRTIO_BLK_T_FLUSH: u32 = 4;
/// The disk's serial number.
pub const VIRTIO_BLK_T_GET_ID: u32 = 8;
/// Discard.
pub const VIRTIO_BLK_T_DISCARD: u32 = 11;
/// Write zeros.
pub const VIRTIO_BLK_T_WRITE_ZEROES: u32 = 13;

/// Bytes of a serial number; a shorter one is padded with zeros.
pub const VIRTIO_BLK_ID_BYTES: usize = 20;

/// Status of a request: its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// `VIRTIO_BLK_S_OK`.
    Ok = 0,
    /// `VIRTIO_BLK_S_IOERR`.
    IoErr = 1,
    /// `VIRTIO_BLK_S_UNSUPP`.
    Unsupp = 2,
}
