//! Configuration of a SCSI host device.

use super::super::pci::MAX_QUEUES;
use super::spec::*;
use crate::moderation::Coalescing;

/// Maximum number of request queues.
pub const MAX_REQUEST_QUEUES: u16 = MAX_QUEUES - REQUEST_QUEUES as u16;

/// Maximum number of entries of a queue.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Maximum number of targets.
pub const MAX_TARGETS: u16 = 256;

/// Largest logical unit number (flat space addressing, SAM-5, 4.7.7.3).
const MAX_LUN: u32 = 0x3fff;

/// Maximum number of sectors of a request: just below the largest transfer of the target.
const MAX_SECTORS: u32 = 0xffff;

/// Configuration of a SCSI host device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Request queues, 1 to [`MAX_REQUEST_QUEUES`].
    pub queues: u16,
    /// Maximum number of entries of each queue, 4 to [`MAX_QUEUE_SIZE`], rounded up to a power of two.
    pub queue_size: u16,
    /// Number of targets that the guest scans, 1 to [`MAX_TARGETS`].
    pub targets: u16,
    /// Maximum number of requests in flight. The bus must have been made for at least as many. Further requests wait in the
    /// guest's rings.
    pub tasks: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { coalescing: Coalescing::default(), queues: 1, queue_size: 256, targets: 64, tasks: 1024 }
    }
}

/// The configuration that the guest reads, and the features that its driver has accepted.
#[derive(Clone, Copy, Debug)]
pub struct ScsiHost {
    pub(super) config: ScsiConfig,
    pub(super) features: ScsiFeatures,
}

impl ScsiHost {
    pub(super) fn new(config: &Config) -> Self {
        let config = ScsiConfig {
            num_queues: u32::from(config.queues).into(),
            // A request also has a descriptor for its header and one for its response.
            seg_max: (u32::from(config.queue_size) - 2).into(),
            max_sectors: MAX_SECTORS.into(),
            cmd_per_lun: config.tasks.max(1).into(),
            event_info_size: (size_of::<EventInfo>() as u32).into(),
            sense_size: VIRTIO_SCSI_SENSE_DEFAULT_SIZE.into(),
            cdb_size: VIRTIO_SCSI_CDB_DEFAULT_SIZE.into(),
            max_channel: 0.into(),
            max_target: (config.targets - 1).into(),
            max_lun: MAX_LUN.into(),
        };
        Self { config, features: ScsiFeatures::empty() }
    }
}
