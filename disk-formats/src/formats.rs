//! Disk formats: the mapping of a disk's ranges to ranges of files, and the metadata that define it.
//!
//! [`Format`](crate::Format) is the contract between a format and the queue. [`flat`] has the formats without metadata (raw,
//! pass-through). `vhd` and `vhdx` have their on-disk structures, allocators and orders of writes. The code that the
//! two share is generic over traits that each implements:
//!
//! | module | trait | what it does |
//! | --- | --- | --- |
//! | [`sparse`] | [`Blocks`](sparse::Blocks) | an open disk: resolves, allocates, zeroes and flushes blocks |
//! | [`chain`] | [`Member`](chain::Member) | opens the parents of an image, and finds its children |
//! | [`merge`] | [`ChainTools`](merge::ChainTools) | the tools on chains: merge, rebase |
//!
//! [`open`] opens a disk of any format. [`nested`] opens an image that is the content of another disk.

pub(crate) mod chain;
pub(crate) mod copy;
pub(crate) mod findings;
pub(crate) mod flat;
#[cfg(any(feature = "vhd", feature = "vhdx"))]
pub(crate) mod guid;
pub(crate) mod info;
pub(crate) mod merge;
pub(crate) mod name;
pub(crate) mod nested;
pub(crate) mod open;
pub(crate) mod output;
pub(crate) mod parents;
#[cfg(all(test, feature = "vhd", feature = "vhdx"))]
pub(crate) mod siblings;
pub(crate) mod signature;
pub(crate) mod sparse;
#[cfg(feature = "vhd")]
pub mod vhd;
#[cfg(feature = "vhdx")]
pub mod vhdx;
