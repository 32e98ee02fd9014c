//! Constants of the transport (VIRTIO 1.2: 2.1 device status, 2.7 split virtqueues, 4.1 PCI, 6 reserved features).

use bitflags::bitflags;

/// PCI vendor ID of virtio devices (4.1.2).
pub const PCI_VENDOR_ID_VIRTIO: u16 = 0x1af4;
/// PCI device ID of device type 0; the type is added (4.1.2).
pub const PCI_DEVICE_ID_BASE: u16 = 0x1040;
/// PCI subsystem device ID; at least 0x40 for a device without the legacy interface (4.1.2.1).
pub const PCI_SUBSYSTEM_ID: u16 = 0x1100;

/// Device type of the block device (5.2.1).
pub const DEVICE_TYPE_BLOCK: u16 = 2;
/// Device type of the SCSI host device (5.6.1).
pub const DEVICE_TYPE_SCSI_HOST: u16 = 8;

bitflags! {
    /// Device status (2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DeviceStatus: u8 {
        /// The guest has noticed the device.
        const ACKNOWLEDGE = 1;
        /// The guest has a driver for the device.
        const DRIVER = 1 << 1;
        /// The driver is ready.
        const DRIVER_OK = 1 << 2;
        /// Features are negotiated.
        const FEATURES_OK = 1 << 3;
        /// The device is broken, and processes nothing until reset.
        const DEVICE_NEEDS_RESET = 1 << 6;
        /// The driver has failed and does not use the device.
        const FAILED = 1 << 7;
    }
}

bitflags! {
    /// Features of the transport and the rings (6).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Descriptors may refer to tables of descriptors.
        const RING_INDIRECT_DESC = 1 << 28;
        /// Either side says at which index it wants a notification.
        const RING_EVENT_IDX = 1 << 29;
        /// No legacy device.
        const VERSION_1 = 1 << 32;
        /// Single queues can be reset.
        const RING_RESET = 1 << 40;
    }
}

bitflags! {
    /// ISR status (4.1.4.5).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Isr: u8 {
        /// A queue has completions.
        const QUEUE = 1;
        /// Configuration or status has changed.
        const CONFIG = 1 << 1;
    }
}

/// No vector (4.1.5.1.2).
pub const VIRTIO_MSI_NO_VECTOR: u16 = 0xffff;

/// Type of a capability: common configuration (4.1.4).
pub const VIRTIO_PCI_CAP_COMMON_CFG: u8 = 1;
/// Notifications.
pub const VIRTIO_PCI_CAP_NOTIFY_CFG: u8 = 2;
/// ISR status.
pub const VIRTIO_PCI_CAP_ISR_CFG: u8 = 3;
/// Device-specific configuration.
pub const VIRTIO_PCI_CAP_DEVICE_CFG: u8 = 4;
/// Access through configuration space.
pub const VIRTIO_PCI_CAP_PCI_CFG: u8 = 5;

/// Bytes of a capability (`struct virtio_pci_cap`).
pub const VIRTIO_PCI_CAP_SIZE: usize = 16;
/// In a capability: BAR number.
pub const VIRTIO_PCI_CAP_BAR: u16 = 4;
/// In a capability: offset in the BAR.
pub const VIRTIO_PCI_CAP_OFFSET: u16 = 8;
/// In a capability: length in bytes.
pub const VIRTIO_PCI_CAP_LENGTH: u16 = 12;
/// In the capability of notifications: bytes from one queue's doorbell to the next.
pub const VIRTIO_PCI_NOTIFY_CAP_MULT: u16 = 16;
/// In the capability of access through configuration space: the data.
pub const VIRTIO_PCI_CFG_DATA: u16 = 16;

/// Common configuration (`struct virtio_pci_common_cfg`, 4.1.4.3): which 32 feature bits `DEVICE_FEATURE` reads.
pub const DEVICE_FEATURE_SELECT: u64 = 0;
/// Features offered.
pub const DEVICE_FEATURE: u64 = 4;
/// Which 32 feature bits `DRIVER_FEATURE` writes.
pub const DRIVER_FEATURE_SELECT: u64 = 8;
/// Features accepted.
pub const DRIVER_FEATURE: u64 = 12;
/// Vector of configuration changes.
pub const CONFIG_MSIX_VECTOR: u64 = 16;
/// Number of queues.
pub const NUM_QUEUES: u64 = 18;
/// Device status.
pub const DEVICE_STATUS: u64 = 20;
/// Changes with the device-specific configuration.
pub const CONFIG_GENERATION: u64 = 21;
/// The queue that the following registers belong to.
pub const QUEUE_SELECT: u64 = 22;
/// Entries; zero: there is no such queue.
pub const QUEUE_SIZE: u64 = 24;
/// Vector of the queue.
pub const QUEUE_MSIX_VECTOR: u64 = 26;
/// One: the queue is enabled.
pub const QUEUE_ENABLE: u64 = 28;
/// Number of the queue's doorbell.
pub const QUEUE_NOTIFY_OFF: u64 = 30;
/// Address of the descriptor table.
pub const QUEUE_DESC: u64 = 32;
/// Address of the available ring.
pub const QUEUE_DRIVER: u64 = 40;
/// Address of the used ring.
pub const QUEUE_DEVICE: u64 = 48;
/// Value that the driver writes to the doorbell (only with a feature that is not offered).
pub const QUEUE_NOTIFY_DATA: u64 = 56;
/// One: reset the queue.
pub const QUEUE_RESET: u64 = 58;
/// Bytes of the common configuration.
pub const COMMON_CFG_SIZE: u64 = 60;

/// In the flags of the available ring: no interrupt is wanted (2.7.6).
pub const VIRTQ_AVAIL_F_NO_INTERRUPT: u16 = 1;
/// Offset of the first entry in the available ring.
pub const VIRTQ_AVAIL_RING: u64 = 4;
/// Offset of the index in the available ring.
pub const VIRTQ_AVAIL_IDX: u64 = 2;
/// Offset of the first entry in the used ring.
pub const VIRTQ_USED_RING: u64 = 4;
/// Offset of the index in the used ring.
pub const VIRTQ_USED_IDX: u64 = 2;
