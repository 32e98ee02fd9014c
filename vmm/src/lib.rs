//! The KVM machine: guest memory, virtual CPUs, a PCI root, an optional Hyper-V VMBus, interrupt routing, and one I/O thread for each
//! device.
//!
//! ```text
//! vCPU thread --config, BAR access--> PciRoot --lock, or mailbox--> I/O thread: PciDevice
//!      ^       --doorbell--> KVM --ioeventfd----------------------> |
//!      +----------------- interrupt (irqfd or KVM_SIGNAL_MSI) ------+
//! ```
//!
//! A [`Machine`] is made from a [`Config`]. Its user adds devices and bus handlers, starts it with the registers that a
//! loader in [`boot`] sets, and stops or drops it. A virtual CPU or a device that ends without being stopped is
//! reported as an [`Event`], with its registers if it has any.

// The program has its own way to print, which neither fails nor waits.
#![cfg_attr(not(test), deny(clippy::print_stderr))]
#![cfg_attr(
    test,
    allow(clippy::duplicate_mod, reason = "a checker runs the source with primitives of its own")
)]

mod acpi;
pub mod boot;
mod bus;
mod capabilities;
mod console;
mod cpu_time;
mod cpuid;
mod doorbells;
mod emulate;
mod error;
mod halted;
mod hyperv;
#[cfg(test)]
mod interleavings;
mod interrupts;
mod io_thread;
mod kvm_stats;
pub mod layout;
mod machine;
mod mailbox;
mod memory;
mod mp_table;
mod pci_root;
mod power;
mod rtc;
mod thread_time;
mod vcpu;

// `mailbox` takes its primitives from here; its model takes those of a checker.
use std::{sync, thread};
use vmm_sys_util::eventfd;

pub use bus::{BusHandler, Flow};
pub use capabilities::{Host, KVM_PATH, Virtualization};
pub use console::Console;
pub use cpu_time::{CpuClocks, CpuSplit};
pub use error::Error;
pub use interrupts::MsiDelivery;
pub use io_thread::{Counters, Options as IoThreadOptions};
pub use machine::{Built, Config, DeviceId, Event, EventSink, Machine};
pub use mailbox::{DeviceGone, Mailbox};
pub use memory::GuestMemory;
pub use pci_root::PciRoot;
pub use thread_time::{ThreadClock, ThreadTime};
pub use vcpu::{Exits, StopReason, VcpuError};
