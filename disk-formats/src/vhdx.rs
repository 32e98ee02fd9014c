//! VHDX, the Virtual Hard Disk v2 image format (\[MS-VHDX\]): fixed, dynamic and differencing disks.
//!
//! Data are in blocks that a table finds. Every change of the metadata goes through a log, so that a power failure leaves the
//! old or the new; a differencing disk asks its parent for the sectors that it has not got. A chain of them is read through one
//! flat map.

mod alloc;
mod bat;
mod chain;
#[cfg(test)]
mod crash_tests;
mod create;
mod disk;
mod header;
#[cfg(test)]
mod hostile_tests;
mod journal;
mod layer;
mod layout;
mod locator;
mod log;
mod metadata;
mod overlay;
mod region;
mod sectors;
mod space;
pub mod spec;
#[cfg(test)]
mod testing;

pub use chain::{open, open_alone};
pub use create::{CreateOptions, create_differencing, create_dynamic, create_fixed};
pub use disk::VhdxDisk;
pub(crate) use header::has_identifier;
