use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use disk_formats::{NullDisk, SectorSize};

use super::*;

fn request(kind: u16, len: u32) -> Vec<u8> {
    let kind = u32::from(kind).to_be_bytes();
    [&NBD_REQUEST_MAGIC.to_be_bytes()[..], &kind, &[0; 16], &len.to_be_bytes()].concat()
}

#[test]
fn who_keeps_memory_that_others_wait_for_is_hung_up_on() {
    const LARGE: u32 = LARGEST as u32;
    let patience = Duration::from_millis(300);
    let export = Export {
        name: String::new(),
        description: String::new(),
        disk: Arc::new(NullDisk::new(LARGE.into(), SectorSize::B512).unwrap()),
        engine: Default::default(),
    };
    let exports = Exports::new(vec![export]).unwrap().sharing(Pool::new(LARGEST, patience));
    let stop = Stop::new().unwrap();
    std::thread::scope(|scope| {
        let connect = || {
            let (mut client, server) = UnixStream::pair().unwrap();
            let stream = Stream::new(server.into()).unwrap();
            scope.spawn(|| serve(stream, &exports, &stop));
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
            client.read_exact(&mut [0; 18 + 10]).unwrap();
            client
        };
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
        drop(other);
    });
}
