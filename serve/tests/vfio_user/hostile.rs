//! Messages that no client should send: each is answered with an error or ends that client's connection, and the next client
//! is served.

use std::io::Read;
use std::os::fd::AsFd;

use paradisk_devices::AdapterKind;
use paradisk_serve::vfio_user::spec::{self, CONFIG_REGION, Header, NO_REPLY, TYPE_REPLY, command};
use paradisk_serve::vfio_user::{Ended, Note};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::client::Client;
use crate::drivers::serve;
use crate::vmm::{Habits, MEMORY, Vmm, new_event};

fn header(number: u16, size: u32) -> Header {
    Header { command: number.into(), size: size.into(), ..Header::default() }
}

/// Send bytes on a new connection; `after_version`: in a session. Returns why the server ended the connection.
fn ends_with(after_version: bool, bytes: &[u8], fds: usize) -> Ended {
    let served = serve(AdapterKind::Pvscsi);
    let mut client =
        if after_version { Client::new(&served.socket) } else { Client::connect(&served.socket) };
    let event = new_event();
    let fds: Vec<_> = (0..fds).map(|_| event.as_fd()).collect();
    client.send_bytes(bytes, &fds).unwrap();
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    // Until the server disconnects.
    let _ = client.stream.read_to_end(&mut Vec::new());
    let mut next = Client::new(&served.socket);
    assert_eq!(next.read(CONFIG_REGION, 0, 2).unwrap(), [0xad, 0x15]);
    drop(next);
    let (notes, _) = served.stop();
    match notes.get(..2) {
        Some([Note::Connected, Note::Left(ended)]) => *ended,
        _ => panic!("{notes:?}"),
    }
}

#[test]
fn connections_without_a_message_that_could_be_one_end() {
    let version = header(command::VERSION, 20);
    assert_eq!(ends_with(false, &[], 0), Ended::Closed);
    assert_eq!(ends_with(false, &version.as_bytes()[..15], 0), Ended::Truncated);
    assert_eq!(ends_with(false, version.as_bytes(), 0), Ended::Truncated);
    for size in [0, 15, 16385, u32::MAX] {
        assert_eq!(ends_with(false, header(command::VERSION, size).as_bytes(), 0), Ended::Size(size));
        assert_eq!(ends_with(true, header(0xffff, size).as_bytes(), 0), Ended::Size(size));
    }
    assert_eq!(ends_with(true, header(command::GET_INFO, 32).as_bytes(), 65), Ended::Descriptors);
    assert_eq!(ends_with(true, header(command::GET_INFO, 32).as_bytes(), 253), Ended::Descriptors);
}

#[test]
fn sessions_start_with_a_version() {
    let message =
        |number, payload: &[u8]| [header(number, 16 + payload.len() as u32).as_bytes(), payload].concat();
    for bytes in [
        message(command::GET_INFO, &[0; 16]),
        message(command::VERSION, &[]),
        message(command::VERSION, &[0, 0, 0]),
        message(command::VERSION, &[1, 0, 0, 0]),
        message(command::VERSION, b"\0\0\0\0{\"capabilities\":"),
        message(command::VERSION, &[&[0; 4][..], &[b'['; 10_000]].concat()),
        message(command::VERSION, b"\0\0\0\0\xff\xff"),
    ] {
        assert!(matches!(ends_with(false, &bytes, 0), Ended::Refused(_)), "{bytes:?}");
    }
}

#[test]
fn strange_capabilities_are_none() {
    for capabilities in
        ["", "{}", "[]", "1", r#"{"capabilities":7}"#, r#"{"capabilities":{"max_msg_fds":-1}}"#]
    {
        let served = serve(AdapterKind::Pvscsi);
        let mut client = Client::connect(&served.socket);
        let (reply, _) = client.version(capabilities).unwrap();
        assert_eq!(reply.last(), Some(&0));
        assert_eq!(client.request(command::VERSION, &[0; 4], &[]).unwrap_err(), Errno::NOTSUP, "twice");
        let multi = [0; 32];
        let refused = client.request(command::REGION_WRITE_MULTI, &multi, &[]).unwrap_err();
        assert_eq!(refused, Errno::NOTSUP, "it was not agreed on");
        // Without `max_msg_fds`, a message has at most one descriptor: only the first doorbell is offered.
        assert_eq!(client.io_fds(0).len(), 1);
    }
}

#[test]
fn unknown_commands_are_skipped_whole() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    for number in [0, 11, 12, 14, 16, 17, 18, 99, u16::MAX] {
        for len in [0, 1, 16000] {
            let refused = client.request(number, &vec![0xff; len], &[]).unwrap_err();
            assert_eq!(refused, Errno::NOTSUP, "{number}");
        }
    }
    // The server ignores a reply without a command, and answers no command with NO_REPLY, not even after an error.
    client.send(command::GET_INFO, TYPE_REPLY, &[0; 64], &[]);
    client.send(99, NO_REPLY, &[], &[]);
    client.send(command::REGION_READ, NO_REPLY, &[0xff; 16], &[]);
    assert_eq!(client.read(CONFIG_REGION, 0, 2).unwrap(), [0xad, 0x15]);
}

#[test]
fn short_payloads_are_refused() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    for (number, size) in [
        (command::DMA_MAP, 32),
        (command::DMA_UNMAP, 24),
        (command::GET_INFO, 16),
        (command::GET_REGION_INFO, 32),
        (command::GET_REGION_IO_FDS, 16),
        (command::GET_IRQ_INFO, 16),
        (command::SET_IRQS, 20),
        (command::REGION_READ, 16),
        (command::REGION_WRITE, 16),
        (command::REGION_WRITE_MULTI, 8),
    ] {
        for len in 0..size {
            assert_eq!(
                client.request(number, &vec![0; len], &[]).unwrap_err(),
                Errno::INVAL,
                "{number} {len}"
            );
        }
        // All ones are out of range in each field but `argsz`, the only one that GET_INFO reads.
        let refused = client.request(number, &vec![0xff; size], &[]);
        assert!(refused.is_err() || number == command::GET_INFO, "{number}");
    }
}

#[test]
fn regions_have_ends() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    let sizes: Vec<_> = (0..9).map(|index| client.region_info(index).unwrap().size.get()).collect();
    assert_eq!(sizes[CONFIG_REGION as usize], 256);
    assert!(sizes[0] >= 0x4000 && sizes[6] == 0 && sizes[8] == 0, "{sizes:?}");
    assert_eq!(client.region_info(9), Err(Errno::INVAL));
    for (region, size) in (0..).zip(sizes).chain([(9, 0), (u32::MAX, 0)]) {
        // Configuration space may be read up to the size of PCI Express.
        let size = if region == CONFIG_REGION { 4096 } else { size };
        for (offset, count) in
            [(size, 1), (size.wrapping_sub(3), 4), (u64::MAX, 1), (u64::MAX - 3, 4), (0, 0)]
        {
            assert_eq!(client.read(region, offset, count).unwrap_err(), Errno::INVAL, "{region} {offset:#x}");
            let data = vec![0; count as usize];
            assert_eq!(client.write(region, offset, &data, false), Err(Errno::INVAL), "{region} {offset:#x}");
        }
    }
    for count in [4097, 16384, u32::MAX] {
        let access = spec::RegionAccess { offset: 0.into(), region: 0.into(), count: count.into() };
        for number in [command::REGION_READ, command::REGION_WRITE] {
            assert_eq!(client.request(number, access.as_bytes(), &[]).unwrap_err(), Errno::INVAL, "{count}");
        }
    }
    // Inside a region, any offset and length is valid: the server splits the access.
    let whole = client.read(CONFIG_REGION, 0, 256).unwrap();
    for (offset, count) in [(1, 3), (3, 13), (255, 1), (2, 254)] {
        let part = client.read(CONFIG_REGION, offset, count).unwrap();
        assert_eq!(part, whole[offset as usize..][..count as usize]);
    }
    client.read(0, 0x1003, 4096).unwrap();
    client.write(0, 0x2003, &[0; 4000], false).unwrap();
}

#[test]
fn several_writes_come_in_one_message() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    // Cache line size and latency timer.
    let write = |offset: u64, byte: u8, count: u32| spec::MultiWrite {
        access: spec::RegionAccess {
            offset: offset.into(),
            region: CONFIG_REGION.into(),
            count: count.into(),
        },
        data: [byte; 8],
    };
    let message = |count: u64, writes: &[spec::MultiWrite]| {
        [count.to_le_bytes().as_slice(), writes.as_bytes()].concat()
    };
    let both = message(2, &[write(0xc, 0x10, 1), write(0xd, 0x40, 1)]);
    let (reply, _) = client.request(command::REGION_WRITE_MULTI, &both, &[]).unwrap();
    assert_eq!(reply, 2u64.to_le_bytes());
    assert_eq!(client.read(CONFIG_REGION, 0xc, 2).unwrap(), [0x10, 0x40]);
    for wrong in [
        message(3, &[write(0xc, 0, 1), write(0xd, 0, 1)]),
        message(u64::MAX, &[write(0xc, 0, 1)]),
        message(1, &[write(0xc, 0, 9)]),
        message(1, &[write(4096, 0, 1)]),
    ] {
        assert_eq!(client.request(command::REGION_WRITE_MULTI, &wrong, &[]).unwrap_err(), Errno::INVAL);
    }
    assert_eq!(client.read(CONFIG_REGION, 0xc, 2).unwrap(), [0x10, 0x40]);
}

/// A message that arrives in many pieces, and many messages that arrive together.
#[test]
fn messages_are_found_wherever_reads_end() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    let access = spec::RegionAccess { offset: 0.into(), region: CONFIG_REGION.into(), count: 2.into() };
    let read = [header(command::REGION_READ, 32).as_bytes(), access.as_bytes()].concat();
    for byte in &read {
        client.send_bytes(std::slice::from_ref(byte), &[]).unwrap();
    }
    let mut reply = [0; 34];
    client.stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[32..], [0xad, 0x15]);
    let many = read.repeat(3000);
    let writer = client.stream.try_clone().unwrap();
    let sent = std::thread::spawn(move || std::io::Write::write_all(&mut &writer, &many).unwrap());
    for _ in 0..3000 {
        client.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[32..], [0xad, 0x15]);
    }
    sent.join().unwrap();
}

/// From a client that does not receive its replies, the server receives no further messages. It can still be stopped.
#[test]
fn a_client_that_reads_nothing_holds_up_itself_alone() {
    let served = serve(AdapterKind::Pvscsi);
    let client = Client::new(&served.socket);
    client.stream.set_nonblocking(true).unwrap();
    let access = spec::RegionAccess { offset: 0.into(), region: 0.into(), count: 4096.into() };
    let read = [header(command::REGION_READ, 32).as_bytes(), access.as_bytes()].concat();
    let mut sent = 0;
    let mut idle = 0;
    while idle < 20 {
        match client.send_bytes(&read, &[]) {
            Ok(_) => (sent, idle) = (sent + 1, 0),
            Err(Errno::AGAIN) => {
                idle += 1;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Err(errno) => panic!("{errno}"),
        }
        assert!(sent < 1_000_000, "nothing stops the client");
    }
    let (notes, _) = served.stop();
    assert_eq!(notes, [Note::Connected]);
}

/// Number of open descriptors of the memfd with this name in this process, which includes the server.
fn open_of(name: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().contains(name)).count()
}

/// Descriptors that a command does not use are closed before its reply, and all others when the client disconnects.
#[test]
fn descriptors_are_not_kept() {
    const NAME: &str = "descriptors-that-are-counted";
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    let memfd = memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, 8192).unwrap();
    let fds = [memfd.as_fd(); 64];
    let info = spec::DeviceInfo { argsz: 16.into(), ..spec::DeviceInfo::default() };
    let map = |address: u64, size: u64| spec::DmaMap {
        argsz: 32.into(),
        flags: 3.into(),
        offset: 0.into(),
        address: address.into(),
        size: size.into(),
    };
    let set = |flags: spec::IrqSet, count: u32| spec::SetIrqs {
        argsz: 20.into(),
        flags: flags.bits().into(),
        index: spec::IRQ_MSIX.into(),
        start: 0.into(),
        count: count.into(),
    };
    let (eventfds, none) = (spec::IrqSet::DATA_EVENTFD, spec::IrqSet::DATA_NONE);
    let trigger = spec::IrqSet::TRIGGER;
    let read = spec::RegionAccess { offset: 0.into(), region: CONFIG_REGION.into(), count: 4.into() };
    for (number, payload, count, good) in [
        (command::GET_INFO, info.as_bytes().to_vec(), 64, true),
        (command::REGION_READ, read.as_bytes().to_vec(), 64, true),
        (command::RESET, vec![], 3, true),
        (command::VERSION, vec![0; 4], 1, false),
        (99, vec![], 64, false),
        (command::DMA_MAP, vec![0; 31], 1, false),
        (command::DMA_MAP, map(0, 4096).as_bytes().to_vec(), 2, false),
        (command::DMA_MAP, map(0, 1 << 20).as_bytes().to_vec(), 1, false),
        (command::DMA_MAP, map(u64::MAX - 4095, 8192).as_bytes().to_vec(), 1, false),
        (command::DMA_UNMAP, vec![0; 24], 1, false),
        (command::SET_IRQS, set(eventfds | trigger, 1).as_bytes().to_vec(), 1, false),
        (command::SET_IRQS, set(eventfds | trigger, 4).as_bytes().to_vec(), 3, false),
        (command::SET_IRQS, set(none | trigger, 1).as_bytes().to_vec(), 2, true),
    ] {
        let answer = client.request(number, &payload, &fds[..count]);
        assert_eq!(answer.is_ok(), good, "{number}");
        assert_eq!(open_of(NAME), 1, "{number} with {count}");
    }
    client.send(command::GET_INFO, NO_REPLY, info.as_bytes(), &fds);
    client.request(command::DMA_MAP, map(0, 8192).as_bytes(), &fds[..1]).unwrap();
    // A part of a message, and nothing after it.
    client.send_bytes(&header(command::DMA_MAP, 48).as_bytes()[..9], &fds[..1]).unwrap();
    drop(client);
    drop(Client::new(&served.socket));
    assert_eq!(open_of(NAME), 1);
}

/// Well-framed messages with random contents, in a session with memory: errors at worst.
#[test]
fn random_messages_break_nothing() {
    use AdapterKind::{IdeNative, Lsi, Pvscsi, VirtioBlk, VirtioScsi};
    for kind in [Pvscsi, Lsi, IdeNative, VirtioBlk, VirtioScsi] {
        let served = serve(kind);
        let mut vmm = Vmm::new(&served, Habits::default());
        let memfd = vmm.memfd.try_clone().unwrap();
        let client = &mut vmm.client;
        let event = new_event();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..20_000 {
            let number = random(20) as u16;
            // Fields are often small, so that many messages are valid.
            let mut payload: Vec<u8> = (0..random(14))
                .map(|_| match random(8) {
                    0 => u32::MAX - random(64) as u32,
                    1 => random(1 << 32) as u32,
                    2 => (random(MEMORY / 4096) * 4096) as u32,
                    3 => 0x100 << random(8),
                    _ => random(40) as u32,
                })
                .flat_map(u32::to_le_bytes)
                .collect();
            if random(4) == 0 {
                payload.resize(payload.len() + random(300) as usize, random(256) as u8);
            }
            let fds = [memfd.as_fd(), event.as_fd(), event.as_fd()];
            client.send(number, NO_REPLY, &payload, &fds[..random(4) as usize]);
        }
        assert_eq!(client.read(CONFIG_REGION, 0, 4).unwrap().len(), 4);
    }
}
