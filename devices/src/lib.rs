//! Virtual storage adapters and the SCSI target behind them.
//!
//! A device is a state machine over bus accesses and queue events ([`PciDevice`]); it owns no thread, opens no file
//! and knows no hypervisor. Time comes in as an argument ([`Time`]), interrupts go out through a trait
//! ([`InterruptSink`]), guest memory is a `vm_memory::GuestAddressSpace`, and disks are `disk_formats::Disk`s. So the
//! same device runs under KVM, behind vfio-user, in a test harness and under a fuzzer.

mod adapter;
mod device;
pub mod dma;
mod in_flight;
mod interrupt;
pub mod lsi;
pub mod moderation;
mod patience;
pub mod pci;
pub mod pvscsi;
pub mod scsi;
#[cfg(test)]
mod testing;
pub mod virtio;

pub use adapter::{AdapterConfig, AdapterKind, Attachment, HotPlug, build};
pub use device::{
    Bar, BarKind, Doorbell, FastRegisters, FastWrite, PciDevice, PostedRegisters, Sleep, Stats, Time,
};
pub use interrupt::{InterruptSink, MsiMessage};
pub use moderation::{Coalescing, Policy};
