//! Operations on whole images, through the contract of a format alone: what is stored where, whether two have the same
//! content, and copies from one format into another.

mod buffer;
mod chain;
mod chunks;
mod compare;
mod content;
mod convert;
mod error;
mod keep;
mod map;
mod offload;
mod output;
mod overlay;
#[cfg(test)]
mod scattered;
mod zeros;

pub use chain::{MergeError, Merged, RebaseError, write_difference};
pub(crate) use chain::{images_beside, remove, take_in};
pub use chunks::{Control, default_workers};
pub use compare::{Comparison, compare};
pub use content::Content;
pub use convert::{Converted, convert};
pub use error::ImageError;
pub(crate) use keep::Keeper;
pub(crate) use map::zeros_until;
pub use map::{Run, Runs};
pub use output::Output;
pub(crate) use output::sync_folder_of;
pub use overlay::Overlaid;
#[cfg(test)]
pub(crate) use overlay::Overlay;
