//! What a disk is: size, sectors, and what it can do.

/// A logical sector size that guests can address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorSize {
    /// 512 bytes.
    B512,
    /// 4,096 bytes.
    B4096,
}

impl SectorSize {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }

    /// Power of two of the size.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::B512 => 9,
            Self::B4096 => 12,
        }
    }

    /// From bytes; `None` for a size that guests cannot address.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            512 => Some(Self::B512),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }
}

/// Format and kind of a disk, as the command line names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// `raw`, `passthrough`, `vhd`, `vhdx`, `ram` or `null`.
    pub format: &'static str,
    /// `fixed`, `dynamic`, `differencing`, where the format has kinds.
    pub subformat: Option<&'static str>,
}

/// How a disk discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Bytes; smaller or unaligned discards may do nothing. A power of two, at least one logical sector.
    pub granularity: u64,
    /// Whether a discarded range reads as zeros (else as old data or zeros).
    pub reads_zero: bool,
}

/// What a disk is. Constant while it is open, but for `capacity`, which an online resize may raise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInfo {
    /// Kind of disk.
    pub kind: Kind,
    /// Bytes; whole logical sectors.
    pub capacity: u64,
    /// Smallest addressable unit.
    pub logical_sector: SectorSize,
    /// Bytes that the medium writes at once without read-modify-write; a power of two, at least the logical sector.
    pub physical_sector: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// A completed write may still be lost by a power failure until a flush completes.
    pub volatile_cache: bool,
    /// A write can be on stable storage when it completes (force unit access).
    pub fua: bool,
    /// How it discards; `None` where it does not.
    pub discard: Option<DiscardLimits>,
    /// Alignment in bytes of buffer addresses below which I/O is bounced (1: none). Above 1, buffers whose length is not
    /// whole logical sectors are bounced too.
    pub buffer_alignment: u32,
}

impl DiskInfo {
    /// Number of logical sectors.
    #[must_use]
    pub const fn sectors(&self) -> u64 {
        self.capacity >> self.logical_sector.shift()
    }
}
