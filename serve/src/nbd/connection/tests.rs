use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use disk_formats::{Delayed, NullDisk, SectorSize};

use super::*;

const LARGE: u32 = LARGEST as u32;

fn request(kind: u16, len: u32) -> Vec<u8> {
    let kind = u32::from(kind).to_be_bytes();
    [&NBD_REQUEST_MAGIC.to_be_bytes()[..], &kind, &[0; 16], &len.to_be_bytes()].concat()
}

/// Connect clients to a disk this slow, where there is memory for one large request.
fn serve_clients(delay: Duration, patience: Duration, talk: impl FnOnce(&dyn Fn() -> UnixStream)) {
    let disk = NullDisk::new(LARGE.into(), SectorSize::B512).unwrap();
    let export = Export {
        name: String::new(),
        description: String::new(),
        disk: Arc::new(Delayed::new(Arc::new(disk), delay)),
        engine: Default::default(),
    };
    let exports = Exports::new(vec![export]).unwrap().sharing(Pool::new(LARGEST, patience));
    let stop = Stop::new().unwrap();
    std::thread::scope(|scope| {
        talk(&|| {
            let (mut client, server) = UnixStream::pair().unwrap();
            let stream = Stream::new(server.into()).unwrap();
            scope.spawn(|| serve(stream, &exports, &stop, None));
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
            client.read_exact(&mut [0; 18 + 10]).unwrap();
            client
        });
    });
}

#[test]
fn who_keeps_memory_that_others_wait_for_is_hung_up_on() {
    let patience = Duration::from_millis(300);
    serve_clients(Duration::ZERO, patience, |connect| {
        let mut stalled = connect();
        stalled.write_all(&[&request(NBD_CMD_WRITE, LARGE)[..], &[0; 100]].concat()).unwrap();
        std::thread::sleep(2 * patience);
        // Nobody has asked: it may take its time.
        stalled.write_all(&[0; 100]).unwrap();
        let (mut other, begin) = (connect(), Instant::now());
        other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        let mut reply = vec![0; 16 + LARGEST];
        other.read_exact(&mut reply).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(15));
        assert!(!matches!(stalled.read(&mut [0]), Ok(1..)), "it was answered");
        assert!(stalled.write_all(&[0; 100]).is_err());
    });
}

#[test]
fn who_trickles_into_memory_that_others_wait_for_is_hung_up_on() {
    let patience = Duration::from_millis(400);
    serve_clients(Duration::ZERO, patience, |connect| {
        let (mut slow, mut other) = (connect(), connect());
        slow.write_all(&[&request(NBD_CMD_WRITE, LARGE)[..], &[0]].concat()).unwrap();
        std::thread::sleep(patience / 4);
        other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        std::thread::scope(|scope| {
            // Never silent for long, and never done.
            scope.spawn(|| {
                let begin = Instant::now();
                while slow.write_all(&[0; 100]).is_ok() {
                    std::thread::sleep(patience / 8);
                    assert!(begin.elapsed() < Duration::from_secs(30), "it holds the memory for ever");
                }
            });
            other.read_exact(&mut vec![0; 16 + LARGEST]).unwrap();
        });
    });
}

#[test]
fn who_is_slow_with_memory_that_others_wait_for_is_served() {
    let patience = Duration::from_millis(400);
    serve_clients(Duration::ZERO, patience, |connect| {
        let (mut slow, mut other) = (connect(), connect());
        slow.write_all(&request(NBD_CMD_WRITE, LARGE)).unwrap();
        // The first byte of the payload: the memory is the slow one's.
        slow.write_all(&[0]).unwrap();
        std::thread::sleep(patience / 4);
        other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        for piece in vec![0; LARGEST - 1].chunks(LARGEST / 16) {
            std::thread::sleep(patience / 4);
            slow.write_all(piece).unwrap();
        }
        slow.read_exact(&mut [0; 16]).unwrap();
        // And the other way round.
        other.read_exact(&mut [0; 16]).unwrap();
        slow.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        for piece in vec![0; LARGEST].chunks_mut(LARGEST / 16) {
            std::thread::sleep(patience / 4);
            other.read_exact(piece).unwrap();
        }
        slow.read_exact(&mut vec![0; 16 + LARGEST]).unwrap();
    });
}

#[test]
fn who_waits_for_the_disk_with_memory_that_others_wait_for_is_served() {
    let patience = Duration::from_millis(300);
    serve_clients(3 * patience, patience, |connect| {
        let (mut one, mut other) = (connect(), connect());
        one.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        std::thread::sleep(patience / 3);
        other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        let mut reply = vec![0; 16 + LARGEST];
        one.read_exact(&mut reply).unwrap();
        other.read_exact(&mut reply).unwrap();
    });
}
