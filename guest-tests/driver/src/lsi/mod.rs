//! Driver of LSI Logic's Fusion-MPT controllers. It behaves as Linux's does where a device can see it: bring-up over the
//! doorbell, one register write a request, the reply FIFO read until it is empty.
//! - `adapter`: the driver of one adapter, and what it owns,
//! - `doorbell`: the handshake, and resets,
//! - `bringup`: initialisation, negotiation,
//! - `message`, `exchange`: messages other than SCSI I/O: configuration pages, task management, events,
//! - `sas`: the disks behind a SAS controller,
//! - `io`: SCSI I/O.

mod adapter;
mod bringup;
mod doorbell;
mod exchange;
mod facts;
mod io;
mod message;
mod sas;
pub mod spec;
mod step;

pub use adapter::{Lsi, MAX_TRANSFER, Model, Options};
pub use facts::Facts;
pub use message::{Event, PageAddress, PageHeader, Reply, TaskManagement, action};
pub use step::Step;
