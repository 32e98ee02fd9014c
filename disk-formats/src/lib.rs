//! Virtual disks for KVM: raw files, pass-through block devices, RAM, null, and VHD (fixed, dynamic, differencing).
//!
//! The crate has two halves. A [`Format`] answers *where* the bytes of a virtual range are and keeps the format's
//! metadata; it moves no payload. A [`DiskQueue`], one for each I/O thread, takes tagged requests, moves the bytes
//! between the caller's buffers and the files with one submission a batch, and hands back completions. A [`Disk`]
//! joins the two. Nothing here knows a guest, an adapter or a hypervisor.

mod backing;
mod block_map;
mod chain_map;
mod check;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(test)]
mod crash;
mod delayed;
mod disk;
mod engine;
mod error;
mod extent;
mod field;
mod file_disk;
mod file_queue;
mod findings;
mod flat;
mod format;
mod grace;
mod guid;
pub mod image;
mod info;
mod instant;
mod iobuf;
mod memory;
mod nested;
mod null;
mod open;
mod parents;
mod passthrough;
mod queue;
mod ram;
mod raw;
mod revisions;
mod store;
mod sys;
mod tsc;
pub mod vhd;
pub mod vhdx;

pub use backing::{Access, BackingFile, DirectAlignment};
pub use delayed::Delayed;
pub use disk::{Allocation, Disk, Status};
pub use error::{IoError, OpenError, PushError};
pub use extent::{Extent, Extents, Place};
pub use file_disk::FileDisk;
pub use file_queue::file_queue;
pub use findings::{CheckReport, Compacted, Finding, Severity};
pub use flat::Flat;
pub use format::{Flush, Format, Mapping};
pub use grace::Grace;
pub use info::{DiscardLimits, DiskInfo, Kind, SectorSize};
pub use iobuf::{IoBuf, total_len};
pub use nested::{is_nested, outermost, refuse_nested};
pub use null::NullDisk;
pub use open::{FormatName, OpenOptions};
pub use parents::{MAX_DEPTH, ParentRules};
pub use passthrough::Passthrough;
pub use queue::{Completion, DiskQueue, EngineKind, Op, QueueConfig, QueueStats, Request};
pub use ram::RamDisk;
pub use raw::Raw;
