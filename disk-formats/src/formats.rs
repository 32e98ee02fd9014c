//! Disk formats: where the bytes of a disk are, and the metadata that say so.
//!
//! [`format::Format`] is the contract between a format and the queue. [`flat`] has the formats without metadata (raw,
//! pass-through). `vhd` and `vhdx` have on-disk structures, allocator, journal and tools of their format. [`sparse`] is an open
//! disk whose images have blocks. [`nested`]
//! opens an image that is the content of another disk.

#[cfg(any(feature = "vhd", feature = "vhdx"))]
pub(crate) mod chain;
pub(crate) mod field;
pub(crate) mod file_info;
pub(crate) mod flat;
pub(crate) mod format;
#[cfg(any(feature = "vhd", feature = "vhdx"))]
pub(crate) mod guid;
#[cfg(any(feature = "vhd", feature = "vhdx"))]
pub(crate) mod merge;
pub(crate) mod name;
pub(crate) mod nested;
pub(crate) mod open;
pub(crate) mod parents;
#[cfg(any(feature = "vhd", feature = "vhdx"))]
pub(crate) mod rebase;
#[cfg(all(test, feature = "vhd", feature = "vhdx"))]
pub(crate) mod siblings;
pub(crate) mod signature;
#[cfg(any(feature = "vhd", feature = "vhdx"))]
pub(crate) mod sparse;
#[cfg(feature = "vhd")]
pub mod vhd;
#[cfg(feature = "vhdx")]
pub mod vhdx;
