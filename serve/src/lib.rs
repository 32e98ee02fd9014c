//! The disks and devices of this project for programs that nobody here wrote, each by a protocol that they know.
//!
//! - [`nbd`]: a disk as a network block device,
//! - [`vhost_user_blk`]: a disk as the back-end of another VMM's virtio block device.

pub mod nbd;
pub mod vhost_user_blk;
