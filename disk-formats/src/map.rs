//! The map of a disk: it resolves virtual ranges to ranges of files.
//!
//! ```text
//! Format::map_* --> block_map (lock-free look-up) --known----> extents
//!                       ^                        `-unknown--> chain_map: resolve from the images
//!                       `-----------------------------------------'                (on a thread that may block)
//! ```
//!
//! [`format::Format`] is the contract of a format; [`format::map_now`] maps a range on a thread that may block. [`epochs`] decides when
//! space that was unmapped may be reused.

pub(crate) mod block_map;
pub(crate) mod chain_map;
pub(crate) mod epochs;
pub(crate) mod extent;
pub(crate) mod format;

// `epochs` takes its primitives from here; its model takes those of a checker.
use std::sync;

#[cfg(test)]
mod epochs_tests;
#[cfg(test)]
mod interleavings;
