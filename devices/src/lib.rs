// The program has its own way to print, which neither fails nor waits.
#![cfg_attr(not(test), deny(clippy::print_stderr))]
#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(all(
        feature = "buslogic",
        feature = "event-loop",
        feature = "ide",
        feature = "lsi",
        feature = "pvscsi",
        feature = "virtio",
        feature = "vmbus"
    )),
    allow(
        dead_code,
        unreachable_code,
        unreachable_pub,
        unused_imports,
        unused_macros,
        unused_variables,
        reason = "serves what is left out"
    )
)]
#![cfg_attr(
    test,
    allow(clippy::duplicate_mod, reason = "a checker runs the source with primitives of its own")
)]

mod adapter;
#[cfg(any(feature = "buslogic", feature = "lsi", feature = "pvscsi", feature = "virtio", feature = "vmbus"))]
mod backlog;
#[cfg(feature = "buslogic")]
pub mod buslogic;
mod device;
mod dma;
#[cfg(feature = "event-loop")]
pub mod event_loop;
mod fault;
#[cfg(any(feature = "buslogic", feature = "lsi", feature = "pvscsi", feature = "vmbus"))]
mod hba;
#[cfg(feature = "ide")]
pub mod ide;
mod identity;
#[cfg(any(feature = "buslogic", feature = "lsi", feature = "pvscsi", feature = "virtio", feature = "vmbus"))]
mod in_flight;
mod interrupt;
#[cfg(any(feature = "pvscsi", feature = "virtio", feature = "vmbus"))]
mod kick_suppression;
mod kind;
#[cfg(feature = "lsi")]
pub mod lsi;
mod moderation;
pub mod pci;
#[cfg(feature = "pvscsi")]
pub mod pvscsi;
#[cfg(any(feature = "buslogic", feature = "lsi", feature = "pvscsi", feature = "vmbus"))]
mod retry;
mod scratch;
pub mod scsi;
#[cfg(test)]
mod testing;
mod time;
#[cfg(feature = "virtio")]
pub mod virtio;
#[cfg(feature = "vmbus")]
pub mod vmbus;
#[cfg(feature = "event-loop")]
pub mod worker;

#[cfg(feature = "vmbus")]
pub use adapter::build_vmbus;
pub use adapter::{AdapterConfig, Attachment, BuildError, build};
pub use device::{AccessKind, Bar, BarKind, Doorbell, HotPlug, IoDevice, PciDevice, Sleep, Stats};
pub use fault::{DiskFault, on_disk_fault};
pub use identity::{Nameless, serial_numbers};
pub use interrupt::{InterruptSink, MsiMessage};
pub use kind::{AdapterKind, BusKind};
pub use moderation::{Coalescing, ModerationState, Policy};
pub use time::Time;
