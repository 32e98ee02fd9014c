//! Disks: of any format, in memory, and null. Opening a disk, and the tools for an image file.

pub(crate) mod file_disk;
pub(crate) mod image;
pub(crate) mod memory;
