//! The disk under test, and how to create it.

use std::any::Any;
use std::sync::Arc;

use crate::contract::disk::Disk;
use crate::contract::queue::EngineKind;

/// Reads bytes of the disk from the medium, bypassing the disk: by a second open of the file, for example.
pub type Peek = Box<dyn Fn(u64, &mut [u8])>;

/// A disk created for one check.
pub struct Fresh {
    /// The disk: at least 8 MiB, reading as zeros, writable.
    pub disk: Arc<dyn Disk>,
    /// Access to the medium, which sees what was flushed, if there is such access.
    pub peek: Option<Peek>,
    /// Resources that must live as long as the disk (a temporary file, a loop device). Dropped after it.
    pub hold: Box<dyn Any>,
}

/// The disk under test, and the expectations.
pub struct Suite<'a> {
    /// Name for messages.
    pub name: &'a str,
    /// Creates a fresh disk.
    pub make: &'a dyn Fn() -> Fresh,
    /// Creates a read-only disk with any content.
    pub make_read_only: Option<&'a dyn Fn() -> Fresh>,
    /// The engines to test, and the name that a queue must report for each.
    pub engines: &'a [(EngineKind, &'a str)],
    /// Written data can be read back (true except for the null disk).
    pub keeps_data: bool,
}
