//! The disks and devices of this project for programs that nobody here wrote, each by a protocol that they know.
//!
//! - [`nbd`]: disks for clients of the Network Block Device protocol.

pub mod nbd;
mod socket;

pub use socket::Socket;
