//! The disks and devices of this project for programs that nobody here wrote, each by a protocol that they know.

pub mod vfio_user;
