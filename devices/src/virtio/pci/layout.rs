//! Offsets of the structures in the BAR.

/// The only BAR.
pub(super) const BAR: u8 = 0;
pub(super) const BAR_SIZE: u64 = 0x8000;
pub(super) const ISR: u64 = 0x1000;
pub(super) const DEVICE_CFG: u64 = 0x2000;
pub(super) const DEVICE_CFG_SIZE: u64 = 0x1000;
pub(super) const NOTIFY: u64 = 0x3000;
pub(super) const NOTIFY_SIZE: u64 = 0x1000;
/// Bytes from one queue's doorbell to the next.
pub(super) const NOTIFY_MULTIPLIER: u64 = 4;
pub(super) const MSIX_TABLE: u32 = 0x4000;
pub(super) const MSIX_PBA: u32 = 0x5000;
