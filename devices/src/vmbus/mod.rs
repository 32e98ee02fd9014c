//! Hyper-V's VMBus, the bus of its synthetic devices: what the bus needs of a virtual machine, and what it is to one.
//!
//! The guest sends messages by a hypercall and signals channels by another. The bus answers by messages and event flags, which the
//! synthetic interrupt controller (`SynIC`) of a virtual processor delivers. Sources: Hypervisor Top-Level Functional Specification
//! 6.0, chapters 10 and 11, as Linux's `drivers/hv` uses it.

mod synic;

pub use synic::{HypercallStatus, Posted, Synic, VmbusDevice};
