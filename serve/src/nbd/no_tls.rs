//! In place of [`tls`](super::tls) where that is not compiled: no value of these types exists.

use std::io::{IoSlice, IoSliceMut, Read, Write};

use rustix::io::Errno;

/// No server has a certificate.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tls {}

impl Tls {
    pub(super) fn session(&self) -> Result<Session, Errno> {
        match *self {}
    }
}

/// No connection is encrypted.
#[derive(Debug)]
pub(super) enum Session {}

impl Session {
    pub(super) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(super) fn receive(
        &mut self,
        _socket: &mut (impl Read + Write),
        _into: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        match *self {}
    }

    pub(super) fn receive_records(&mut self, _socket: &mut (impl Read + Write)) -> Result<(), Errno> {
        match *self {}
    }

    pub(super) fn has_ended(&self) -> bool {
        match *self {}
    }

    pub(super) fn encrypt(&mut self, _from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match *self {}
    }

    pub(super) fn wants_write(&self) -> bool {
        match *self {}
    }

    pub(super) fn flush(&mut self, _socket: &mut impl Write) -> Result<(), Errno> {
        match *self {}
    }

    pub(super) fn close(&mut self) {
        match *self {}
    }
}
