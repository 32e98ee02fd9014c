//! A vhost-user-blk server with any client.
//!
//! With the lowest bit of the input's first byte set, memory is shared and a queue is set up first. With the next bit, the queue has
//! in-flight tracking, and the input has the first bytes of its memory. What follows is taken for what the client does: messages
//! with descriptors, kicks, and changes of the memory that it shares, rings and requests among it.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread;

use paradisk_disk_formats::{RamDisk, SectorSize};
use paradisk_serve::vhost_user_blk::{Options, Server};

use crate::common::client::{Client, MEMORY, listen, session};
use crate::common::input::Input;

const NAME: &str = "vhost-user-blk";
const PAGE: u64 = 4096;
/// Where the guest's memory is in the client.
const CLIENT: u64 = 0x7f00_0000_0000;
/// Offsets of descriptors, available ring, used ring and the memory of in-flight tracking.
const TABLE: u64 = PAGE;
const AVAIL: u64 = 2 * PAGE;
const USED: u64 = 3 * PAGE;
const NOTES: u64 = 4 * PAGE;
const QUEUE_SIZE: u16 = 8;

fn start() -> Arc<Server> {
    let disk = Arc::new(RamDisk::new(1 << 20, SectorSize::B512).expect("a disk"));
    let server = Arc::new(Server::new(disk, Options { queues: 2, ..Options::default() }).expect("a server"));
    let (listener, serving) = (listen(NAME), Arc::clone(&server));
    thread::spawn(move || {
        let (_stop, stopped) = UnixStream::pair().expect("a socket");
        serving.run(&listener, stopped.as_fd(), &|_| ()).expect("a server that goes on");
    });
    server
}

fn message(client: &Client, request: u32, flags: u32, payload: &[u8], fds: &[u8]) {
    let header = [request, flags, payload.len() as u32].map(u32::to_le_bytes).concat();
    client.send(&[&header, payload].concat(), fds);
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.map(u64::to_le_bytes).concat()
}

/// Two halves of a word, as indices and numbers of queues are sent.
const fn pair(low: u64, high: u64) -> u64 {
    low | high << 32
}

fn set_up(client: &Client, with_notes: bool) {
    let send = |request, payload: &[u8], fds: &[u8]| message(client, request, 1, payload, fds);
    send(3, &[], &[]);
    send(1, &[], &[]);
    // Version 1, protocol features, event index, indirect descriptors.
    send(2, &words([1 << 32 | 1 << 30 | 1 << 29 | 1 << 28]), &[]);
    send(15, &[], &[]);
    // MQ, REPLY_ACK, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD, RESET_DEVICE, CONFIGURE_MEM_SLOTS.
    send(16, &words([1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15]), &[]);
    send(21, &[], &[3]);
    send(5, &words([1, 0, MEMORY, CLIENT, 0]), &[0]);
    if with_notes {
        send(32, &words([PAGE, NOTES, pair(1 | u64::from(QUEUE_SIZE) << 16, 0)])[..20], &[0]);
    }
    send(8, &words([pair(0, QUEUE_SIZE.into())]), &[]);
    send(10, &words([pair(0, 0)]), &[]);
    send(9, &words([0, CLIENT + TABLE, CLIENT + USED, CLIENT + AVAIL, 0]), &[]);
    for request in [13, 14, 12] {
        send(request, &words([0]), &[1]);
    }
    send(18, &words([pair(0, 1)]), &[]);
}

/// A descriptor of the fuzzer's making, and the head of a chain.
fn request(client: &Client, input: &mut Input<'_>) {
    let slot = u64::from(input.u8() % 8);
    let (address, len) = (u64::from(input.u16()) << 4, u32::from(input.u16()));
    let mut descriptor = [0; 16];
    descriptor[..8].copy_from_slice(&address.to_le_bytes());
    descriptor[8..12].copy_from_slice(&len.to_le_bytes());
    (descriptor[12], descriptor[14]) = (input.u8(), input.u8());
    client.poke(TABLE + 16 * slot, &descriptor);
    let (index, head) = (input.u8(), input.u8());
    client.poke(AVAIL + 4 + 2 * (u64::from(index.wrapping_sub(1)) % 8), &[head, 0]);
    client.poke(AVAIL + 2, &[index, 0]);
    let _ = rustix::io::write(&client.event, &1u64.to_ne_bytes());
}

fn act(client: &Client, server: &Server, input: &mut Input<'_>) {
    match input.u8() % 13 {
        0 => client.send_from(input),
        1..=4 => {
            let (number, flags, fds, len) = (input.u8() % 48, input.u8(), input.u8() % 5, input.u8());
            let fds = input.bytes(fds.into());
            message(client, number.into(), 1 | u32::from(flags & 8), input.bytes(len.into()), fds);
        }
        5 => client.poke_from(input),
        6 => {
            let [guest, size, offset] = [(); 3].map(|()| u64::from(input.u8()) * PAGE);
            // Added or removed.
            let (number, fds) = if input.u8() & 1 == 0 { (37, &[0][..]) } else { (38, &[][..]) };
            message(client, number, 9, &words([0, guest, size, CLIENT + guest, offset]), fds);
        }
        7 => client.resize(u64::from(input.u8()) * PAGE),
        8 => set_up(client, input.u8() & 1 != 0),
        // The queue is stopped, and started at the same index.
        9 => {
            message(client, 11, 1, &words([0]), &[]);
            message(client, 12, 1, &words([0]), &[1]);
        }
        10 => server.refresh(),
        _ => request(client, input),
    }
}

pub(crate) fn run(data: &[u8]) {
    static SERVER: OnceLock<Arc<Server>> = OnceLock::new();
    let server = SERVER.get_or_init(start);
    let mut input = Input(data);
    let first = input.u8();
    session(NAME, |client| {
        if first & 2 != 0 {
            client.poke(NOTES, input.bytes(160));
            client.poke(USED, input.bytes(16));
        }
        if first & 1 != 0 {
            set_up(client, first & 2 != 0);
        }
        while !input.is_empty() {
            act(client, server, &mut input);
        }
    });
}
