//! The disks and devices of this project for programs that nobody here wrote, each by a protocol that they know.
//!
//! - [`vhost_user_blk`]: a disk as the back-end of another VMM's virtio block device.

pub mod vhost_user_blk;
