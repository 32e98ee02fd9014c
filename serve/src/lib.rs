//! Servers of the disks and devices of this project, for other programs by standard protocols. Each protocol is a feature.
//!
//! - [`nbd`]: disks for clients of the Network Block Device protocol,
//! - [`vfio_user`]: an adapter with its disks as a PCI function of another VMM,
//! - [`vhost_user_blk`]: a disk as the back-end of another VMM's virtio block device.

// The program has its own way to print, which neither fails nor waits.
#![cfg_attr(not(test), deny(clippy::print_stderr))]
#![cfg_attr(
    test,
    allow(clippy::duplicate_mod, reason = "a checker runs the source with primitives of its own")
)]

#[cfg(any(feature = "vfio-user", feature = "vhost-user-blk"))]
mod client_region;
mod client_socket;
#[cfg(any(feature = "vfio-user", feature = "vhost-user-blk"))]
mod memory_sources;
#[cfg(feature = "nbd")]
pub mod nbd;
#[cfg(any(feature = "vfio-user", feature = "vhost-user-blk"))]
mod notifier;
mod refusals;
#[cfg(any(feature = "vfio-user", feature = "vhost-user-blk"))]
mod sigbus;
mod socket;
#[cfg(feature = "vfio-user")]
pub mod vfio_user;
#[cfg(feature = "vhost-user-blk")]
pub mod vhost_user_blk;

#[cfg(any(feature = "vfio-user", feature = "vhost-user-blk"))]
pub use client_region::ClientRegion;
pub use client_socket::{ClientSocket, start_closer};
#[cfg(any(feature = "vfio-user", feature = "vhost-user-blk"))]
pub use memory_sources::MemorySources;
pub use refusals::{ReportLimit, client_refused, on_client_refused};
pub use socket::{Permissions, Socket};
