//! Loaders: what memory and registers hold when the first instruction runs.

mod linux;
mod long_mode;
mod page_tables;

pub use linux::{Linux, LinuxError, Loaded, NESTED_OPTIONS, Protocol, command_line};
pub use long_mode::{LongMode, LowPage};
pub use page_tables::TABLES;
