//! Queues that transfer data: of files ([`file_queue`]), and layers around the queues of
//! another disk ([`layered`], [`metered`]).

#[cfg(feature = "conformance")]
pub mod conformance;
pub(crate) mod engine;
pub(crate) mod file_queue;
pub(crate) mod layered;
pub(crate) mod metered;
