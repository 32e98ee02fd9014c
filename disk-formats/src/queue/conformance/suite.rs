//! What is tested, and how disks for it are made.

use std::any::Any;
use std::sync::Arc;

use crate::disk::Disk;
use crate::queue::EngineKind;

/// Reads bytes of the disk from the medium by another way than the disk: a second open of the file.
pub type Peek = Box<dyn Fn(u64, &mut [u8])>;

/// A disk made for one check.
pub struct Fresh {
    /// The disk: at least 8 MiB, reading as zeros, writable.
    pub disk: Arc<dyn Disk>,
    /// A look at the medium, where there is one that sees what has been flushed.
    pub peek: Option<Peek>,
    /// What must live as long as the disk: a temporary file, a loop device. Dropped after it.
    pub hold: Box<dyn Any>,
}

/// What is tested and what to expect.
pub struct Suite<'a> {
    /// For messages.
    pub name: &'a str,
    /// Makes a fresh disk.
    pub make: &'a dyn Fn() -> Fresh,
    /// Makes a read-only disk of any content.
    pub make_read_only: Option<&'a dyn Fn() -> Fresh>,
    /// The engines to go through, and what a queue must call each.
    pub engines: &'a [(EngineKind, &'a str)],
    /// What is written can be read back (all but the null disk).
    pub keeps_data: bool,
}
