//! Random UUIDs (RFC 9562, version 4).

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use uuid::{Builder, Uuid};

/// A new random UUID.
pub(crate) fn random() -> io::Result<Uuid> {
    let mut bytes = [0; 16];
    if getrandom(&mut bytes, GetRandomFlags::empty())? != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Builder::from_random_bytes(bytes).into_uuid())
}
