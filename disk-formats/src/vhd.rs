//! VHD, the Virtual Hard Disk image format (Microsoft, version 1.0, 2006). Fixed disks: raw data, then a footer.

mod create;
mod fixed;
mod geometry;
pub mod spec;

pub use create::create_fixed;
pub use fixed::FixedVhd;
pub(crate) use fixed::has_footer;
pub use geometry::Geometry;
