//! Disks over the Network Block Device (NBD) protocol.
//!
//! Source: the NBD project's protocol document (`doc/proto.md` of its repository), whose names are used here. The server supports the fixed
//! newstyle negotiation, in plain text or under TLS, simple and structured replies, and the metadata context `base:allocation`.
//!
//! A connection has one thread, which sleeps on the socket and the disk's completions together, or in the receive if nothing is in flight. It
//! takes the requests that have arrived as one batch, submits them together and sends their replies together. The data of a read are sent from
//! the memory that the disk reads into. The data of a write are copied if they arrive with the request's header (at most 64 KiB); the remainder
//! is received into the memory that the disk writes from.
//!
//! ```text
//! server (accept) -> slots (limit on connections) -> handshake (options, TLS) -> connection, a thread each:
//! socket -> stream -> parse -> buffers, pool (memory) -> buffer_queue -> disk
//! socket <- stream <- reply                           <- buffer_queue <- completions
//! ```

mod buffer_queue;
mod buffers;
mod connection;
mod export;
mod gate;
mod handshake;
mod minimum_rate;
mod parse;
mod parts;
mod pool;
mod reply;
mod requests;
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
pub use server::{Listener, Server, serve_client};
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError};
