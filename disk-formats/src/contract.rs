//! The contracts that all other folders share, and their types: disks ([`disk::Disk`]), queues ([`queue::DiskQueue`]), errors, metrics.

pub(crate) mod disk;
pub(crate) mod error;
pub(crate) mod info;
pub(crate) mod iobuf;
pub(crate) mod metrics;
pub(crate) mod queue;
