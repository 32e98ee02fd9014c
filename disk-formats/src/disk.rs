//! Disks: of any format, in memory, and null. Opening a disk, and the tools for an image file.

pub(crate) mod allocations;
pub(crate) mod file_disk;
pub(crate) mod image;
pub(crate) mod null;
pub(crate) mod open;
pub(crate) mod ram;
