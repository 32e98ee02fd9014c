//! Features and configuration space.

use paradisk_disk_formats::DiskInfo;
use zerocopy::IntoBytes;

use super::super::spec::Features;
use super::spec::{BlkConfig, BlkFeatures, SECTOR_SIZE, WRITEBACK};

/// Maximum number of ranges of a discard or a write of zeros.
pub(super) const MAX_RANGES: u32 = 16;

/// Maximum number of sectors of a range: 1 GiB, so that a single request does not occupy the disk for too long.
pub(super) const MAX_RANGE_SECTORS: u32 = 1 << 21;

/// The features and the configuration space that the guest reads, and the features that its driver has accepted. Used by the PCI
/// device and by other transports.
#[derive(Clone, Debug)]
pub struct Configuration {
    offered: BlkFeatures,
    config: BlkConfig,
    /// The writeback mode after reset.
    writeback: u8,
    /// The features that the driver has accepted.
    features: BlkFeatures,
}

impl Configuration {
    /// For a disk with `queues` queues of `queue_size` entries (at least 4).
    #[must_use]
    pub fn new(info: &DiskInfo, queues: u16, queue_size: u16) -> Self {
        let config = configuration(info, queues, queue_size);
        let features = BlkFeatures::empty();
        Self { offered: features_of(info, queues), writeback: config.writeback, config, features }
    }

    /// Feature bits of the block device, without the transport's.
    #[must_use]
    pub const fn offered(&self) -> u64 {
        self.offered.bits()
    }

    /// The same with the features of the rings that [`Rings`](super::Rings) has.
    #[must_use]
    pub const fn offered_with_rings(&self) -> u64 {
        let rings = Features::VERSION_1.union(Features::RING_INDIRECT_DESC).union(Features::RING_EVENT_IDX);
        self.offered.bits() | rings.bits()
    }

    /// The configuration as the guest reads it ([`BlkConfig`]).
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.config.as_bytes()
    }

    /// The guest writes `len` bytes at `offset`. Writes to read-only fields are ignored.
    pub fn write(&mut self, offset: u64, value: u64, len: usize) {
        if (offset, len) == (WRITEBACK, 1) && self.features.contains(BlkFeatures::CONFIG_WCE) {
            self.config.writeback = u8::from(value != 0);
        }
    }

    /// Set the disk's capacity. True: it has changed, and the guest must be notified.
    pub fn set_capacity(&mut self, bytes: u64) -> bool {
        let sectors = (bytes / SECTOR_SIZE).into();
        std::mem::replace(&mut self.config.capacity, sectors) != sectors
    }

    /// The driver has accepted these features.
    pub fn accept(&mut self, features: u64) {
        self.features = BlkFeatures::from_bits_truncate(features);
        // 5.2.5.2: without flushes, nothing is kept in a cache.
        if !self.features.contains(BlkFeatures::FLUSH) {
            self.config.writeback = 0;
        }
    }

    /// Reset to the state before a driver accepted features.
    pub fn reset(&mut self) {
        self.features = BlkFeatures::empty();
        self.config.writeback = self.writeback;
    }

    /// Whether a write must be on stable storage before it is completed (5.2.6.2).
    #[must_use]
    pub const fn write_through(&self) -> bool {
        if self.features.contains(BlkFeatures::CONFIG_WCE) {
            return self.config.writeback == 0;
        }
        !self.features.contains(BlkFeatures::FLUSH)
    }
}

fn features_of(info: &DiskInfo, queues: u16) -> BlkFeatures {
    let mut features = BlkFeatures::SEG_MAX
        | BlkFeatures::BLK_SIZE
        | BlkFeatures::FLUSH
        | BlkFeatures::TOPOLOGY
        | BlkFeatures::CONFIG_WCE;
    features.set(BlkFeatures::RO, info.read_only);
    features.set(BlkFeatures::MQ, queues > 1);
    features.set(BlkFeatures::DISCARD, info.discard.is_some() && !info.read_only);
    features.set(BlkFeatures::WRITE_ZEROES, !info.read_only);
    features
}

fn configuration(info: &DiskInfo, queues: u16, queue_size: u16) -> BlkConfig {
    let logical = info.logical_sector.bytes();
    let granularity = info.discard.map_or(u64::from(logical), |discard| discard.granularity);
    BlkConfig {
        capacity: (info.capacity / SECTOR_SIZE).into(),
        // A request also has a descriptor for its header and one for its status.
        seg_max: (u32::from(queue_size) - 2).into(),
        blk_size: logical.into(),
        physical_block_exp: (info.physical_sector / logical).max(1).ilog2() as u8,
        min_io_size: ((info.physical_sector / logical).clamp(1, 0xffff) as u16).into(),
        writeback: info.volatile_cache.into(),
        num_queues: queues.into(),
        max_discard_sectors: MAX_RANGE_SECTORS.into(),
        max_discard_seg: MAX_RANGES.into(),
        discard_sector_alignment: u32::try_from(granularity / SECTOR_SIZE).unwrap_or(u32::MAX).into(),
        max_write_zeroes_sectors: MAX_RANGE_SECTORS.into(),
        max_write_zeroes_seg: MAX_RANGES.into(),
        write_zeroes_may_unmap: info.discard.is_some_and(|discard| discard.reads_zero).into(),
        ..BlkConfig::default()
    }
}
