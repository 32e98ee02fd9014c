//! Virtio devices over PCI (VIRTIO 1.2), without the legacy interface and with split rings only.
//!
//! - `spec`: the transport's constants,
//! - `pci`: the transport: capabilities, common configuration, device status, doorbells, interrupts,
//! - `queue`: a virtqueue with what the guest said about notifications and interrupts,
//! - `suppression`: interrupt suppression, the arithmetic of the event index,
//! - `signals`: when an interrupt goes out,
//! - `depth`: how many requests the guest keeps outstanding,
//! - `descriptors`: the descriptors of a chain,
//! - `chain`: a descriptor chain as two runs of bytes,
//! - [`Device`]: what all kinds of device share,
//! - [`blk`]: the block device,
//! - [`scsi`]: the SCSI host device.
//!
//! # When an interrupt goes out
//! A completion is posted to the used ring at once. Two parties may hold its signal back: the guest, which says by the
//! event index (or by a flag) which completion it wants a signal for, and the device's moderation. Together they follow
//! these rules, for each vector:
//! 1. While the guest wants no signal for any posted completion, none is sent and none is held back: a driver that asks for signals
//!    later reads the ring once more, as the specification requires.
//! 2. A signal that moderation would have sent but that the guest did not want is not used up: the first completion
//!    that the guest wants signals at once.
//! 3. A guest that asks for a completion further on than the next has moderated by itself. When that completion is
//!    posted, the signal goes out with its batch, whatever moderation says.
//! 4. A guest that asks for the next completion is signalled as moderation says: at once with few requests in flight,
//!    for a share of the completions with many, and never later than the backstop.

pub mod blk;
mod chain;
mod depth;
mod descriptors;
mod device;
mod pci;
mod queue;
pub mod scsi;
mod signals;
pub mod spec;
mod suppression;
#[cfg(test)]
mod testing;

pub use device::Device;
