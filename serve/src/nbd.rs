//! Disks over the Network Block Device protocol.
//!
//! Source: the NBD project's protocol document (`doc/proto.md` of its repository), whose names are used here. Served are the
//! fixed newstyle negotiation, in clear text or under TLS, simple and structured replies, and the metadata context `base:allocation`.
//!
//! A connection has one thread, which sleeps on the socket and the disk's completions together. It takes the requests that
//! have come as one batch, submits them together and sends their replies together. Payloads are received into the memory
//! that the disk writes from, and sent from the memory that it has read into.

mod allowance;
mod blocks;
mod connection;
mod export;
mod handshake;
mod lending;
mod parse;
mod pool;
mod reply;
mod server;
mod sleeper;
mod slots;
mod spec;
mod status;
mod stop;
mod stream;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "nbd/no_tls.rs"]
mod tls;

pub use export::{Export, Exports, ExportsError};
pub use server::{Address, Server, serve_client};
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError};
