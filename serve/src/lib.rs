//! The disks and devices of this project for programs that nobody here wrote, each by a protocol that they know.
//!
//! - [`nbd`]: a disk as a network block device,
//! - [`vfio_user`]: an adapter with its disks as a PCI function of another VMM,
//! - [`vhost_user_blk`]: a disk as the back-end of another VMM's virtio block device.

pub mod nbd;
pub mod vfio_user;
pub mod vhost_user_blk;
