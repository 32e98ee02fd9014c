//! VHDX, the Virtual Hard Disk v2 image format: fixed, dynamic and differencing disks (\[MS-VHDX\]).
//!
//! Data are in payload blocks, which the block allocation table (BAT) locates. Every change of metadata, except for the
//! headers, goes through a log, so that a power failure leaves either the old or the new metadata. Sectors that a
//! differencing disk does not have are read from its parent. A chain of any length is read through one block map.
//!
//! ```text
//! identifier, 2 headers, 2 region tables | log | metadata region | BAT | payload and bitmap blocks, in MiB
//!             |                  |          ^            ^          ^
//!             `- log ------------|----------'            |          |
//!                                `- regions -------------+----------'
//!
//! write:  allocate in memory -> payload to the file
//! flush:  fdatasync -> log entry (bitmap and BAT sectors) -> fdatasync -> the same sectors in place; repeated if there are many
//! ```

mod alloc;
mod blocks;
mod chain;
mod check;
mod compact;
#[cfg(test)]
mod crash_tests;
mod create;
mod edit;
mod header;
#[cfg(test)]
mod hostile_tests;
mod journal;
mod layer;
mod layout;
mod locator;
mod log;
mod merge;
mod metadata;
mod opened;
mod overlay;
mod region;
#[cfg(test)]
mod replay_tests;
mod resize;
#[cfg(test)]
mod resize_tests;
mod scan;
#[cfg(test)]
mod siblings_tests;
mod space;
pub mod spec;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tools_tests;

pub(crate) use chain::{Image, open_inside, open_with};
pub use chain::{open, open_alone};
pub(crate) use check::check;
pub(crate) use compact::compact;
pub use create::{CreateOptions, create_differencing, create_dynamic, create_fixed, create_fixed_watched};
pub(crate) use resize::{check_resize, resize};
