//! Loaders: they set memory and registers for the first instruction.

mod linux;
mod long_mode;
mod page_tables;

pub use linux::{Linux, LinuxError, Loaded, NESTED_OPTIONS, Protocol, command_line};
pub use long_mode::{LongMode, LowPage};
pub use page_tables::TABLES;
