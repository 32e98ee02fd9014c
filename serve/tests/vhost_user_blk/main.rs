//! The vhost-user block server, seen by a client of its own.

mod client;
mod cloud_hypervisor;
mod eventfds;
#[path = "../vfio_user/gate.rs"]
mod gate;
mod hostile;
mod io;
mod moderation;
mod reconnect;
mod resize;
mod rig;
#[path = "../common/within.rs"]
mod within;
