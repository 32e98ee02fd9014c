//! An NBD server with any client.
//!
//! The first byte of the input has flags, and the rest is what the client sends. With bit 0, a valid negotiation comes before it; with
//! bit 1 as well, the negotiation includes structured replies and block status. With bit 2, the input gets correct magic numbers.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use paradisk_disk_formats::{EngineKind, RamDisk, SectorSize};
use paradisk_serve::nbd::{Export, Exports, serve_client};

const SIZE: u64 = 1 << 20;
const REQUEST: usize = 28;

fn exports() -> Exports {
    let disk = |sector| Arc::new(RamDisk::new(SIZE, sector).expect("a disk"));
    let export = |name: &str, sector| Export {
        name: name.into(),
        description: "fuzzed".into(),
        disk: disk(sector),
        engine: EngineKind::default(),
    };
    let both = vec![export("a", SectorSize::B512), export("b", SectorSize::B4096)];
    Exports::new(both).expect("two names")
}

fn option(option: u8, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT\0\0\0", &[option][..], &(data.len() as u32).to_be_bytes(), data].concat()
}

pub(crate) fn run(data: &[u8]) {
    static EXPORTS: OnceLock<Exports> = OnceLock::new();
    let exports = EXPORTS.get_or_init(exports);
    let [flags, data @ ..] = data else { return };
    let mut talk = Vec::new();
    if flags & 1 != 0 {
        talk.extend([0, 0, 0, 3]);
        if flags & 2 != 0 {
            talk.extend(option(8, &[]));
            talk.extend(option(10, b"\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation"));
        }
        talk.extend(option(7, b"\0\0\0\x01a\0\0"));
    }
    let mut data = data.to_vec();
    if flags & 4 != 0 {
        let (step, magic) =
            if flags & 1 != 0 { (REQUEST, &[0x25, 0x60, 0x95, 0x13][..]) } else { (16, &b"IHAVEOPT"[..]) };
        for message in data.chunks_exact_mut(step) {
            message[..magic.len()].copy_from_slice(magic);
        }
    }
    talk.extend(data);
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(|| serve_client(theirs.into(), exports));
        let receiver = ours.try_clone().expect("a socket");
        scope.spawn(move || {
            // Receive all replies, so that the server does not wait for this client.
            let _ = std::io::copy(&mut &receiver, &mut std::io::sink());
        });
        let _ = (&ours).write_all(&talk);
        let _ = ours.shutdown(std::net::Shutdown::Write);
    });
}
