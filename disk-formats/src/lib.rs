// The program has its own way to print, which neither fails nor waits.
#![cfg_attr(not(test), deny(clippy::print_stderr))]
#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(all(feature = "io-uring", feature = "vhd", feature = "vhdx")),
    allow(dead_code, unreachable_code, unused_imports, unused_variables, reason = "serves what is left out")
)]
#![cfg_attr(
    test,
    allow(clippy::duplicate_mod, reason = "a checker runs the source with primitives of its own")
)]

mod contract;
mod disk;
mod formats;
mod host;
pub mod image;
mod map;
mod queue;

pub use contract::disk::{Allocation, Disk, Identity, MapMemory, Status};
pub use contract::error::{Escaped, escaped};
pub use contract::error::{IoError, OpenError, PushError};
pub use contract::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
pub use contract::iobuf::{IoBuf, total_len};
pub use contract::metrics::Metrics;
pub use contract::metrics::counters::{KindMetrics, QueueMetrics};
pub use contract::metrics::histogram::Histogram;
pub use contract::queue::{Completion, DiskQueue, EngineKind, Op, QueueConfig, QueueStats, Request};
pub use disk::file_disk::FileDisk;
pub use disk::file_disk::{AllocationLimits, allocations};
pub use disk::image::{Image, RebaseData, Repair, Shrink, Siblings};
pub use disk::memory::NullDisk;
pub use disk::memory::RamDisk;
pub use formats::findings::{CheckReport, Compacted, Finding, Severity};
pub use formats::flat::passthrough::Passthrough;
pub use formats::flat::raw::Raw;
pub use formats::flat::{Flat, Sectors};
pub use formats::info::{FormatInfo, ImageInfo, ParentInfo, Scope};
pub use formats::name::FormatName;
pub use formats::nested::path::{is_nested, outermost, refuse_nested};
pub use formats::open::OpenOptions;
pub use formats::parents::{MAX_DEPTH, ParentRules};
#[cfg(feature = "vhd")]
pub use formats::vhd;
#[cfg(feature = "vhdx")]
pub use formats::vhdx;
pub use host::backing::{Access, BackingFile, DirectAlignment, on_flush_lost};
pub use host::memory::HostMemory;
pub use host::passed::pass;
pub use host::threads::{ThreadKind, on_thread_start, spawn, spawn_scoped};
pub use map::epochs::Epochs;
pub use map::extent::{Extent, Extents, Place};
pub use map::format::{Flush, Format, Mapping};
#[cfg(feature = "conformance")]
pub use queue::conformance;
pub use queue::engine::rings::{make_ring, start_ring_maker};
pub use queue::engine::rings::{restrict_rings, rings_are_restricted};
pub use queue::file_queue::file_queue;
pub use queue::layered::Layered;
