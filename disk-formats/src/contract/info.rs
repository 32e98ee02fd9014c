//! Description of a disk: size, sectors, and capabilities.

/// A logical sector size that guests can address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorSize {
    /// 512 bytes.
    B512,
    /// 4,096 bytes.
    B4096,
}

impl SectorSize {
    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }

    /// Base-2 logarithm of the size.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::B512 => 9,
            Self::B4096 => 12,
        }
    }

    /// The sector size of `bytes`; `None` if guests cannot address it.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

/// Format and kind of a disk, by their command-line names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// `raw`, `passthrough`, `vhd`, `vhdx`, `ram` or `null`.
    pub format: &'static str,
    /// `fixed`, `dynamic` or `differencing`, if the format has kinds.
    pub subformat: Option<&'static str>,
}

/// Discard capabilities of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Bytes; smaller or unaligned discards may do nothing. A power of two, at least one logical sector.
    pub granularity: u64,
    /// Whether a discarded range reads as zeros (otherwise as old data or zeros).
    pub reads_zero: bool,
}

/// Description of a disk. Constant while the disk is open, except for `capacity`, which an online resize may raise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInfo {
    /// Kind of disk.
    pub kind: Kind,
    /// Bytes; a multiple of the logical sector.
    pub capacity: u64,
    /// Smallest addressable unit.
    pub logical_sector: SectorSize,
    /// Bytes that the medium writes without read-modify-write; a power of two, at least the logical sector.
    pub physical_sector: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// A completed write may still be lost by a power failure until a flush completes.
    pub volatile_cache: bool,
    /// Discard capabilities; `None` if the disk does not support discards.
    pub discard: Option<DiscardLimits>,
    /// Required alignment of buffer addresses in bytes (1: none). I/O with other buffers is bounced. If above 1, the
    /// length of each buffer must be whole logical sectors, too.
    pub buffer_alignment: u32,
}

impl DiskInfo {
    /// Number of logical sectors.
    #[must_use]
    pub const fn sectors(&self) -> u64 {
        self.capacity >> self.logical_sector.shift()
    }
}
