//! Valid requests, and requests that are refused with an error.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use paradisk_disk_formats::{Disk, EngineKind, OpenOptions, RamDisk, SectorSize, vhd, vhdx};

use crate::client::*;
use crate::{MIB, Served, ram, sparse};

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const REQ_ONE: u16 = 8;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;

#[test]
fn what_is_written_is_read_with_both_kinds_of_replies() {
    let served = Served::ram();
    for structured in [false, true] {
        let mut client = served.client(structured);
        client.write(0, 4096, &[7; 8192]).unwrap();
        client.write(FUA, 8192, &[9; 512]).unwrap();
        assert_eq!(client.read(8192 - 512, 1536), Ok([[7; 512], [9; 512], [7; 512]].concat()));
        client.ask(WRITE_ZEROES, 0, 4096, 4096).unwrap();
        client.ask(WRITE_ZEROES, FUA | NO_HOLE, 8192, 512).unwrap();
        assert_eq!(client.read(4096, 8192), Ok([vec![0; 4608], vec![7; 3584]].concat()));
        client.ask(TRIM, FUA, 4096, 8192).unwrap();
        assert_eq!(client.read(4096, 8192), Ok(vec![0; 8192]));
        client.ask(FLUSH, 0, 0, 0).unwrap();
        // A request of no bytes succeeds.
        assert_eq!(client.read(512, 0), Ok(vec![]));
        client.write(0, 512, &[]).unwrap();
    }
}

#[test]
fn what_cannot_be_done_is_refused_and_the_rest_goes_on() {
    let served = Served::ram();
    for structured in [false, true] {
        let mut client = served.client(structured);
        let end = client.size;
        assert_eq!(client.read(end - 512, 1024), Err(EINVAL));
        assert_eq!(client.read(end - 1, 2), Err(EINVAL));
        assert_eq!(client.read(u64::MAX - 511, 1024), Err(EINVAL));
        assert_eq!(client.read(u64::MAX, 1), Err(EINVAL));
        assert_eq!(client.read(0, (32 << 20) + 512), Err(EOVERFLOW));
        assert_eq!(client.read(0, u32::MAX), Err(EOVERFLOW));
        assert_eq!(client.write(0, end, &[1; 512]), Err(ENOSPC));
        assert_eq!(client.write(0, end - 1, &[1; 2]), Err(ENOSPC));
        assert_eq!(client.write(16, 0, &[1; 512]), Err(EINVAL));
        assert_eq!(client.ask(TRIM, 0, end, 512), Err(ENOSPC));
        assert_eq!(client.ask(TRIM, 0, end - 1, 2), Err(ENOSPC));
        // No part of it is written, not even the sector at its start.
        assert_eq!(client.ask(WRITE_ZEROES, 0, end - 700, 701), Err(ENOSPC));
        assert_eq!(client.ask(WRITE_ZEROES, 0, u64::MAX, 2), Err(ENOSPC));
        assert_eq!(client.ask(WRITE_ZEROES, 0, end - 512, u32::MAX - 511), Err(ENOSPC));
        assert_eq!(client.ask(5, 0, 0, 512), Err(EINVAL));
        assert_eq!(client.ask(999, 0, 0, 0), Err(EINVAL));
        assert_eq!(client.ask(FLUSH, 8, 0, 0), Err(EINVAL));
        if structured {
            assert_eq!(client.status(0, end - 512, 1024), Err(EINVAL));
            assert_eq!(client.status(0, end - 1, 2), Err(EINVAL));
            assert_eq!(client.status(0, 0, 0), Err(EINVAL));
        } else {
            assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 512), Err(EINVAL));
        }
        assert_eq!(client.read(0, 1024), Ok(vec![0; 1024]));
    }
}

#[test]
fn a_read_only_disk_says_so_and_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.raw");
    sparse(&path, MIB);
    let disk = OpenOptions { read_only: true, ..OpenOptions::new(&path) }.open().unwrap();
    let served = Served::disks(&[("", disk)]);
    let mut client = served.client(true);
    // Read-only and flush; neither FUA, nor trim, nor write zeroes.
    assert_eq!(client.flags & 0x7F, 0b111);
    assert_eq!(client.write(0, 0, &[1; 512]), Err(EPERM));
    assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 512), Err(EPERM));
    assert_eq!(client.ask(TRIM, 0, 0, 512), Err(EPERM));
    client.ask(FLUSH, 0, 0, 0).unwrap();
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn the_largest_requests_arrive_whole() {
    let served = Served::ram();
    let data: Vec<u8> = (0..32u32 << 20).map(|at| (at % 251) as u8).collect();
    for structured in [false, true] {
        let mut client = served.client(structured);
        client.write(0, 512, &data).unwrap();
        assert!(client.read(512, 32 << 20).unwrap() == data);
    }
}

/// Many more requests than the server has in flight at a time, sent without waiting for replies: each gets its own reply.
#[test]
fn any_number_of_requests_is_answered_each_once() {
    const COUNT: u64 = 1500;
    let served = Served::ram();
    for structured in [false, true] {
        let mut writer = served.client(structured);
        let mut sender = writer.stream.try_clone().unwrap();
        let requests = move || {
            for number in 0..COUNT {
                let (offset, data) = (number * 4096, [number as u8; 4096]);
                let write = [&request(WRITE, 0, number, offset, 4096)[..], &data].concat();
                sender.write_all(&write).unwrap();
            }
        };
        let sending = std::thread::spawn(requests);
        let mut seen: Vec<u64> =
            (0..COUNT).map(|_| writer.reply(0)).map(ok).map(|reply| reply.cookie).collect();
        sending.join().unwrap();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..COUNT));

        let reads: Vec<u8> =
            (0..COUNT).flat_map(|number| request(READ, 0, number, number * 4096, 4096)).collect();
        let mut sender = writer.stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || sender.write_all(&reads).unwrap());
        let mut seen = HashMap::new();
        for _ in 0..COUNT {
            let reply = ok(writer.reply(4096));
            assert_eq!(reply.data, [reply.cookie as u8; 4096]);
            assert_eq!(seen.insert(reply.cookie, ()), None);
        }
        sending.join().unwrap();
    }
}

fn ok(reply: Reply) -> Reply {
    assert_eq!(reply.error, 0);
    reply
}

#[test]
fn block_status_tells_what_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.vhdx");
    let options = vhdx::CreateOptions { block_size: Some(1 << 20), ..vhdx::CreateOptions::default() };
    vhdx::create_dynamic(&path, 64 * MIB, options).unwrap();
    let served = Served::disks(&[("", OpenOptions::new(&path).open().unwrap())]);
    let mut client = served.client(true);
    for block in [3, 4, 9] {
        client.write(0, block * MIB, &vec![1; MIB as usize]).unwrap();
    }
    let mib = |count: u32, flags| (count << 20, flags);
    let all = [mib(3, 3), mib(2, 0), mib(4, 3), mib(1, 0), mib(54, 3)];
    assert_eq!(client.status(0, 0, 64 << 20), Ok(all.to_vec()));
    assert_eq!(client.status(REQ_ONE, 0, 64 << 20), Ok(vec![mib(3, 3)]));
    assert_eq!(client.status(0, 4 * MIB + 512, 1 << 20), Ok(vec![((1 << 20) - 512, 0), (512, 3)]));
    // The range begins and ends inside of sectors.
    assert_eq!(client.status(0, 0, 1000), Ok(vec![(1000, 3)]));
    assert_eq!(client.status(0, 3 * MIB - 5, 7), Ok(vec![(5, 3), (2, 0)]));
    assert_eq!(client.status(REQ_ONE, 3 * MIB - 1, 7), Ok(vec![(1, 3)]));
    assert_eq!(client.status(0, 3 * MIB + 1, 1), Ok(vec![(1, 0)]));
    client.ask(TRIM, 0, 3 * MIB, 1 << 20).unwrap();
    assert_eq!(client.status(REQ_ONE, 0, 64 << 20), Ok(vec![mib(4, 3)]));
}

#[test]
fn connections_share_a_disk_and_its_flush() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.vhdx");
    vhdx::create_dynamic(&path, 64 * MIB, vhdx::CreateOptions::default()).unwrap();
    let mut served = Served::disks(&[("", OpenOptions::new(&path).open().unwrap())]);
    let (mut one, mut other) = (served.client(false), served.client(true));
    assert_eq!(one.flags & 1 << 8, 1 << 8);
    one.write(0, MIB, &[5; 4096]).unwrap();
    assert_eq!(other.read(MIB, 4096), Ok(vec![5; 4096]));
    other.ask(FLUSH, 0, 0, 0).unwrap();
    // The flush also covers the write of the other connection: a copy of the file has the new block.
    let copy = folder.path().join("copy.vhdx");
    std::fs::copy(&path, &copy).unwrap();
    drop((one, other));
    served.stop();
    let again = Served::disks(&[("", OpenOptions::new(&copy).open().unwrap())]);
    assert_eq!(again.client(false).read(MIB, 4096), Ok(vec![5; 4096]));
}

/// The largest requests at any offset, and small ones: the bytes beside them stay.
#[test]
fn requests_of_any_range_are_served() {
    let disk = |sector| -> Arc<dyn Disk> { Arc::new(RamDisk::new(64 * MIB, sector).unwrap()) };
    let served = Served::disks(&[("512", disk(SectorSize::B512)), ("4096", disk(SectorSize::B4096))]);
    let data: Vec<u8> = (0..32u32 << 20).map(|at| (at % 251) as u8).collect();
    for (name, structured) in [("512", false), ("512", true), ("4096", false), ("4096", true)] {
        let mut client = Client::of(&served.socket(), name, structured);
        client.write(0, 0, &[0xAA; 8192]).unwrap();
        client.write(0, 32 * MIB, &[0xAA; 8192]).unwrap();
        client.write(FUA, 4095, &data).unwrap();
        assert!(client.read(4095, 32 << 20).unwrap() == data, "{name}");
        assert!(client.read(0, 4095).unwrap() == [0xAA; 4095], "{name}");
        assert!(client.read(32 * MIB + 4095, 4097).unwrap() == [0xAA; 4097], "{name}");
        client.ask(WRITE_ZEROES, FUA, 1, 20_000).unwrap();
        client.ask(WRITE_ZEROES, NO_HOLE, 30_000, 1).unwrap();
        client.ask(TRIM, FUA, 40_000, 10).unwrap();
        assert_eq!(client.read(0, 2), Ok(vec![0xAA, 0]));
        assert_eq!(client.read(20_000, 2), Ok(vec![0, data[20_001 - 4095]]));
        assert_eq!(client.read(29_999, 3), Ok(vec![data[29_999 - 4095], 0, data[30_001 - 4095]]));
        assert!(client.read(39_000, 2000).unwrap() == data[39_000 - 4095..41_000 - 4095], "{name}");
    }
}

/// Clients on connections of their own write bytes of the same sectors, and whole sectors between them. Each has bytes of its own.
#[test]
fn connections_share_sectors() {
    const CLIENTS: usize = 4;
    const SECTORS: usize = 8;
    const SIZE: usize = SECTORS * 512;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.vhdx");
    vhdx::create_dynamic(&path, 4 * MIB, vhdx::CreateOptions::default()).unwrap();
    let disks: [(_, Arc<dyn Disk>); 2] =
        [("vhdx", OpenOptions::new(&path).open().unwrap()), ("ram", ram(4 * MIB))];
    let served = Served::disks(&disks);
    for (name, _) in &disks {
        let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let clients = (0..CLIENTS).map(|number| {
                let mut client = Client::of(&served.socket(), name, false);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(number as u64);
                    let mut model = vec![0; SIZE];
                    for round in 0..60 {
                        // Several in flight, of which no two have a byte in common.
                        let mut sent = 0;
                        for place in (number..SIZE / 32).step_by(CLIENTS) {
                            if random.bool() {
                                continue;
                            }
                            let range = place * 32 + random.usize(..31)..(place + 1) * 32;
                            let (zeroes, value) = (random.u8(..4) == 0, random.u8(1..));
                            let len = range.len() as u32;
                            let kind = if zeroes { WRITE_ZEROES } else { WRITE };
                            client.send(kind, 0, 0, range.start as u64, len);
                            model[range.clone()].fill(if zeroes { 0 } else { value });
                            if !zeroes {
                                client.stream.write_all(&model[range]).unwrap();
                            }
                            sent += 1;
                        }
                        // Behind the sectors of all: with them only where a write of parts is in the way.
                        client.send(WRITE, 0, 0, SIZE as u64, 512);
                        client.stream.write_all(&[round; 512]).unwrap();
                        for _ in 0..=sent {
                            assert_eq!(client.reply(0).error, 0);
                        }
                    }
                    model
                })
            });
            let clients: Vec<_> = clients.collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        let found = Client::of(&served.socket(), name, false).read(0, SIZE as u32).unwrap();
        for (at, byte) in found.iter().enumerate() {
            assert_eq!(*byte, models[at / 32 % CLIENTS][at], "{name}, byte {at}");
        }
    }
}

/// Random requests, several in flight, compared with a copy of the disk in memory.
#[test]
fn every_kind_of_disk_keeps_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let size = 8 * MIB;
    sparse(&path("a.raw"), size);
    vhd::create_dynamic(&path("a.vhd"), size, None).unwrap();
    vhd::create_differencing(&path("child.vhd"), &path("a.vhd"), None).unwrap();
    let options = vhdx::CreateOptions::default;
    vhdx::create_dynamic(&path("a.vhdx"), size, options()).unwrap();
    vhdx::create_differencing(&path("child.vhdx"), &path("a.vhdx"), None).unwrap();
    let open = |name: &str| OpenOptions::new(path(name)).open().unwrap();
    let disks: [(_, Arc<dyn Disk>); 4] = [
        ("raw", open("a.raw")),
        ("vhd", open("child.vhd")),
        ("vhdx", open("child.vhdx")),
        ("ram", ram(size)),
    ];
    for engine in [EngineKind::IoUring, EngineKind::Threads] {
        let served = Served::with(&disks, engine);
        for (name, _) in &disks {
            for structured in [false, true] {
                torture(&mut Client::of(&served.socket(), name, structured), name);
            }
        }
    }
}

fn torture(client: &mut Client, name: &str) {
    const SLOT: u64 = 64 << 10;
    let size = client.size;
    let mut model = client.read(0, size as u32).unwrap();
    let mut state = 1u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) % below
    };
    for round in 0..6 {
        // One request for each slot, so that they do not overlap.
        let mut expected = HashMap::new();
        for slot in 0..size / SLOT {
            // Half of the requests are whole sectors.
            let unit = if next(2) == 0 { 512 } else { 1 };
            let offset = slot * SLOT + next(SLOT / 2) / unit * unit;
            let len = (1 + next(SLOT / 2)).next_multiple_of(unit);
            let place = offset as usize..(offset + len) as usize;
            let (kind, flags) = match next(8) {
                0..3 => (READ, 0),
                3..6 => (WRITE, u16::from(next(16) == 0) * FUA),
                6 => (WRITE_ZEROES, NO_HOLE * next(2) as u16),
                _ => (FLUSH, 0),
            };
            let range = if kind == FLUSH { (0, 0) } else { (offset, len as u32) };
            client.send(kind, flags, slot, range.0, range.1);
            match kind {
                WRITE => {
                    model[place.clone()].fill((round * 31 + slot) as u8);
                    client.stream.write_all(&model[place]).unwrap();
                    expected.insert(slot, vec![]);
                }
                WRITE_ZEROES => {
                    model[place].fill(0);
                    expected.insert(slot, vec![]);
                }
                READ => drop(expected.insert(slot, model[place].to_vec())),
                _ => drop(expected.insert(slot, vec![])),
            }
        }
        let mut left = expected.len();
        while left > 0 {
            // A simple reply does not state its length: the cookie identifies the request, whose length is known.
            let cookie = peek_cookie(client);
            let reply = ok(client.reply(expected.get(&cookie).unwrap().len()));
            assert!(expected.get(&reply.cookie).unwrap() == &reply.data, "{name} round {round} {cookie}");
            left -= 1;
        }
    }
    assert!(client.read(0, size as u32).unwrap() == model, "{name}");
}

fn peek_cookie(client: &Client) -> u64 {
    let mut head = [0; 16];
    while rustix::net::recv(&client.stream, &mut head, rustix::net::RecvFlags::PEEK).unwrap().0 < 16 {}
    u64::from_be_bytes(head[8..].try_into().unwrap())
}
