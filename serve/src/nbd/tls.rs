//! TLS 1.2 and 1.3: a server's certificate, which clients it accepts, and the sessions.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

/// A server's certificate and key. With them, clients must use TLS: without it, exports are neither listed nor served.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read or parsed.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: pem::Error,
    },
    /// Certificates and key that cannot be used.
    #[error("{}: {reason}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with its content.
        reason: String,
    },
}

impl Tls {
    /// From PEM files: the server's certificate chain, and its key. With `clients`, a file of certificate authorities, only clients
    /// with a certificate of one of them are accepted.
    ///
    /// # Errors
    /// [`TlsError`] names the file.
    pub fn from_files(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unfit = |path: &Path, error: &dyn fmt::Display| TlsError::Unfit {
            path: path.into(),
            reason: error.to_string(),
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unfit(certificate, &error))?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(path)? {
                    roots.add(root).map_err(|error| unfit(path, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| unfit(path, &error))?)
            }
        };
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::File { path: key.into(), error })?;
        let config = builder.with_single_cert(certificates(certificate)?, private);
        Ok(Self(Arc::new(config.map_err(|error| unfit(certificate, &error))?)))
    }

    /// A session with a client that is about to say hello.
    pub(super) fn session(&self) -> Result<Session, rustls::Error> {
        let connection = Box::new(ServerConnection::new(Arc::clone(&self.0))?);
        Ok(Session { connection, ended: None })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |error| TlsError::File { path: path.into(), error };
    let all: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(file)?.collect::<Result<_, _>>().map_err(file)?;
    if all.is_empty() { Err(file(pem::Error::NoItemsFound)) } else { Ok(all) }
}

/// Receptions from the socket for one [`receive`](Session::receive): a client that sends without end in small records gets no more of the
/// thread's time.
const RECEPTIONS: u32 = 64;

/// The server's side of TLS on one connection, over a socket that does not buffer.
#[derive(Debug)]
pub(super) struct Session {
    connection: Box<ServerConnection>,
    /// Nothing can be received any more: the client has closed the session, or what went wrong.
    ended: Option<Result<(), Errno>>,
}

impl Session {
    /// Whether the handshake is incomplete: the caller alternates [`receive_records`](Self::receive_records) and [`flush`](Self::flush).
    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Receive plain text. 0: the client has closed the session.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: nothing has arrived; or an error of the host or of TLS.
    pub(super) fn receive(
        &mut self,
        socket: &mut (impl Read + Write),
        into: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        let (mut got, mut receptions) = (0, 0);
        for buf in into {
            let mut rest = &mut buf[..];
            while !rest.is_empty() {
                let ended = match self.connection.reader().read(rest) {
                    Ok(0) => Ok(()),
                    Ok(len) => {
                        got += len;
                        rest = rest.get_mut(len..).unwrap_or_default();
                        continue;
                    }
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(errno(&error)),
                    Err(_) => match self.receive_more(socket, &mut receptions) {
                        Ok(()) => continue,
                        Err(Errno::AGAIN) if got > 0 => return Ok(got),
                        Err(Errno::AGAIN) => return Err(Errno::AGAIN),
                        Err(errno) => Err(errno),
                    },
                };
                // What arrived before the end is returned first.
                self.ended = Some(ended);
                return if got > 0 { Ok(got) } else { ended.map(|()| 0) };
            }
        }
        Ok(got)
    }

    fn receive_more(&mut self, socket: &mut (impl Read + Write), receptions: &mut u32) -> Result<(), Errno> {
        if let Some(Err(errno)) = self.ended {
            return Err(errno);
        }
        if *receptions == RECEPTIONS {
            // The socket stays readable.
            return Err(Errno::AGAIN);
        }
        *receptions += 1;
        self.receive_records(socket)
    }

    /// Whether the end has been received: the next [`receive`](Self::receive) does not return [`Errno::AGAIN`], though the socket may never
    /// be readable again.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Receive records and decrypt them.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: nothing has arrived; [`Errno::PROTO`]: not TLS, or the handshake failed; or an error of the host.
    pub(super) fn receive_records(&mut self, socket: &mut (impl Read + Write)) -> Result<(), Errno> {
        let got = self.connection.read_tls(socket).map_err(|error| errno(&error))?;
        let decrypted = self.connection.process_new_packets();
        if decrypted.is_err() {
            // Send the alert with the reason, as far as the host accepts it.
            let _ = self.connection.write_tls(socket);
        }
        let state = decrypted.map_err(|_| Errno::PROTO)?;
        // The end without close_notify may be a truncation by an attacker.
        if got == 0 && !state.peer_has_closed() { Err(Errno::CONNRESET) } else { Ok(()) }
    }

    /// Encrypt as much as the buffer takes; [`flush`](Self::flush) sends it.
    ///
    /// # Errors
    /// An error of TLS.
    pub(super) fn encrypt(&mut self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.connection.writer().write_vectored(from).map_err(|error| errno(&error))
    }

    /// Whether there are records to be sent.
    pub(super) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Send the records in the buffer.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: the host does not accept all of them now; or an error of the host.
    pub(super) fn flush(&mut self, socket: &mut impl Write) -> Result<(), Errno> {
        while self.connection.wants_write() {
            self.connection.write_tls(socket).map_err(|error| errno(&error))?;
        }
        Ok(())
    }

    /// Have close_notify sent by the next [`flush`](Self::flush).
    pub(super) fn close(&mut self) {
        self.connection.send_close_notify();
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(match error.kind() {
        io::ErrorKind::WouldBlock => Errno::AGAIN,
        _ => Errno::IO,
    })
}

#[cfg(test)]
pub(super) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (none, junk) = (folder.path().join("none.pem"), folder.path().join("junk.pem"));
        std::fs::write(&junk, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        for (certificate, key, clients, named) in [
            (&junk, &none, None, &none),
            (&none, &junk, Some(&none), &none),
            (&junk, &junk, Some(&junk), &junk),
        ] {
            let error =
                Tls::from_files(certificate, key, clients.map(PathBuf::as_path)).unwrap_err().to_string();
            assert!(error.contains(named.to_str().unwrap()), "{error}");
        }
    }
}
