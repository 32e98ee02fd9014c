//! VHD, the Virtual Hard Disk image format: fixed, dynamic and differencing disks (Virtual Hard Disk Image Format
//! Specification, Microsoft, version 1.0, 2006).
//!
//! A fixed disk is one range of its file. Dynamic and differencing disks have blocks, which the block allocation table
//! (BAT) locates. Sectors that a differencing disk does not have are read from its parent. A chain of any length is
//! read through one block map.
//!
//! ```text
//! footer copy | dynamic header | BAT | block: bitmap, data | block ... | footer
//!                                       ^-- a BAT entry is the sector number of a block's bitmap
//! ```
//!
//! The format has no log: metadata are written in an order in which each prefix is a valid image (`blocks.rs` for an
//! open disk, `edit.rs` for tools).

mod alloc;
mod bat;
mod batmap;
mod blocks;
mod chain;
mod check;
mod compact;
mod create;
mod edit;
mod extend;
mod fixed;
mod footer;
mod geometry;
#[cfg(test)]
mod hostile_tests;
mod layer;
mod layout;
mod locator;
mod merge;
mod resize;
#[cfg(test)]
mod siblings_tests;
pub mod spec;
mod stamp;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tools_tests;

pub(crate) use chain::{Image, NestedVhd, open_inside, open_with};
pub use chain::{open, open_alone};
pub(crate) use check::check;
pub(crate) use compact::compact;
pub use create::{
    create_differencing, create_dynamic, create_fixed, create_fixed_sparse, create_fixed_watched,
};
pub use footer::Subformat;
pub(crate) use footer::is_inside;
pub use geometry::Geometry;
pub(crate) use resize::{check_resize, resize};
