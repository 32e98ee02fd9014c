//! Driver of BusLogic's MultiMaster adapters. It behaves as Linux's does where a device can see it: the probe's commands and their order,
//! mailboxes in turn, one doorbell a request, the interrupt acknowledged before the incoming mailboxes are read. It reaches the registers
//! in memory, where Linux uses I/O ports.
//! - `adapter`: the driver of one adapter, and what it owns,
//! - `command`: the exchange of a command over the registers, and resets,
//! - `bringup`: the probe, and the bring-up after a reset,
//! - `facts`: what the adapter says of itself,
//! - `io`: CCBs in, incoming mailboxes out.

mod adapter;
mod bringup;
mod command;
mod facts;
mod io;
pub mod spec;

pub use adapter::{BusLogic, MAX_TRANSFER, Options};
pub use bringup::Step;
pub use facts::Facts;
