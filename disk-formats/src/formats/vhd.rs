//! VHD, the Virtual Hard Disk image format: fixed, dynamic and differencing disks (Virtual Hard Disk Image Format
//! Specification, Microsoft, version 1.0, 2006).
//!
//! A fixed disk is one run of its file. The others hold their data in blocks, which the block allocation table (BAT)
//! locates; sectors that a differencing disk does not hold are read from its parent. A chain is read through one block
//! map, whatever its length.
//!
//! ```text
//! footer copy | dynamic header | BAT | block: bitmap, data | block ... | footer
//!                                       ^-- a BAT entry is the sector number of a block's bitmap
//! ```
//!
//! The format has no log: metadata are written in an order in which each prefix is a valid image (see `blocks.rs` for
//! writes of an open disk, `edit.rs` for tools).

mod alloc;
mod blocks;
mod chain;
mod check;
mod compact;
mod create;
mod describe;
mod edit;
mod fixed;
mod footer;
mod geometry;
#[cfg(test)]
mod hostile_tests;
mod layer;
mod layout;
mod locator;
mod merge;
mod rebase;
mod resize;
#[cfg(test)]
mod siblings_tests;
pub mod spec;
mod stamp;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tools_tests;

pub(crate) use chain::{Image, Inside, open_inside, open_with};
pub use chain::{open, open_alone};
pub(crate) use check::check;
pub(crate) use compact::compact;
pub use create::{create_differencing, create_dynamic, create_fixed, create_fixed_watched};
pub use footer::Subformat;
pub use geometry::Geometry;
pub(crate) use resize::resize;
