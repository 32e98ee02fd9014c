//! Operations on whole disks, of any format: where their data are, whether two are equal, copies in another format.

mod compare;
mod content;
mod convert;
mod map;
mod output;

pub use compare::{Comparison, compare};
pub use content::Content;
pub use convert::{ConvertError, Converted, convert};
pub use map::{Run, runs};
pub use output::Output;
