//! Operations on whole images, through the contract of a format alone: what is stored where, whether two have the same
//! content, and copies from one format into another.

mod buffer;
mod chunks;
mod compare;
mod content;
mod convert;
mod error;
mod map;
mod offload;
mod output;
#[cfg(test)]
mod scattered;
mod zeros;

pub use chunks::{Control, default_workers};
pub use compare::{Comparison, compare};
pub use content::Content;
pub(crate) use content::map_for_read;
pub use convert::{Converted, convert};
pub use error::ImageError;
pub use map::{Run, Runs};
pub use output::Output;
pub(crate) use output::sync_folder_of;
