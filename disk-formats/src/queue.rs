//! Queues that transfer data: of files ([`file_queue`]), of disks that complete at once ([`instant`]), and layers around the queues of
//! another disk ([`layered`]: [`metered`], [`delayed`]).

#[cfg(feature = "conformance")]
pub mod conformance;
pub(crate) mod delayed;
pub(crate) mod engine;
pub(crate) mod file_queue;
pub(crate) mod layered;
pub(crate) mod metered;
