//! vfio-user: a whole PCI function for another VMM, over a Unix socket (vfio-user protocol specification 0.9.2, as in QEMU's
//! `docs/interop/vfio-user.rst`).
//!
//! Guest memory arrives as file descriptors and is mapped here; what the client describes without one is no memory to the
//! device. Interrupts leave by the client's eventfds, doorbells come by ours where the client asks for them, everything else is
//! a message. Not offered: migration, dirty pages, DMA by message, regions to be mapped.
//!
//! A client is hostile: each message is checked where it is parsed, nothing that it sends makes the server allocate more than a
//! message's worth, and it can harm no file but its own memory. One client at a time: others wait in the listener's queue.
//! When a client leaves, its requests are waited for, its memory and eventfds go, and the function is reset.

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
