//! A conventional PCI function: configuration space, base address registers, capabilities and interrupts (PCI Local Bus
//! 3.0, chapter 6). All adapters but VMBus have one.

mod config;
mod function;
mod msix;
pub mod spec;

pub(crate) use config::Identity;
pub use config::LayoutError;
pub(crate) use function::{BusMaster, Function, InterruptMode};
