//! The map of a disk: from a virtual range to pieces of files.
//!
//! ```text
//! Format::map_* --> block_map (lock-free look-up) --known----> extents
//!                       ^                        `-unknown--> chain_map: resolve from the images
//!                       `-----------------------------------------'                (on a thread that may block)
//! ```
//!
//! [`epochs`] decides when space that has left the map may be reused.

pub(crate) mod block_map;
pub(crate) mod chain_map;
pub(crate) mod epochs;
pub(crate) mod extent;
pub(crate) mod map_now;
