//! Virtio devices over PCI (VIRTIO 1.2), without the legacy interface and with split rings only.
//!
//! - `spec`: the transport's constants,
//! - `device`: a device as a PCI function, of any device type: its transport and its rings,
//! - `rings`: the queues that one thread serves; `ring_thread`: a thread that serves them,
//! - `pci`: the transport: capabilities, common configuration, device status, doorbells, interrupts,
//! - `queue`: a virtqueue and its notification and interrupt suppression,
//! - `suppression`: interrupt suppression, the arithmetic of the event index,
//! - `signals`: when an interrupt is sent,
//! - `depth`: how many requests the guest keeps outstanding,
//! - `descriptors`: the descriptors of a chain,
//! - `chain`: a descriptor chain as a list of readable and a list of writable segments,
//! - [`blk`]: the block device,
//! - [`scsi`]: the SCSI host device.
//!
//! # When an interrupt is sent
//! A completion is posted at the end of its batch at the latest. Its signal may be suppressed by the guest (the event index names the
//! completion that the guest wants a signal for; without it, a flag suppresses all signals) and delayed by the device's moderation. These
//! rules hold for each queue, also for queues that share a vector:
//! 1. While the guest wants no signal for any posted completion, none is sent and none is held back: a driver that asks for signals
//!    later reads the ring once more, as the specification requires.
//! 2. If moderation would have sent a signal that the guest did not want, the next completion that the guest wants a signal
//!    for is signalled at once.
//! 3. A guest whose event index is beyond the next completion moderates by itself. When the completion at that index is
//!    posted, the signal is sent at the end of its batch, whatever moderation says.
//! 4. A guest whose event index is the next completion is signalled as moderation says: at once with few requests in flight,
//!    for a share of the completions with many, and never later than moderation's deadline.

pub mod blk;
mod chain;
mod depth;
mod descriptors;
mod device;
mod pci;
mod queue;
mod ring_thread;
mod rings;
pub mod scsi;
mod signals;
pub mod spec;
mod suppression;
#[cfg(test)]
mod testing;

pub use self::device::VirtioDevice;
pub use self::ring_thread::RingThread;
pub use self::rings::Rings;
