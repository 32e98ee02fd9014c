//! vfio-user: a whole PCI function for another VMM, over a Unix socket (vfio-user protocol specification 0.9.2, as in QEMU's
//! `docs/interop/vfio-user.rst`).
//!
//! Guest memory arrives as file descriptors, which the server maps. A region without a descriptor is no memory for the device.
//! The server signals interrupts by the client's eventfds, and offers its own eventfds for doorbells. Everything else is a message.
//! Not offered: migration, dirty pages, DMA by message, regions to be mapped.
//!
//! A client is untrusted: each message is checked where it is parsed, no message makes the server allocate more than the maximum
//! size of a message, and a client can harm no file but that of its own memory. The server serves one client at a time; others wait in
//! the listener's backlog. When a client disconnects, the server waits for its requests in flight, drops its memory and eventfds, and
//! resets the function.

mod channel;
mod function;
mod interrupts;
mod memory;
mod server;
mod session;
pub mod spec;

pub use channel::Ended;
pub use memory::ClientMemory;
pub use server::{Handle, Memory, Note, Report, Server};
