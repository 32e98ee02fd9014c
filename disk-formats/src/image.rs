//! Tools for images of any format, built on [`Format`](crate::Format) alone: content, runs and their allocation status,
//! comparison, conversion, and the copies for merge and rebase.

pub(crate) mod findings;

mod buffer;
mod chain;
mod chunks;
mod compare;
mod content;
mod convert;
mod error;
mod map;
mod offload;
mod output;
mod overlay;
mod rebase_copy;
#[cfg(test)]
mod scattered;
mod zeros;

pub use chain::{MergeError, Merged, RebaseError, write_difference};
pub(crate) use chain::{commit_into_parent, images_beside, remove};
pub use chunks::{Control, default_workers};
pub use compare::{Comparison, compare};
pub use content::Content;
pub use convert::{Converted, convert};
pub use error::ImageError;
pub(crate) use map::zeros_until;
pub use map::{Run, Runs};
pub use output::Output;
pub(crate) use output::sync_folder_of;
pub use overlay::Overlaid;
#[cfg(test)]
pub(crate) use overlay::Overlay;
pub(crate) use rebase_copy::RebaseCopy;
