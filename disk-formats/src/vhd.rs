//! VHD, the Virtual Hard Disk image format (Microsoft, version 1.0, 2006): fixed, dynamic and differencing disks.
//!
//! A fixed disk is a run of a file. The others keep their data in blocks that a table finds; a differencing disk asks its
//! parent for the sectors that it has not got. A chain of them is read through one flat map.

mod alloc;
mod chain;
mod check;
mod compact;
mod create;
mod edit;
mod fixed;
mod footer;
mod geometry;
#[cfg(test)]
mod hostile_tests;
mod inspect;
mod layer;
mod layout;
mod locator;
mod merge;
mod rebase;
mod resize;
#[cfg(test)]
mod siblings_tests;
mod sparse;
pub mod spec;
mod stamp;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tools_tests;

pub(crate) use chain::{Inside, open_inside, open_with};
pub use chain::{open, open_alone};
pub use check::check;
pub use compact::compact;
pub use create::{create_differencing, create_dynamic, create_fixed, create_fixed_watched};
pub use footer::Subformat;
pub use geometry::Geometry;
pub use inspect::{Description, inspect};
pub use merge::{children, merge};
pub use rebase::{rebase, rebase_keeping};
pub use resize::resize;
pub use sparse::SparseVhd;
