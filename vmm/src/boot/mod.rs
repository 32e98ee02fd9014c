//! Loaders: what memory and registers hold when the first instruction runs.

mod long_mode;

pub use long_mode::{LongMode, LowPage, TABLES};
