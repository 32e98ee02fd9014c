use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use paradisk_disk_formats::{
    Allocation, Completion, Disk, DiskInfo, DiskQueue, Layered, NullDisk, OpenError, PushError, QueueStats,
    RamDisk, SectorSize,
};

use super::super::pool::Pool;
use super::super::tls::testing;
use super::*;

const LARGE: u32 = LARGEST as u32;
/// For what never comes.
const SOON: Duration = Duration::from_secs(120);

fn request(kind: u16, len: u32) -> Vec<u8> {
    request_at(kind, 0, len)
}

fn request_at(kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let kind = u32::from(kind).to_be_bytes();
    [&NBD_REQUEST_MAGIC.to_be_bytes()[..], &kind, &[0; 8], &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Connect clients to a disk with this latency. The pool has memory for one of the largest requests.
fn serve_clients(
    delay: Duration,
    stall_timeout: Duration,
    talk: impl FnOnce(&dyn Fn() -> UnixStream, &Pool),
) {
    serve_with(delay, stall_timeout, false, |connect, pool| {
        let connect = || negotiated(connect);
        talk(&connect, pool);
    });
}

/// A client of the default export.
fn negotiated(connect: &dyn Fn() -> UnixStream) -> UnixStream {
    let mut client = connect();
    client.read_exact(&mut [0; 18]).unwrap();
    client.write_all(b"\0\0\0\x03").unwrap();
    go(&mut client);
    client
}

/// Ask for the default export.
fn go(client: &mut (impl Read + Write)) {
    client.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 10]).unwrap();
}

/// As [`serve_clients`], before the negotiation, with TLS if `tls` is set. `talk` also gets the pool.
fn serve_with(
    delay: Duration,
    stall_timeout: Duration,
    tls: bool,
    talk: impl FnOnce(&dyn Fn() -> UnixStream, &Pool),
) {
    let disk = NullDisk::new(LARGE.into(), SectorSize::B512).unwrap();
    serve_disk(Arc::new(Layered::new(Arc::new(disk)).delayed(delay)), stall_timeout, tls, talk);
}

/// As [`serve_with`], of this disk.
fn serve_disk(
    disk: Arc<dyn Disk>,
    stall_timeout: Duration,
    tls: bool,
    talk: impl FnOnce(&dyn Fn() -> UnixStream, &Pool),
) {
    let export = Export { name: String::new(), description: String::new(), disk, engine: Default::default() };
    let exports = Exports::new(vec![export]).unwrap().with_pool(Pool::new(LARGEST, stall_timeout));
    let exports = if tls { exports.with_tls(testing::server()) } else { exports };
    let stop = Stop::new().unwrap();
    std::thread::scope(|scope| {
        let connect = || {
            let (client, server) = UnixStream::pair().unwrap();
            let stream = Stream::new(server.into()).unwrap();
            scope.spawn(|| serve(stream, &exports, &stop, None));
            client.set_read_timeout(Some(SOON)).unwrap();
            client
        };
        talk(&connect, exports.pool());
    });
}

/// Wait until so many connections wait for memory.
fn wait_for(pool: &Pool, waiting: usize) {
    wait_until(pool, || pool.waiting() == waiting);
}

/// Wait until a connection has the memory.
fn wait_until_held(pool: &Pool) {
    wait_until(pool, || pool.is_held());
}

fn wait_until(pool: &Pool, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < SOON, "{pool:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_keeps_memory_that_others_wait_for_is_hung_up_on() {
    let stall_timeout = Duration::from_millis(300);
    serve_clients(Duration::ZERO, stall_timeout, |connect, pool| {
        let mut stalled = connect();
        stalled.write_all(&[&request(NBD_CMD_WRITE, LARGE)[..], &[0; 100]].concat()).unwrap();
        wait_until_held(pool);
        std::thread::sleep(2 * stall_timeout);
        // No other connection waits for memory: the client may stall.
        stalled.write_all(&[0; 100]).unwrap();
        let mut other = connect();
        other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        let mut reply = vec![0; 16 + LARGEST];
        other.read_exact(&mut reply).unwrap();
        assert!(!matches!(stalled.read(&mut [0]), Ok(1..)), "it was answered");
        assert!(stalled.write_all(&[0; 100]).is_err());
    });
}

#[test]
fn who_trickles_into_memory_that_others_wait_for_is_hung_up_on() {
    let stall_timeout = Duration::from_millis(400);
    serve_clients(Duration::ZERO, stall_timeout, |connect, pool| {
        let (mut slow, mut other) = (connect(), connect());
        slow.write_all(&[&request(NBD_CMD_WRITE, LARGE)[..], &[0]].concat()).unwrap();
        wait_until_held(pool);
        other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        std::thread::scope(|scope| {
            // Never silent for long, and never done.
            scope.spawn(|| {
                let begin = Instant::now();
                while slow.write_all(&[0; 100]).is_ok() {
                    std::thread::sleep(stall_timeout / 8);
                    assert!(begin.elapsed() < SOON, "it holds the memory for ever");
                }
            });
            other.read_exact(&mut vec![0; 16 + LARGEST]).unwrap();
        });
    });
}

#[test]
fn who_is_slow_with_memory_that_others_wait_for_is_served() {
    let stall_timeout = Duration::from_secs(6);
    // Each piece gives back three times as much, so a late client is served, too. All pauses together are longer than the time without
    // pieces.
    let pause = Duration::from_millis(480);
    serve_clients(Duration::ZERO, stall_timeout, |connect, pool| {
        let (mut slow, mut other) = (connect(), connect());
        slow.write_all(&[&request(NBD_CMD_WRITE, LARGE)[..], &[0]].concat()).unwrap();
        wait_until_held(pool);
        other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        for piece in vec![0; LARGEST - 1].chunks(LARGEST / 16) {
            std::thread::sleep(pause);
            slow.write_all(piece).unwrap();
        }
        slow.read_exact(&mut [0; 16]).unwrap();
        // And the other way round.
        other.read_exact(&mut [0; 16]).unwrap();
        slow.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        for piece in vec![0; LARGEST].chunks_mut(LARGEST / 16) {
            std::thread::sleep(pause);
            other.read_exact(piece).unwrap();
        }
        slow.read_exact(&mut vec![0; 16 + LARGEST]).unwrap();
    });
}

#[test]
fn who_waits_for_the_disk_with_memory_that_others_wait_for_is_served() {
    let stall_timeout = Duration::from_secs(5);
    serve_clients(stall_timeout * 3 / 2, stall_timeout, |connect, pool| {
        let (mut one, mut other) = (connect(), connect());
        one.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        wait_until_held(pool);
        other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        let mut reply = vec![0; 16 + LARGEST];
        one.read_exact(&mut reply).unwrap();
        other.read_exact(&mut reply).unwrap();
    });
}

const NEVER: Duration = Duration::from_secs(1000);

/// Like [`serve_clients`], without a minimum rate for clients.
fn share_memory(talk: impl FnOnce(&dyn Fn() -> UnixStream, &Pool)) {
    serve_clients(Duration::ZERO, NEVER, talk);
}

/// The client that holds the memory sends the start of its next request together with the end of the previous one.
#[test]
fn who_was_refused_first_is_served_before_who_has_the_memory() {
    share_memory(|connect, pool| {
        let (mut slow, mut other) = (connect(), connect());
        slow.write_all(&[&request(NBD_CMD_WRITE, LARGE)[..], &vec![0; LARGEST - 1]].concat()).unwrap();
        wait_until_held(pool);
        other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        wait_for(pool, 1);
        slow.write_all(&[&[0][..], &request(NBD_CMD_WRITE, LARGE), &[0; 100]].concat()).unwrap();
        other.read_exact(&mut vec![0; 16 + LARGEST]).unwrap();
        slow.read_exact(&mut [0; 16]).unwrap();
        slow.write_all(&vec![0; LARGEST - 100]).unwrap();
        slow.read_exact(&mut [0; 16]).unwrap();
    });
}

/// The first one that waits leaves; so does one that has sent a part of a header.
#[test]
fn who_leaves_does_not_hold_up_those_who_wait_behind() {
    share_memory(|connect, pool| {
        let [mut slow, mut first, mut part, mut next] = [(); 4].map(|()| connect());
        slow.write_all(&[&request(NBD_CMD_WRITE, LARGE)[..], &vec![0; LARGEST - 1]].concat()).unwrap();
        wait_until_held(pool);
        first.write_all(&request(NBD_CMD_WRITE, LARGE)).unwrap();
        part.write_all(&request(NBD_CMD_READ, LARGE)[..27]).unwrap();
        wait_for(pool, 1);
        next.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
        wait_for(pool, 2);
        drop(first);
        slow.write_all(&[0]).unwrap();
        next.read_exact(&mut vec![0; 16 + LARGEST]).unwrap();
        part.write_all(&request(NBD_CMD_READ, LARGE)[27..]).unwrap();
        part.read_exact(&mut vec![0; 16 + LARGEST]).unwrap();
    });
}

/// Under TLS, only plain text counts. A client that sends it slowly, or sends the bytes of a record slowly, is disconnected.
#[test]
fn who_trickles_under_tls_is_hung_up_on() {
    let stall_timeout = Duration::from_millis(400);
    for each_byte_a_record in [true, false] {
        serve_with(Duration::ZERO, stall_timeout, true, |connect, pool| {
            let [slow, other] = [(), ()].map(|()| {
                let mut client = testing::start(connect());
                go(&mut client);
                client
            });
            let mut slow = testing::Records::of(slow);
            let begin = slow.record(&[&request(NBD_CMD_WRITE, LARGE)[..], &[0]].concat());
            slow.socket.write_all(&begin).unwrap();
            let whole = slow.record(&[0; 16 << 10]);
            let mut other = other;
            wait_until_held(pool);
            other.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
            wait_for(pool, 1);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let begin = Instant::now();
                    for byte in whole {
                        let sent = if each_byte_a_record { slow.record(&[0]) } else { vec![byte] };
                        if slow.socket.write_all(&sent).is_err() {
                            return;
                        }
                        std::thread::sleep(stall_timeout / 8);
                        assert!(begin.elapsed() < SOON, "it holds the memory for ever");
                    }
                });
                other.read_exact(&mut vec![0; 16 + LARGEST]).unwrap();
            });
        });
    }
}

/// The client closes the session with the same record batch as its last requests, and leaves the socket open.
#[test]
fn what_was_sent_before_the_end_of_the_session_is_answered() {
    serve_with(Duration::ZERO, NEVER, true, |connect, _| {
        for requests in [1, 40] {
            let mut client = testing::start(connect());
            go(&mut client);
            client.conn.writer().write_all(&request(NBD_CMD_READ, 4096).repeat(requests)).unwrap();
            client.conn.send_close_notify();
            let mut records = Vec::new();
            while client.conn.wants_write() {
                client.conn.write_tls(&mut records).unwrap();
            }
            client.sock.write_all(&records).unwrap();
            let mut replies = Vec::new();
            // The end of the session, else `UnexpectedEof`.
            client.read_to_end(&mut replies).unwrap();
            assert_eq!(replies.len(), requests * (16 + 4096));
            assert_eq!(client.sock.read(&mut [0]).unwrap(), 0, "the server closes the socket");
        }
    });
}

/// Requests are executed though the connection is cut without the end of the session.
#[test]
fn what_was_sent_before_the_session_is_cut_is_executed() {
    let disk = Arc::new(RamDisk::new(1 << 20, SectorSize::B512).unwrap());
    serve_disk(disk, NEVER, true, |connect, _| {
        let mut client = testing::start(connect());
        go(&mut client);
        let mut client = testing::Records::of(client);
        let write = client.record(&[&request(NBD_CMD_WRITE, 5)[..], b"bytes"].concat());
        client.socket.write_all(&write).unwrap();
        drop(client);
        let mut other = testing::start(connect());
        go(&mut other);
        let begin = Instant::now();
        let mut reply = [0; 16 + 5];
        while reply[16..] != *b"bytes" {
            assert!(begin.elapsed() < SOON, "it was not executed");
            other.write_all(&request(NBD_CMD_READ, 5)).unwrap();
            other.read_exact(&mut reply).unwrap();
        }
    });
}

/// Clients that write parts of the same sector as another one: one stops inside its payload, one does not receive the reply.
#[test]
fn who_stalls_does_not_keep_others_from_writing() {
    let disk = Arc::new(RamDisk::new(64 << 20, SectorSize::B512).unwrap());
    serve_disk(disk, NEVER, false, |connect, pool| {
        let connect = || negotiated(connect);
        let [mut silent, mut deaf, mut other] = [(); 3].map(|()| connect());
        // Larger than a connection's own memory, so that it shows that the server receives the payload.
        silent.write_all(&[&request_at(NBD_CMD_WRITE, 1, 4 << 20)[..], &[7; 100]].concat()).unwrap();
        wait_until_held(pool);
        // The reply to the read is more than the socket takes.
        let write = [&request_at(NBD_CMD_WRITE, 3, 1)[..], &[8]].concat();
        deaf.write_all(&[&request_at(NBD_CMD_READ, 0, 8 << 20)[..], &write].concat()).unwrap();
        let read = |other: &mut UnixStream, offset, len: usize| {
            other.write_all(&request_at(NBD_CMD_READ, offset, len as u32)).unwrap();
            let mut reply = vec![0; 16 + len];
            other.read_exact(&mut reply).unwrap();
            reply.split_off(16)
        };
        let begin = Instant::now();
        while read(&mut other, 3, 1) != [8] {
            assert!(begin.elapsed() < SOON, "it was not executed");
        }
        for (offset, data) in [(0, &[1; 512][..]), (5, &[2; 3]), ((4 << 20) - 5, &[3; 10])] {
            other
                .write_all(&[&request_at(NBD_CMD_WRITE, offset, data.len() as u32)[..], data].concat())
                .unwrap();
            other.read_exact(&mut [0; 16]).unwrap();
        }
        assert_eq!(read(&mut other, 3, 7), [1, 1, 2, 2, 2, 1, 1]);
    });
}

/// A disk whose queues break their promises.
struct Broken {
    disk: Arc<dyn Disk>,
    how: Breach,
}

#[derive(Clone, Copy, Debug)]
enum Breach {
    /// A completion has the tag of no request.
    WrongTag,
    /// Requests are refused though there are few.
    Full,
}

struct BrokenQueue {
    queue: Box<dyn DiskQueue>,
    how: Breach,
}

impl Disk for Broken {
    fn info(&self) -> &DiskInfo {
        self.disk.info()
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        Ok(Box::new(BrokenQueue { queue: self.disk.queue(config)?, how: self.how }))
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        self.disk.status(offset, limit)
    }
}

impl DiskQueue for BrokenQueue {
    fn push(&mut self, request: &paradisk_disk_formats::Request<'_>) -> Result<(), PushError> {
        match self.how {
            Breach::WrongTag => self.queue.push(request),
            Breach::Full => Err(PushError::Full),
        }
    }

    fn submit(&mut self) {
        self.queue.submit();
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        let before = out.len();
        self.queue.reap(out);
        out[before..].iter_mut().for_each(|completion| completion.tag ^= 1);
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.queue.event()
    }

    fn wait(&mut self) {
        self.queue.wait();
    }

    fn engine(&self) -> &'static str {
        self.queue.engine()
    }

    fn stats(&self) -> QueueStats {
        self.queue.stats()
    }
}

/// Each request has an answer, or the connection ends: no client waits for ever.
#[test]
fn what_a_queue_loses_fails_or_ends_the_connection() {
    for how in [Breach::WrongTag, Breach::Full] {
        let disk = Arc::new(NullDisk::new(LARGE.into(), SectorSize::B512).unwrap());
        let export = Export {
            name: String::new(),
            description: String::new(),
            disk: Arc::new(Broken { disk, how }),
            engine: Default::default(),
        };
        let (exports, stop) = (Exports::new(vec![export]).unwrap(), Stop::new().unwrap());
        std::thread::scope(|scope| {
            let (mut client, server) = UnixStream::pair().unwrap();
            let stream = Stream::new(server.into()).unwrap();
            scope.spawn(|| serve(stream, &exports, &stop, None));
            client.set_read_timeout(Some(SOON)).unwrap();
            client.read_exact(&mut [0; 18]).unwrap();
            client.write_all(b"\0\0\0\x03").unwrap();
            go(&mut client);
            client.write_all(&request(NBD_CMD_READ, 4096)).unwrap();
            let mut reply = [0; 16];
            match how {
                Breach::WrongTag => assert_eq!(client.read(&mut reply).unwrap(), 0, "there is no answer"),
                Breach::Full => {
                    client.read_exact(&mut reply).unwrap();
                    assert_eq!(reply[4..8], NBD_EIO.to_be_bytes());
                    // Their memory is not lost: a connection has it for two of these at a time.
                    for _ in 0..5 {
                        client.write_all(&request(NBD_CMD_READ, LARGE)).unwrap();
                        client.read_exact(&mut reply).unwrap();
                        assert_eq!(reply[4..8], NBD_EIO.to_be_bytes());
                    }
                }
            }
        });
    }
}
