//! vfio-user: a whole PCI function for another VMM, over a Unix socket (vfio-user protocol specification 0.9.2, as in QEMU's
//! `docs/interop/vfio-user.rst`).
//!
//! The client passes guest memory as file descriptors, and the server maps them. The device cannot access a region without a
//! descriptor. Interrupts signal the client's eventfds. Doorbells are ioeventfds if the client requests them. All other accesses
//! are messages. Not offered: migration, dirty pages, DMA by message, regions to be mapped.
//!
//! Clients are untrusted. Each message is checked where it is parsed. No message makes the server allocate more than the size of
//! the largest message. A client can damage no file but its own memory. One client is served at a time; others wait in the
//! listener's queue. When a client disconnects, the server waits for its requests, drops its memory and eventfds, and resets the
//! function.

mod channel;
mod function;
mod interrupts;
mod memory;
mod server;
mod session;
pub mod spec;

pub use channel::Ended;
pub use memory::ClientMemory;
pub use server::{Handle, Memory, Note, Report, Reporter, Server};
