//! The disks and devices of this project for programs that nobody here wrote, each by a protocol that they know.
//!
//! - [`nbd`]: a disk as a network block device,
//! - [`vhost_user_blk`]: a disk as the back-end of another VMM's virtio block device,
//! - [`vfio_user`]: an adapter with its disks as another VMM's PCI function.

pub mod nbd;
mod sigbus;
mod socket;
pub mod vfio_user;
pub mod vhost_user_blk;

pub use socket::Socket;
