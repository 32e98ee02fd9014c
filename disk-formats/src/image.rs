//! Tools for images of any format, built on [`Format`](crate::Format) alone: content, runs and their allocation status,
//! comparison, conversion, and the copies for merge and rebase.

mod chunks;
mod compare;
mod convert;

pub use chunks::{Control, default_workers};
pub use compare::{Comparison, compare};
pub use convert::{Converted, convert};

pub use crate::formats::copy::content::Content;
pub use crate::formats::copy::content::ImageError;
pub use crate::formats::copy::overlay::Overlaid;
pub use crate::formats::copy::rebase_copy::write_difference;
pub use crate::formats::copy::runs::{Run, Runs};
pub use crate::formats::merge::RebaseError;
pub use crate::formats::merge::{MergeError, Merged};
pub use crate::formats::output::Output;
