//! Clients that disconnect at any point, send invalid bytes, or send without end. None of them harms the server, the disk, or
//! other clients.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paradisk_disk_formats::{
    Allocation, Disk, DiskInfo, DiskQueue, EngineKind, IoError, Layered, OpenError, OpenOptions, QueueConfig,
};
use paradisk_serve::Socket;
use paradisk_serve::nbd::{Export, Exports, Server};

use crate::client::*;
use crate::{MIB, Served, ram, sparse};

/// A RAM disk without a name.
fn exports(size: u64) -> Exports {
    let name = String::new();
    let export = Export { description: name.clone(), name, disk: ram(size), engine: Default::default() };
    Exports::new(vec![export]).unwrap()
}

/// Wait until a condition holds.
fn soon(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn who_leaves_inside_a_request_has_not_made_it() {
    let served = Served::ram();
    for structured in [false, true] {
        for (sent, payload) in [(1, 0), (27, 0), (28, 0), (28, 1), (28, 4095), (28, 100_000)] {
            let mut client = served.client(structured);
            let head = request(WRITE, 0, 1, 0, if payload > 4096 { 1 << 20 } else { 4096 });
            client.stream.write_all(&[&head[..sent], &vec![9; payload]].concat()).unwrap();
        }
    }
    assert_eq!(served.client(false).read(0, 1 << 20), Ok(vec![0; 1 << 20]));
}

#[test]
fn what_was_sent_before_the_farewell_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.raw");
    sparse(&path, 4 * MIB);
    let served = Served::disks(&[("", OpenOptions::new(&path).open().unwrap())]);
    let mut client = served.client(false);
    let writes = |data: u8| {
        let write = |number| [&request(WRITE, 0, number, number * 4096, 4096)[..], &[data; 4096]].concat();
        let mut all: Vec<u8> = (0..200).flat_map(write).collect();
        all.extend(request(DISC, 0, 0, 0, 0));
        // Requests after NBD_CMD_DISC are ignored.
        all.extend([&request(WRITE, 0, 1, 0, 512)[..], &[1; 512]].concat());
        all
    };
    client.stream.write_all(&writes(8)).unwrap();
    let mut replies = Vec::new();
    client.stream.read_to_end(&mut replies).unwrap();
    assert_eq!(replies.len(), 200 * 16);
    assert!(std::fs::read(&path).unwrap()[..200 * 4096].iter().all(|byte| *byte == 8));

    // The client disconnects without receiving the replies.
    let mut client = served.client(false);
    client.stream.write_all(&writes(9)).unwrap();
    drop(client);
    soon(|| std::fs::read(&path).unwrap()[..200 * 4096].iter().all(|byte| *byte == 9));
}

#[test]
fn who_does_not_receive_is_not_read_from_and_others_are_served() {
    let disk = ram(64 * MIB);
    // The client may not delay the end of the server.
    let mut served = Served::waiting(&[("", disk)], EngineKind::default(), Duration::from_millis(100));
    let mut deaf = served.client(false);
    deaf.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    // Far more requests than the server and the socket's buffers accept without a reply being received.
    let reads = request(READ, 0, 1, 0, 1 << 20).repeat(100_000);
    assert!(deaf.stream.write_all(&reads).is_err(), "the server took requests without end");
    let mut other = served.client(true);
    other.write(0, 0, &[3; 4096]).unwrap();
    assert_eq!(other.read(0, 4096), Ok(vec![3; 4096]));
    // The client still gets its replies when it receives them.
    assert_eq!(deaf.reply(1 << 20).error, 0);
    served.stop();
}

#[test]
fn who_leaves_with_replies_on_their_way_is_forgotten() {
    let mut served = Served::ram();
    for _ in 0..20 {
        let mut client = served.client(true);
        client.stream.write_all(&request(READ, 0, 1, 0, 1 << 20).repeat(50)).unwrap();
        drop(client);
    }
    assert_eq!(served.client(false).read(0, 512), Ok(vec![0; 512]));
    served.stop();
}

#[test]
fn a_request_that_is_none_ends_the_connection() {
    let served = Served::ram();
    let read = request(READ, 0, 1, 0, 512);
    for bytes in [
        vec![0; 28],
        request(WRITE, 0, 1, 0, (32 << 20) + 1),
        request(WRITE, 0, 1, 0, u32::MAX),
        // The payload is one byte short: the write takes the first byte of the next request.
        [&request(WRITE, 0, 1, 0, 512)[..], &[0; 511], &read, &read].concat(),
    ] {
        let mut client = served.client(false);
        client.stream.write_all(&bytes).unwrap();
        let mut rest = Vec::new();
        // The server may reset the connection: it has not read all. A timeout is another error.
        let ended = client.stream.read_to_end(&mut rest).or_else(|error| match error.kind() {
            std::io::ErrorKind::ConnectionReset => Ok(0),
            _ => Err(error),
        });
        assert!(ended.is_ok() && rest.len() <= 16, "{ended:?}, {} bytes", rest.len());
    }
    assert_eq!(served.client(false).read(512, 512), Ok(vec![0; 512]));
}

#[test]
fn noise_at_any_point_does_no_harm() {
    let served = Served::ram();
    let mut state = 7u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let next = |_| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    };
    for round in 0..150 {
        let mut stream = match round % 3 {
            0 => UnixStream::connect(served.socket()).unwrap(),
            1 => Client::greeted(&served.socket()).stream,
            _ => served.client(round % 2 == 0).stream,
        };
        let mut talk = noise(200);
        if round % 3 == 1 {
            talk.splice(..0, *b"IHAVEOPT\0\0\0");
        } else if round % 3 == 2 {
            // Requests of all kinds with nonsense in them.
            for kind in 0..9 {
                let mut head = request(kind, 0, 0, 0, 0);
                let from = if round % 2 == 0 { 8 } else { 4 };
                head[from..].copy_from_slice(&noise(28 - from));
                talk.splice(..0, head);
            }
        }
        let _ = stream.write_all(&talk);
    }
    soon(|| UnixStream::connect(served.socket()).is_ok());
    let mut client = served.client(true);
    assert_eq!(client.read(0, 512).map(|data| data.len()), Ok(512));
}

#[test]
fn a_crowd_is_bounded_and_goes_away() {
    let served = Served::ram();
    let client = || {
        let mut client = served.client(false);
        // A client has its slot when a request is served.
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
        client
    };
    let crowd: Vec<Client> = (0..64).map(|_| client()).collect();
    let mut one_more = Client::greeted(&served.socket());
    // No slot is left. No client frees one, because all clients of a Unix socket count as one peer.
    one_more.stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    let mut reply = Vec::new();
    let _ = one_more.stream.write_all(&request(READ, 0, 1, 0, 512));
    let _ = one_more.stream.read_to_end(&mut reply);
    assert!(reply.len() <= 134, "it was served");
    drop(crowd);
    soon(|| {
        let mut stream = UnixStream::connect(served.socket()).unwrap();
        stream.read(&mut [0; 18]).is_ok_and(|len| len > 0)
    });
}

/// Any number of clients that connect and send nothing: others are served.
#[test]
fn silent_clients_lock_nobody_out() {
    let served = Served::ram();
    let mut silent: Vec<UnixStream> = Vec::new();
    for _ in 0..3 {
        silent.extend((0..64).map(|_| UnixStream::connect(served.socket()).unwrap()));
        let mut client = served.client(false);
        assert_eq!(client.read(0, 512).map(|data| data.len()), Ok(512));
    }
}

/// An address that has all connections loses some of them to another address.
#[test]
fn one_address_does_not_lock_out_another() {
    use std::net::{SocketAddr, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, exports(64 * MIB)).unwrap();
    let to = server.local_addr().unwrap();
    let connect = |from: &str| {
        let from: SocketAddr = format!("{from}:0").parse().unwrap();
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
        let socket = socket.unwrap();
        rustix::net::bind(&socket, &from).unwrap();
        rustix::net::connect(&socket, &to).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.read_exact(&mut [0; 18]).ok()?;
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").ok()?;
        stream.read_exact(&mut [0; 10]).ok()?;
        stream.write_all(&request(READ, 0, 1, 0, 512)).ok()?;
        stream.read_exact(&mut [0; 16 + 512]).ok()?;
        Some(stream)
    };
    let crowd: Vec<_> = (0..64).map(|_| connect("127.0.0.1").unwrap()).collect();
    assert!(connect("127.0.0.1").is_none(), "it has all there are");
    let others: Vec<_> = (0..8).map(|_| connect("127.0.0.2").unwrap()).collect();
    drop((crowd, others));
    server.stop();
}

/// The buffers of all connections together are bounded, whatever the clients request, and each request is served in the end.
#[test]
fn memory_is_shared_by_all_connections() {
    const CLIENTS: usize = 12;
    const LARGE: u32 = 16 << 20;
    let budget = 48 * MIB;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let exports = exports(64 * MIB).with_memory(budget as usize);
    let server = Server::start(Socket::listen(&socket).unwrap(), exports).unwrap();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::of(&socket, "", false)).collect();
    // Each requests 64 MiB, and receives nothing.
    for client in &mut clients {
        client.stream.write_all(&request(READ, 0, 1, 0, LARGE).repeat(4)).unwrap();
    }
    let mut other = Client::of(&socket, "", false);
    other.write(0, 0, &[7; 4096]).unwrap();
    assert_eq!(other.read(0, 4096), Ok(vec![7; 4096]), "small requests are served all the time");
    // A reply begins only after its request has got a buffer.
    let begun = |client: &&Client| rustix::io::ioctl_fionread(&client.stream).unwrap() > 0;
    let begun = || clients.iter().filter(begun).count();
    soon(|| begun() > 0);
    std::thread::sleep(Duration::from_millis(300));
    assert!(begun() <= (budget / u64::from(LARGE)) as usize + 1, "{}", begun());
    // Clients that disconnect free their buffers. Clients that receive are all served.
    clients.truncate(CLIENTS - 2);
    let receiving = clients.into_iter().map(|mut client| {
        std::thread::spawn(move || {
            for _ in 0..4 {
                assert_eq!(client.reply(LARGE as usize).error, 0);
            }
        })
    });
    let receiving: Vec<_> = receiving.collect();
    receiving.into_iter().for_each(|client| client.join().unwrap());
    server.stop();
}

#[test]
fn an_export_that_is_not_there_is_nobodys() {
    const UNKNOWN: u32 = 0x8000_0006;
    let served = Served::disks(&[("one", ram(MIB))]);
    let long = "x".repeat(5000);
    let mut client = Client::greeted(&served.socket());
    for name in ["two", "ONE", "one\0", "../one"] {
        for option in [INFO, GO] {
            let answers = client.option(option, &[&string(name)[..], &[0, 0]].concat());
            assert_eq!((answers.len(), answers[0].0), (1, UNKNOWN), "{name}");
        }
    }
    assert_ne!(client.option(GO, &[&string(&long)[..], &[0, 0]].concat())[0].0, ACK);
    assert_eq!(client.option(GO, &[&string("one")[..], &[0, 0]].concat()).last().unwrap().0, ACK);
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn a_server_that_stops_waits_for_nobody_who_is_idle() {
    let mut served = Served::ram();
    let _negotiating = Client::greeted(&served.socket());
    let _silent = UnixStream::connect(served.socket()).unwrap();
    let mut idle = served.client(false);
    served.stop();
    assert!(idle.hung_up());
    assert!(!served.socket().exists());
}

/// The time for the last replies is the client's, not the disk's.
#[test]
fn a_server_that_stops_answers_what_the_disk_completes_late() {
    const LAST: Duration = Duration::from_millis(20);
    let disk = Arc::new(Layered::new(ram(MIB)).delayed(50 * LAST));
    let mut served = Served::waiting(&[("", disk)], EngineKind::default(), LAST);
    let mut client = served.client(false);
    client.send(READ, 0, 1, 0, 4096);
    // It is too large: it is answered at once, and taken after the first.
    client.send(READ, 0, 2, 0, 64 << 20);
    assert_eq!(client.reply(0).cookie, 2);
    served.stop();
    assert_eq!(client.reply(4096), Reply { cookie: 1, error: 0, data: vec![0; 4096] });
    assert!(client.hung_up());
}

/// A disk that takes 1 ms for each block status, on the caller's thread.
struct Thorough(Arc<dyn Disk>);

impl Disk for Thorough {
    fn info(&self) -> &DiskInfo {
        self.0.info()
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        self.0.queue(config)
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        std::thread::sleep(Duration::from_millis(1));
        self.0.status(offset, limit)
    }
}

#[test]
fn a_server_that_stops_waits_for_nobody_who_always_has_more() {
    let mut served = Served::disks(&[("", Arc::new(Thorough(ram(MIB))))]);
    let mut client = served.client(true);
    let mut receiver = client.stream.try_clone().unwrap();
    let receiving = std::thread::spawn(move || std::io::copy(&mut receiver, &mut std::io::sink()));
    // Requests come faster than the server answers them: the socket is never empty.
    let requests = request(BLOCK_STATUS, 0, 1, 0, 512).repeat(10_000);
    let sending = std::thread::spawn(move || while client.stream.write_all(&requests).is_ok() {});
    std::thread::sleep(Duration::from_millis(300));
    served.stop();
    sending.join().unwrap();
    let _ = receiving.join().unwrap();
}

#[test]
fn an_abandoned_socket_is_replaced_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let start = || Socket::listen(&path).and_then(|socket| Server::start(socket, exports(MIB)));
    drop(UnixListener::bind(&path).unwrap());
    let server = start().unwrap();
    assert!(start().is_err(), "one server at a time");
    assert_eq!(Client::of(&path, "", false).size, MIB);
    server.stop();
    std::fs::write(&path, "precious").unwrap();
    assert!(start().is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}
