//! What the guest is told of the disk: features and configuration.

use disk_formats::DiskInfo;

use super::spec::{BlkConfig, BlkFeatures, SECTOR_SIZE};

/// Ranges of a discard or a write of zeros at the most.
pub(super) const MAX_RANGES: u32 = 16;

/// Sectors of a range at the most: 1 GiB, so that a single request does not occupy the disk for too long.
pub(super) const MAX_RANGE_SECTORS: u32 = 1 << 21;

pub(super) fn features(info: &DiskInfo, queues: u16) -> BlkFeatures {
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

pub(super) fn configuration(info: &DiskInfo, queues: u16, queue_size: u16) -> BlkConfig {
    let logical = info.logical_sector.bytes();
    let granularity = info.discard.map_or(u64::from(logical), |discard| discard.granularity);
    BlkConfig {
        capacity: (info.capacity / SECTOR_SIZE).into(),
        // A request has a descriptor for its header and one for its status, too.
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
