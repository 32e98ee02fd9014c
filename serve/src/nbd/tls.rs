//! Transport Layer Security, 1.2 and 1.3: who a server is, and which clients it takes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

/// A server's certificate and key. With them, clients must use TLS: no export is told of, or served, without.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read, or holds something else.
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
    /// From PEM files: the server's certificate, followed by those between it and its authority, and its key. With `clients`,
    /// a file of authorities, only clients with a certificate by one of them are taken.
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
    pub(super) fn session(&self) -> Result<Box<ServerConnection>, rustls::Error> {
        Ok(Box::new(ServerConnection::new(Arc::clone(&self.0))?))
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

#[cfg(test)]
pub(super) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_none_are_named() {
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
