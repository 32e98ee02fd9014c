//! Constants of VIRTIO 1.2: device status (2.1), features (5.2.3, 5.6.3, 6), split rings (2.7), PCI (4.1), block device (5.2),
//! SCSI host (5.6).

/// PCI vendor ID.
pub const VENDOR: u16 = 0x1af4;
/// PCI device ID of device type 0; the type is added.
pub const DEVICE_BASE: u16 = 0x1040;
/// Device type: block device.
pub const TYPE_BLOCK: u16 = 2;

/// PCI capability ID of the structures.
pub const CAP_VENDOR: u8 = 0x09;
/// Structure type: common configuration.
pub const CAP_COMMON: u8 = 1;
/// Structure type: notifications.
pub const CAP_NOTIFY: u8 = 2;
/// Structure type: ISR status.
pub const CAP_ISR: u8 = 3;
/// Structure type: device-specific configuration.
pub const CAP_DEVICE: u8 = 4;

/// Device status: the guest has noticed the device.
pub const STATUS_ACKNOWLEDGE: u8 = 1;
/// Device status: it has a driver for it.
pub const STATUS_DRIVER: u8 = 2;
/// Device status: the driver is ready.
pub const STATUS_DRIVER_OK: u8 = 4;
/// Device status: features are negotiated.
pub const STATUS_FEATURES_OK: u8 = 8;
/// Device status: the device cannot go on.
pub const STATUS_NEEDS_RESET: u8 = 0x40;

/// Feature: indirect descriptors.
pub const F_INDIRECT_DESC: u64 = 1 << 28;
/// Feature: event index.
pub const F_EVENT_IDX: u64 = 1 << 29;
/// Feature: not a legacy device.
pub const F_VERSION_1: u64 = 1 << 32;
/// Feature: queues can be reset one by one.
pub const F_RING_RESET: u64 = 1 << 40;

/// Common configuration: which half of the device's features is read.
pub const DEVICE_FEATURE_SELECT: u64 = 0x00;
/// Common configuration: features offered.
pub const DEVICE_FEATURE: u64 = 0x04;
/// Common configuration: which half of the driver's features is written.
pub const DRIVER_FEATURE_SELECT: u64 = 0x08;
/// Common configuration: features accepted.
pub const DRIVER_FEATURE: u64 = 0x0c;
/// Common configuration, 2 bytes: vector of configuration changes.
pub const CONFIG_VECTOR: u64 = 0x10;
/// Common configuration, 2 bytes: number of queues.
pub const NUM_QUEUES: u64 = 0x12;
/// Common configuration, 1 byte: device status.
pub const DEVICE_STATUS: u64 = 0x14;
/// Common configuration, 1 byte: changes with the device-specific configuration.
pub const CONFIG_GENERATION: u64 = 0x15;
/// Common configuration, 2 bytes: queue that the registers behind are about.
pub const QUEUE_SELECT: u64 = 0x16;
/// Common configuration, 2 bytes: entries, 0 where there is no such queue.
pub const QUEUE_SIZE: u64 = 0x18;
/// Common configuration, 2 bytes: vector.
pub const QUEUE_VECTOR: u64 = 0x1a;
/// Common configuration, 2 bytes: 1 takes the queue into use.
pub const QUEUE_ENABLE: u64 = 0x1c;
/// Common configuration, 2 bytes: number of the doorbell.
pub const QUEUE_NOTIFY_OFF: u64 = 0x1e;
/// Common configuration, 8 bytes: address of the descriptor table.
pub const QUEUE_DESC: u64 = 0x20;
/// Common configuration, 8 bytes: address of the available ring.
pub const QUEUE_DRIVER: u64 = 0x28;
/// Common configuration, 8 bytes: address of the used ring.
pub const QUEUE_DEVICE: u64 = 0x30;
/// Common configuration, 2 bytes: 1 resets the queue.
pub const QUEUE_RESET: u64 = 0x3a;
/// No vector.
pub const NO_VECTOR: u16 = 0xffff;

/// Bytes of a descriptor: address (8), length (4), flags (2), next (2).
pub const DESC_SIZE: usize = 16;
/// Descriptor flag: there is a next one.
pub const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes.
pub const DESC_WRITE: u16 = 2;
/// Descriptor flag: memory is a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;
/// Available ring: flags.
pub const AVAIL_FLAGS: usize = 0;
/// Available ring: index of the next entry to be written.
pub const AVAIL_INDEX: usize = 2;
/// Available ring: entries, 2 bytes each; behind them the index of which the device is to tell.
pub const AVAIL_RING: usize = 4;
/// Flag of the available ring: no interrupts are wanted.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// Used ring: flags.
pub const USED_FLAGS: usize = 0;
/// Used ring: index of the next entry to be written.
pub const USED_INDEX: usize = 2;
/// Used ring: entries, 8 bytes each (head, bytes written); behind them the index of which the driver is to tell.
pub const USED_RING: usize = 4;
/// Flag of the used ring: no notifications are wanted.
pub const USED_NO_NOTIFY: u16 = 1;

/// Block device feature: segments of a request are bounded.
pub const BLK_F_SEG_MAX: u64 = 1 << 2;
/// Block device feature: read-only.
pub const BLK_F_RO: u64 = 1 << 5;
/// Block device feature: sector size.
pub const BLK_F_BLK_SIZE: u64 = 1 << 6;
/// Block device feature: flushes.
pub const BLK_F_FLUSH: u64 = 1 << 9;
/// Block device feature: several queues.
pub const BLK_F_MQ: u64 = 1 << 12;
/// Block device feature: discards.
pub const BLK_F_DISCARD: u64 = 1 << 13;
/// Block device feature: writes of zeros.
pub const BLK_F_WRITE_ZEROES: u64 = 1 << 14;

/// Block device configuration, 8 bytes: sectors of 512 bytes.
pub const BLK_CAPACITY: u64 = 0x00;
/// Block device configuration, 4 bytes: segments of a request at the most.
pub const BLK_SEG_MAX: u64 = 0x0c;
/// Block device configuration, 4 bytes: sector size.
pub const BLK_BLK_SIZE: u64 = 0x14;
/// Block device configuration, 2 bytes: queues.
pub const BLK_NUM_QUEUES: u64 = 0x22;

/// Request type: read.
pub const BLK_T_IN: u32 = 0;
/// Request type: write.
pub const BLK_T_OUT: u32 = 1;
/// Request type: flush.
pub const BLK_T_FLUSH: u32 = 4;
/// Request type: serial number.
pub const BLK_T_GET_ID: u32 = 8;
/// Request type: discard.
pub const BLK_T_DISCARD: u32 = 11;
/// Request type: write zeros.
pub const BLK_T_WRITE_ZEROES: u32 = 13;
/// Bytes of a request's header: type (4), reserved (4), sector (8).
pub const BLK_HEADER: usize = 16;
/// Bytes of a serial number.
pub const BLK_ID_BYTES: u32 = 20;

/// Device type: SCSI host.
pub const TYPE_SCSI_HOST: u16 = 8;
/// SCSI host feature: events about units that come and go.
pub const SCSI_F_HOTPLUG: u64 = 1 << 1;
/// SCSI host feature: events about parameters that change.
pub const SCSI_F_CHANGE: u64 = 1 << 2;
/// The SCSI host's control queue.
pub const SCSI_CONTROL_QUEUE: u16 = 0;
/// The SCSI host's event queue.
pub const SCSI_EVENT_QUEUE: u16 = 1;
/// The SCSI host's first queue for requests.
pub const SCSI_REQUEST_QUEUES: u16 = 2;
/// SCSI host configuration, 4 bytes: queues for requests.
pub const SCSI_NUM_QUEUES: u64 = 0x00;
/// Bytes of a request's header: logical unit (8), tag (8), attribute, priority, reference number, CDB (32).
pub const SCSI_HEADER: usize = 51;
/// Bytes of an answer before its sense data: length of those (4), residual (4), qualifier (2), status, response.
pub const SCSI_RESPONSE: usize = 12;
/// Bytes of an answer's sense data.
pub const SCSI_SENSE_SIZE: usize = 96;
/// Request to the control queue: task management.
pub const SCSI_T_TMF: u32 = 0;
/// Bytes of task management: type (4), function (4), logical unit (8), tag (8).
pub const SCSI_TMF: usize = 24;
/// Task management function: ABORT TASK.
pub const SCSI_TMF_ABORT_TASK: u32 = 0;
/// Task management function: ABORT TASK SET.
pub const SCSI_TMF_ABORT_TASK_SET: u32 = 1;
/// Task management function: I_T NEXUS RESET.
pub const SCSI_TMF_NEXUS_RESET: u32 = 4;
/// Task management function: LOGICAL UNIT RESET.
pub const SCSI_TMF_UNIT_RESET: u32 = 5;
/// Response: aborted.
pub const SCSI_S_ABORTED: u32 = 2;
/// Response: there is no such target.
pub const SCSI_S_BAD_TARGET: u32 = 3;
/// Response: reset.
pub const SCSI_S_RESET: u32 = 4;
/// Bytes of an event: type (4), logical unit (8), reason (4).
pub const SCSI_EVENT_SIZE: usize = 16;
/// Event: events were lost.
pub const SCSI_T_EVENTS_MISSED: u32 = 1 << 31;
/// Event: a unit came or went.
pub const SCSI_T_TRANSPORT_RESET: u32 = 1;
/// Reason: it came.
pub const SCSI_EVT_RESCAN: u32 = 1;
/// Reason: it went.
pub const SCSI_EVT_REMOVED: u32 = 2;
