#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(all(feature = "io-uring", feature = "vhd", feature = "vhdx")),
    allow(dead_code, unreachable_code, unused_imports, unused_variables, reason = "serves what is left out")
)]

mod allocations;
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
mod epochs;
mod error;
mod extent;
mod field;
mod file_disk;
mod file_queue;
mod findings;
mod flat;
mod format;
#[cfg(any(feature = "vhd", feature = "vhdx"))]
mod guid;
mod host;
mod identity;
pub mod image;
mod info;
mod instant;
mod iobuf;
mod map_now;
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
#[cfg(all(test, feature = "vhd", feature = "vhdx"))]
mod siblings;
mod signature;
mod store;
mod sys;
mod tsc;
#[cfg(feature = "vhd")]
pub mod vhd;
#[cfg(feature = "vhdx")]
pub mod vhdx;

pub use allocations::{AllocationLimits, allocations};
pub use backing::{Access, BackingFile, DirectAlignment, on_flush_lost};
pub use delayed::Delayed;
pub use disk::{Allocation, Disk, MapMemory, Status};
pub use epochs::Epochs;
pub use error::{IoError, OpenError, PushError};
pub use extent::{Extent, Extents, Place};
pub use file_disk::FileDisk;
pub use file_queue::file_queue;
pub use findings::{CheckReport, Compacted, Finding, Severity};
pub use flat::Flat;
pub use format::{Flush, Format, Mapping};
pub use identity::Identity;
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
