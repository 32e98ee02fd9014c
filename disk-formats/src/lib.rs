//! Virtual disks for KVM: raw files, pass-through block devices, RAM, null, and VHD.
//!
//! The crate has two halves. A [`Format`] answers *where* the bytes of a virtual range are and keeps the format's
//! metadata; it moves no payload. A [`DiskQueue`], one for each I/O thread, takes tagged requests, moves the bytes
//! between the caller's buffers and the files with one submission a batch, and hands back completions. A [`Disk`]
//! joins the two. Nothing here knows a guest, an adapter or a hypervisor.

mod backing;
mod disk;
mod error;
mod extent;
mod format;
mod info;
mod iobuf;
mod queue;

pub use backing::BackingFile;
pub use disk::{Allocation, Disk, Status};
pub use error::{IoError, OpenError, PushError};
pub use extent::{Extent, Extents, Place};
pub use format::{Flush, Format, Mapping};
pub use info::{DiscardLimits, DiskInfo, Kind, SectorSize};
pub use iobuf::{IoBuf, total_len};
pub use queue::{Completion, DiskQueue, EngineKind, Op, QueueConfig, QueueStats, Request};
