//! Requests on a warmed-up NBD connection allocate nothing. The global allocator counts allocations.

#[path = "../../disk-formats/tests/common/allocations.rs"]
mod counter;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use counter::allocations;
use paradisk_disk_formats::{EngineKind, OpenOptions};
use paradisk_serve::nbd::{Export, Exports, serve_client};

const DEPTH: usize = 32;
const BLOCK: usize = 4096;

#[test]
fn a_warm_connection_allocates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.raw");
    std::fs::write(&path, vec![1; DEPTH * BLOCK]).unwrap();
    let export = Export {
        name: String::new(),
        description: String::new(),
        disk: OpenOptions::new(&path).open().unwrap(),
        engine: EngineKind::default(),
    };
    let exports = Exports::new(vec![export]).unwrap();
    let (mut client, server) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || serve_client(server.into(), &exports).unwrap());
    client.read_exact(&mut [0; 18]).unwrap();
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 10]).unwrap();

    // A batch of requests: the headers, each followed by its payload for writes.
    let batch = |kind: u8| -> Vec<u8> {
        let mut all = Vec::new();
        for number in 0..DEPTH as u64 {
            all.extend([0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind]);
            all.extend(number.to_be_bytes());
            all.extend((number * BLOCK as u64).to_be_bytes());
            all.extend((BLOCK as u32).to_be_bytes());
            all.extend(std::iter::repeat_n(kind, if kind == 1 { BLOCK } else { 0 }));
        }
        all
    };
    let (reads, writes) = (batch(0), batch(1));
    // The client does not receive for a while. So the queue of replies grows beyond what the rounds below need.
    client.write_all(&reads.repeat(4)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    client.read_exact(&mut vec![0; 4 * DEPTH * (16 + BLOCK)]).unwrap();
    let mut replies = vec![0; DEPTH * (16 + BLOCK)];
    let mut rounds = |count: u32| {
        for _ in 0..count {
            client.write_all(&writes).unwrap();
            client.read_exact(&mut replies[..DEPTH * 16]).unwrap();
            client.write_all(&reads).unwrap();
            client.read_exact(&mut replies).unwrap();
            assert!(
                replies.chunks(16 + BLOCK).all(|reply| reply[4..8] == [0; 4] && reply[16..] == [1; BLOCK])
            );
        }
    };
    rounds(50);
    let mut made = || {
        let before = allocations();
        rounds(300);
        allocations() - before
    };
    // A server that had no processor while the client was away has the queue grow later: each buffer a few times at the most.
    let made: Vec<_> = (0..5).map(|_| made()).collect();
    drop(client);
    serving.join().unwrap();
    assert!(
        made.iter().sum::<usize>() < 50,
        "allocations by {} requests, several times: {made:?}",
        2 * 300 * DEPTH
    );
}
