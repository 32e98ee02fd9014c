//! VHD, the Virtual Hard Disk image format (Microsoft, version 1.0, 2006): fixed, dynamic and differencing disks.
//!
//! A fixed disk is a run of a file. The others keep their data in blocks that a table finds; a differencing disk asks its
//! parent for the sectors that it has not got. A chain of them is read through one flat map.

mod alloc;
mod chain;
mod check;
mod create;
mod field;
mod fixed;
mod footer;
mod geometry;
mod layer;
mod layout;
mod locator;
mod sparse;
pub mod spec;

pub use check::{CheckReport, Finding, Severity};
pub use chain::{MAX_DEPTH, ParentRules, open};
pub use create::{create_differencing, create_dynamic, create_fixed};
pub use fixed::FixedVhd;
pub use footer::Subformat;
pub(crate) use footer::has_footer;
pub use geometry::Geometry;
pub use sparse::SparseVhd;
