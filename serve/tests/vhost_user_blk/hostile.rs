//! Clients that violate the protocol. After each, a client that keeps to it is served.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::VhostUserMemoryRegionInfo;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserInflight;
use vhost::{VhostBackend, VringConfigData};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

use crate::client::*;
use crate::rig::Rig;

const SOON: Duration = Duration::from_secs(60);
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Requests that a queue completes before it is broken.
const DONE: u32 = 3;

fn still_serves(rig: &Rig) {
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    client.guest.fill(0, 0, 0x77, 4096);
    assert_eq!(client.guest.run(0, OUT, 16, 4096), 0);
    assert_eq!(client.guest.run(0, IN, 16, 4096), 0);
}

/// Rings and chains that cannot be answered: the queue stops, and the server signals the error eventfd.
#[test]
fn broken_rings() {
    type Break = fn(&mut Guest);
    /// Address, length, flags, next.
    type Fields = (u64, u32, u16, u16);
    let head = |guest: &mut Guest, descriptors: &[Fields]| {
        for (index, &(address, len, flags, next)) in descriptors.iter().enumerate() {
            guest.put_descriptor(guest.at(0, 16 * index as u64), address, len, flags, next);
        }
        guest.put_head(0, 0);
    };
    let cases: [(&str, Break); 5] = [
        ("more than the ring has", |guest| guest.rings[0].avail = 300 + DONE as u16),
        ("a head outside the table", |guest| guest.put_head(0, 256)),
        ("the last head", |guest| guest.put_head(0, u16::MAX)),
        ("nothing at all", |guest| {
            guest.put_descriptor(guest.at(0, 0), 0, 0, 0, 0);
            guest.put_head(0, 0);
        }),
        ("a table of no whole descriptors", |guest| {
            guest.put_descriptor(guest.at(0, 0), 0, 17, INDIRECT, 0);
            guest.put_head(0, 0);
        }),
    ];
    let chains: [(&str, &[Fields]); 6] = [
        ("a loop", &[(DATA, 16, NEXT, 1), (DATA, 16, NEXT, 0)]),
        ("next outside the table", &[(DATA, 16, NEXT, 999)]),
        ("nothing to write", &[(DATA, 16, 0, 0)]),
        ("a table in a table", &[(0x100, 16, INDIRECT, 0)]),
        ("status outside memory", &[(DATA, 16, NEXT, 1), (1 << 40, 1, WRITE, 0)]),
        ("a table outside memory", &[(u64::MAX - 15, 16, INDIRECT, 0)]),
    ];
    let rig = Rig::new(1);
    let connect = || {
        let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
        for _ in 0..DONE {
            assert_eq!(client.guest.run(0, OUT, 0, 4096), 0);
        }
        client
    };
    let expect_broken = |name: &str, guest: &mut Guest| {
        guest.publish(0);
        guest.rings[0].kick.write(1).unwrap();
        assert!(signalled(&guest.rings[0].err, SOON), "{name}: no error");
    };
    for (name, spoil) in cases {
        let mut client = connect();
        spoil(&mut client.guest);
        expect_broken(name, &mut client.guest);
        // The server returns the index at which it stopped.
        assert_eq!(client.frontend.get_vring_base(0).unwrap(), DONE, "{name}");
        drop(client);
        still_serves(&rig);
    }
    for (name, descriptors) in chains {
        let mut client = connect();
        if name == "a table in a table" {
            client.guest.put_descriptor(GuestAddress(0x100), 0x100, 16, INDIRECT, 0);
        }
        head(&mut client.guest, descriptors);
        expect_broken(name, &mut client.guest);
        // A request whose status could not be stored counts as taken: it must not be repeated.
        let done = DONE + u32::from(name == "status outside memory");
        assert_eq!(client.frontend.get_vring_base(0).unwrap(), done, "{name}");
        drop(client);
        still_serves(&rig);
    }
}

/// The requests before a chain that cannot be processed complete, and are not repeated when the queue continues.
#[test]
fn a_broken_queue_says_where_it_stands() {
    for tracked in [false, true] {
        let rig = Rig::new(1);
        let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
        if tracked {
            client.track();
        }
        let guest = &mut client.guest;
        for slot in 0..5 {
            guest.fill(0, slot, 1 + slot as u8, 4096);
            guest.add(0, slot, OUT, 0, 4096);
        }
        guest.put_head(0, u16::MAX);
        guest.publish(0);
        assert!(signalled(&guest.rings[0].err, SOON));
        assert!(signalled(&guest.rings[0].call, SOON), "completions were shown");
        assert_eq!(guest.take(0).len(), 5, "tracked: {tracked}");
        assert_eq!(client.frontend.get_vring_base(0).unwrap(), 5);
        // A valid request replaces the chain at the same index. Its data stay: no earlier write is repeated after it.
        let guest = &mut client.guest;
        guest.rings[0].avail -= 1;
        guest.fill(0, 7, 0x77, 4096);
        guest.add(0, 7, OUT, 0, 4096);
        client.start(0);
        let guest = &mut client.guest;
        guest.rings[0].kick.write(1).unwrap();
        assert_eq!(guest.wait(0, 1), [(7, 0)], "tracked: {tracked}");
        assert_eq!(guest.run(0, IN, 0, 4096), 0);
        assert_eq!(guest.bytes(0, 0, 4096), [0x77; 4096]);
        assert_eq!(client.frontend.get_vring_base(0).unwrap(), 7);
    }
}

/// An invalid request in a chain that can be answered gets an error status.
#[test]
fn requests_that_make_no_sense_are_answered() {
    let rig = Rig::new(1);
    let mut client =
        Client::connect(&rig.socket(), Guest::new(Shape { indirect: false, ..Shape::default() }));
    let guest = &mut client.guest;
    for (request_type, sector, len, status) in [
        (IN, u64::MAX, 4096, 1),
        (IN, 64 << 11, 512, 1),
        (IN, 0, 513, 1),
        (OUT, 0, 0, 1),
        (99, 0, 512, 2),
        (WRITE_ZEROES, 0, 15, 1),
        (DISCARD, 0, 0, 1),
    ] {
        assert_eq!(guest.run(0, request_type, sector, len), status, "{request_type} {sector} {len}");
    }
    // Data outside memory, across the end of a region, and across the end of the address space.
    for address in [1 << 40, DATA + 0x200_0000 - 512, u64::MAX - 511] {
        guest.add(0, 0, IN, 0, 1024);
        guest.put_descriptor(guest.at(0, 16), address, 1024, NEXT | WRITE, 2);
        guest.publish(0);
        assert_eq!(guest.wait(0, 1), [(0, 1)], "{address:#x}");
    }
}

#[test]
fn messages_that_make_no_sense_end_their_client_alone() {
    let rig = Rig::new(1);
    let bad: [fn(&mut Client) -> bool; 12] = [
        |client| client.frontend.set_features(1 << 60).is_err(),
        |client| client.frontend.set_vring_num(0, 100).is_err(),
        |client| client.frontend.set_vring_num(0, 2048).is_err(),
        |client| client.frontend.get_vring_base(0).is_ok() && client.frontend.set_vring_base(0, 5).is_err(),
        |client| {
            let config =
                VringConfigData { queue_max_size: 256, queue_size: 256, ..VringConfigData::default() };
            client.frontend.set_vring_addr(0, &config).is_err()
        },
        |client| {
            // No rings fit between here and the end of the region.
            let end = client.guest.memory.get_host_address(client.guest.at(15, 0x3_fff0)).unwrap() as u64;
            let config = VringConfigData {
                queue_max_size: 256,
                queue_size: 256,
                desc_table_addr: end,
                avail_ring_addr: end,
                used_ring_addr: end,
                ..VringConfigData::default()
            };
            client.frontend.set_vring_addr(0, &config).is_err()
        },
        |client| {
            let mut regions = client.regions();
            regions[1].guest_phys_addr = 4096;
            client.frontend.set_mem_table(&regions).is_err()
        },
        |client| {
            let mut regions = client.regions();
            regions[1].memory_size += 4096;
            client.frontend.set_mem_table(&regions).is_err()
        },
        |client| {
            let mut regions = client.regions();
            regions[1].guest_phys_addr = u64::MAX - 4095;
            client.frontend.set_mem_table(&regions).is_err()
        },
        |client| {
            let (file, inflight) = (memfd(4096), VhostUserInflight::new(4096, 0, 1, 256));
            client.frontend.set_inflight_fd(&inflight, file.as_raw_fd()).is_err()
        },
        |client| {
            let (file, inflight) = (memfd(1 << 20), VhostUserInflight::new(1 << 20, 0, 9, 256));
            client.frontend.set_inflight_fd(&inflight, file.as_raw_fd()).is_err()
        },
        |client| {
            let region =
                VhostUserMemoryRegionInfo { guest_phys_addr: 77, memory_size: 4096, ..client.regions()[0] };
            client.frontend.remove_mem_region(&region).is_err()
        },
    ];
    for (index, bad) in bad.into_iter().enumerate() {
        let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
        // The base of a running queue cannot be set; here it is stopped, so it can.
        let refused = bad(&mut client);
        assert_eq!(refused, index != 3, "{index}");
        drop(client);
        still_serves(&rig);
    }
}

#[test]
fn bytes_that_are_no_messages() {
    let rig = Rig::new(1);
    let mut seed = 0x1234_5678_9abc_def0u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..300 {
        let mut stream = UnixStream::connect(rig.socket()).unwrap();
        let mut bytes = Vec::new();
        for _ in 0..1 + next() % 4 {
            let code = (next() % 45) as u32;
            let size = [0, 8, 12, 40, 4096, u32::MAX, (next() % 64) as u32][next() as usize % 7];
            let flags = [1, 9, 5, next() as u32][next() as usize % 4];
            for word in [code, flags, size] {
                bytes.extend(word.to_le_bytes());
            }
            let body = (size % 5000).min((next() % 300) as u32);
            bytes.extend((0..body).map(|_| next() as u8 & [0, 1, 0xff][round % 3]));
        }
        bytes.truncate(bytes.len() - next() as usize % 12);
        // The server may disconnect before all is sent.
        let _ = stream.write_all(&bytes);
        drop(stream);
    }
    still_serves(&rig);
}

/// Descriptors of messages that take none, or fewer, are closed when the client is disconnected.
#[test]
fn descriptors_are_not_kept() {
    const NAME: &str = "descriptors-that-are-counted";
    let rig = Rig::new(1);
    let memfd = rustix::fs::memfd_create(NAME, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memfd, 8192).unwrap();
    let (_, socket) = UnixStream::pair().unwrap();
    // GET_FEATURES, SET_OWNER, SET_MEM_TABLE, SET_INFLIGHT_FD, SET_VRING_KICK, SET_BACKEND_REQ_FD, ADD_MEM_REG, and an unknown
    // one. The last descriptor is a socket.
    for request in [1u32, 3, 5, 32, 12, 21, 37, 99] {
        for count in [1, 2, 8, 33] {
            let stream = UnixStream::connect(rig.socket()).unwrap();
            let mut fds = vec![memfd.as_fd(); count];
            fds.push(socket.as_fd());
            let message = [request, 1, 8, 1, 0].map(u32::to_le_bytes).concat();
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(34))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
            sendmsg(&stream, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // Until the server disconnects.
            let _ = (&stream).read_to_end(&mut Vec::new());
        }
    }
    // One client is served at a time: when this one is served, the server has closed the descriptors of the others.
    still_serves(&rig);
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    assert_eq!(links.filter(|link| link.to_string_lossy().contains(NAME)).count(), 1);
}

#[test]
fn a_client_that_waits_is_served_when_the_first_leaves() {
    let rig = Rig::new(1);
    let first = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    let socket = rig.socket();
    let second = std::thread::spawn(move || {
        Client::connect(&socket, Guest::new(Shape::default())).guest.run(0, IN, 0, 4096)
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!second.is_finished());
    drop(first);
    assert_eq!(second.join().unwrap(), 0);
}

/// A region of memory is added and removed while the queue runs.
#[test]
fn memory_is_added_and_removed() {
    const EXTRA: u64 = 2 << 32;
    let rig = Rig::new(1);
    let mut client =
        Client::connect(&rig.socket(), Guest::new(Shape { indirect: false, ..Shape::default() }));
    client.guest.fill(0, 0, 3, 4096);
    assert_eq!(client.guest.run(0, OUT, 0, 4096), 0);
    assert!(client.frontend.get_max_mem_slots().unwrap() > 32);
    let mapping = MmapRegion::<()>::from_file(FileOffset::new(memfd(1 << 20), 0), 1 << 20).unwrap();
    let region = GuestRegionMmap::new(mapping, GuestAddress(EXTRA)).unwrap();
    let info = VhostUserMemoryRegionInfo::from_guest_region(&region).unwrap();
    let read = |guest: &mut Guest| {
        guest.add(0, 0, IN, 0, 4096);
        guest.put_descriptor(guest.at(0, 16), EXTRA + 4096, 4096, NEXT | WRITE, 2);
        guest.publish(0);
        guest.wait(0, 1)[0].1
    };
    for _ in 0..20 {
        assert_eq!(read(&mut client.guest), 1);
        client.frontend.add_mem_region(&info).unwrap();
        assert_eq!(read(&mut client.guest), 0);
        assert_eq!(region.read_obj::<u8>(vm_memory::MemoryRegionAddress(8191)).unwrap(), 3);
        assert!(region.len() == info.memory_size);
        client.frontend.remove_mem_region(&info).unwrap();
    }
    // The whole table is sent once more, as QEMU does.
    client.share();
    assert_eq!(read(&mut client.guest), 1);
}

/// The file of shared memory is truncated while it is in use.
#[test]
fn memory_that_shrinks() {
    let rig = Rig::new(1);
    for cut in 0..3 {
        let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
        client.track();
        assert_eq!(client.guest.run(0, IN, 0, 4096), 0);
        let address = [GuestAddress(DATA), GuestAddress(RINGS), GuestAddress(RINGS)][cut];
        let region = client.guest.memory.find_region(address).unwrap();
        let file = region.file_offset().unwrap().file().try_clone().unwrap();
        // The data; the rings with headers and tables; or headers and tables alone.
        client.guest.add(0, 0, IN, 0, 4096);
        client.guest.publish(0);
        file.set_len([0, 0, 0x1_0000][cut]).unwrap();
        client.guest.rings[0].kick.write(1).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        if cut == 0 {
            // The rings are still there: the read fails, or completed before the file was truncated.
            let status = client.guest.wait(0, 1)[0].1;
            assert!(status <= 1);
            client.guest.add(0, 0, OUT, 0, 4096);
            client.guest.publish(0);
            client.guest.wait(0, 1);
        }
        // This waits for the queue to stop.
        let _ = client.frontend.get_vring_base(0);
        drop(client);
        still_serves(&rig);
    }
}

/// The length of a sparse file costs the client nothing, and the server the address space in which it allocates memory.
#[test]
fn sparse_memory_does_not_fill_the_address_space() {
    const SIZE: u64 = 16 << 40;
    let rig = Rig::new(1);
    let file = memfd(SIZE);
    let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
    let region = |index| VhostUserMemoryRegionInfo {
        guest_phys_addr: SIZE * index,
        userspace_addr: SIZE * index,
        memory_size: SIZE,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    };
    // The guest's own memory is a part of the 64 TiB.
    for index in 1..4 {
        client.frontend.add_mem_region(&region(index)).unwrap();
    }
    client.frontend.add_mem_region(&region(4)).unwrap_err();
    drop(client);
    rig.await_refusal("memory exceeds 70368744177664 bytes");
    still_serves(&rig);
}

/// A send on a socket of another family sleeps while the client keeps the socket locked.
#[test]
fn the_backchannel_is_a_unix_stream_socket() {
    let rig = Rig::new(1);
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    for other in [tcp.as_fd(), datagrams.as_fd(), reader.as_fd(), memfd(4096).as_fd()] {
        let mut client = Client::connect(&rig.socket(), Guest::new(Shape::default()));
        client.frontend.set_backend_request_fd(&other.as_raw_fd()).unwrap_err();
        drop(client);
        rig.await_refusal("expected a Unix stream socket");
    }
    still_serves(&rig);
}
