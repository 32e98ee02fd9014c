//! Both ends of TLS for tests. The certificate is valid for a hundred years, its key is public, and nobody trusts it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustls::crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage, Tls13AeadAlgorithm};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, StreamOwned,
};

use super::*;

const CERTIFICATE: &[u8] = include_bytes!("test-certificate.pem");
const KEY: &[u8] = include_bytes!("test-key.pem");

/// A client's side.
pub(crate) type Client = StreamOwned<ClientConnection, UnixStream>;

/// The server's side.
pub(crate) fn server() -> Tls {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["certificate", "key"].map(|name| folder.path().join(name));
    std::fs::write(&certificate, CERTIFICATE).unwrap();
    std::fs::write(&key, KEY).unwrap();
    Tls::from_files(&certificate, &key, None).unwrap()
}

/// A client that is about to say hello over this socket.
pub(crate) fn client(socket: UnixStream) -> Client {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites = vec![TLS13_AES_128_GCM_SHA256];
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERTIFICATE).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.enable_secret_extraction = true;
    StreamOwned::new(
        ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap(),
        socket,
    )
}

/// Ask for TLS in the negotiation, until the server has agreed to speak it.
pub(crate) fn start(mut socket: UnixStream) -> Client {
    socket.read_exact(&mut [0; 18]).unwrap();
    socket.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0").unwrap();
    socket.read_exact(&mut [0; 20]).unwrap();
    client(socket)
}

/// A client that has agreed on TLS, and sends records that no library would.
pub(crate) struct Records {
    pub(crate) socket: UnixStream,
    encrypter: Box<dyn MessageEncrypter>,
    sequence: u64,
}

impl Records {
    pub(crate) fn of(client: Client) -> Self {
        let (sequence, secrets) = client.conn.dangerous_extract_secrets().unwrap().tx;
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { panic!("another cipher") };
        let aead: &dyn Tls13AeadAlgorithm = TLS13_AES_128_GCM_SHA256.tls13().unwrap().aead_alg;
        Self { socket: client.sock, encrypter: aead.encrypter(key, iv), sequence }
    }

    /// The next record.
    pub(crate) fn record(&mut self, content: &[u8]) -> Vec<u8> {
        let message = OutboundPlainMessage {
            typ: ContentType::ApplicationData,
            version: ProtocolVersion::TLSv1_3,
            payload: OutboundChunks::Single(content),
        };
        self.sequence += 1;
        self.encrypter.encrypt(message, self.sequence - 1).unwrap().encode()
    }
}
