//! The vhost-user block server, seen by a client of its own.

mod client;
mod io;
mod rig;
