//! Valid requests: every type, divided into descriptors in any way.

use std::time::Instant;

use paradisk_disk_formats::{Op, OpenOptions};

use super::*;
use crate::testing::Random;

#[test]
fn data_in_pieces_of_any_size() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 8192, 0x11);
    let pieces = [reads(DATA, 1), reads(DATA + 1, 510), reads(DATA + 511, 4097), reads(DATA + 4608, 3584)];
    assert_eq!(guest.run(VIRTIO_BLK_T_OUT, 3, &pieces), (0, 1));
    // Across the border of two regions of memory.
    let to = MIB - 4096;
    let pieces = [writes(to, 3), writes(to + 3, 8000), writes(to + 8003, 189)];
    assert_eq!(guest.run(VIRTIO_BLK_T_IN, 3, &pieces), (0, 8193));
    assert_eq!(guest.bytes(to, 8192), data);
}

#[test]
fn framing_means_nothing() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 1024, 0x22);
    // Header in three pieces, the last with the data.
    guest.header(0, VIRTIO_BLK_T_OUT, 5);
    guest.memory.write_slice(&guest.bytes(REQUESTS, 16), GuestAddress(DATA - 16)).unwrap();
    let at = DATA - 16;
    let pieces = [reads(at, 5), reads(at + 5, 1), reads(at + 6, 10 + 1024), writes(REQUESTS + 32, 1)];
    let head = guest.put(0, &pieces);
    assert_eq!(guest.run_chain(0, head), 1);
    assert_eq!(guest.status_of(0), 0);
    // Data and status in one piece.
    guest.header(0, VIRTIO_BLK_T_IN, 5);
    let to = DATA + 0x1_0000;
    guest.memory.write_obj(0xffu8, GuestAddress(to + 1024)).unwrap();
    let head = guest.put(0, &[reads(REQUESTS, 16), writes(to, 1025)]);
    assert_eq!(guest.run_chain(0, head), 1025);
    assert_eq!(guest.bytes(to, 1025), [&data[..], &[0]].concat());
}

#[test]
fn indirect_tables() {
    let mut guest = Guest::new();
    let data = guest.fill(DATA, 20 * 512, 0x33);
    let mut pieces = vec![guest.header(0, VIRTIO_BLK_T_OUT, 100)];
    pieces.extend((0..20).map(|n| reads(DATA + 512 * n, 512)));
    pieces.push(writes(REQUESTS + 32, 1));
    let head = guest.put_indirect(0, &pieces);
    guest.run_chain(0, head);
    assert_eq!(guest.status_of(0), 0);
    // A descriptor of the ring, then a table.
    let header = guest.header(1, VIRTIO_BLK_T_IN, 100);
    let to = DATA + 0x1_0000;
    let table = guest.rings_at(0) + TABLE;
    guest.put_descriptor(table, writes(to, 20 * 512), NEXT, 1);
    guest.put_descriptor(table + 16, writes(REQUESTS + 64 + 32, 1), 0, 0);
    let refers = Piece { address: table, len: 32, flags: INDIRECT };
    let head = guest.put(0, &[header, refers]);
    assert_eq!(guest.run_chain(0, head), 20 * 512 + 1);
    assert_eq!((guest.status_of(1), guest.bytes(to, data.len())), (0, data));
}

#[test]
fn the_serial_number_fits_where_it_fits() {
    let mut guest = Guest::with(ALL, Config { serial: serial("paradisk-0001"), ..batch() });
    let mut expected = b"paradisk-0001".to_vec();
    expected.resize(VIRTIO_BLK_ID_BYTES, 0);
    assert_eq!(guest.run(VIRTIO_BLK_T_GET_ID, 0, &[writes(DATA, 7), writes(DATA + 7, 13)]), (0, 21));
    assert_eq!(guest.bytes(DATA, 20), expected);
    guest.memory.write_slice(&[0xee; 64], GuestAddress(DATA)).unwrap();
    assert_eq!(guest.run(VIRTIO_BLK_T_GET_ID, 0, &[writes(DATA, 4)]), (0, 5));
    assert_eq!(guest.bytes(DATA, 5), b"para\xee");
    assert_eq!(guest.run(VIRTIO_BLK_T_GET_ID, 0, &[writes(DATA, 64)]), (0, 20));
    assert_eq!(guest.bytes(DATA + 20, 44), [0xee; 44]);
    assert_eq!(serial("a serial number that is too long"), *b"a serial number that");
}

fn range(guest: &Guest, n: u64, sector: u64, sectors: u32, flags: u32) {
    let range = RangeDesc { sector: sector.into(), num_sectors: sectors.into(), flags: flags.into() };
    guest.memory.write_slice(range.as_bytes(), GuestAddress(DATA + 16 * n)).unwrap();
}

#[test]
fn discards_and_zeros() {
    let mut guest = Guest::new();
    for request_type in [VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES] {
        let data = guest.fill(DATA, 0x1_0000, 0x44);
        assert_eq!(guest.run(VIRTIO_BLK_T_OUT, 0, &[reads(DATA, 0x1_0000)]), (0, 1));
        range(&guest, 0, 8, 16, 0);
        range(&guest, 1, 64, 8, 0);
        range(&guest, 2, 0, 0, 0);
        assert_eq!(guest.run(request_type, 0, &[reads(DATA, 20), reads(DATA + 20, 28)]), (0, 1));
        let to = DATA + 0x2_0000;
        assert_eq!(guest.run(VIRTIO_BLK_T_IN, 0, &[writes(to, 0x1_0000)]), (0, 0x1_0001));
        let mut expected = data;
        expected[8 * 512..24 * 512].fill(0);
        expected[64 * 512..72 * 512].fill(0);
        assert_eq!(guest.bytes(to, 0x1_0000), expected);
    }
    // All ranges are checked before the first one is executed.
    let data = guest.fill(DATA, 512, 0x55);
    assert_eq!(guest.run(VIRTIO_BLK_T_OUT, 0, &[reads(DATA, 512)]), (0, 1));
    let end = 8 * MIB / 512;
    let refused = [
        (VIRTIO_BLK_T_DISCARD, end - 7, 8, 0, Status::IoErr),
        (VIRTIO_BLK_T_DISCARD, u64::MAX, 1, 0, Status::IoErr),
        (VIRTIO_BLK_T_DISCARD, 1 << 55, 1, 0, Status::IoErr),
        (VIRTIO_BLK_T_DISCARD, 0, u32::MAX, 0, Status::IoErr),
        (VIRTIO_BLK_T_DISCARD, 8, 8, RANGE_UNMAP, Status::Unsupp),
        (VIRTIO_BLK_T_WRITE_ZEROES, 8, 8, 2, Status::Unsupp),
        (VIRTIO_BLK_T_WRITE_ZEROES, end, 1, 1, Status::IoErr),
    ];
    for (request_type, sector, sectors, flags, status) in refused {
        range(&guest, 0, 0, 8, 0);
        range(&guest, 1, sector, sectors, flags);
        assert_eq!(guest.run(request_type, 0, &[reads(DATA, 32)]), (status as u8, 1), "{sector:#x} {flags}");
    }
    range(&guest, 0, 8, 8, RANGE_UNMAP);
    assert_eq!(guest.run(VIRTIO_BLK_T_WRITE_ZEROES, 0, &[reads(DATA, 16)]), (0, 1));
    // Lengths that are no multiple of a range, zero, or too long.
    range(&guest, 0, 8, 8, 0);
    for len in [15, 17, 31] {
        assert_eq!(guest.run(VIRTIO_BLK_T_DISCARD, 0, &[reads(DATA, len)]), (1, 1), "{len}");
    }
    assert_eq!(guest.run(VIRTIO_BLK_T_DISCARD, 0, &[]), (1, 1));
    (0..17).for_each(|n| range(&guest, n, 0, 8, 0));
    assert_eq!(guest.run(VIRTIO_BLK_T_DISCARD, 0, &[reads(DATA, 17 * 16)]), (1, 1));
    let to = DATA + 0x2_0000;
    assert_eq!(guest.run(VIRTIO_BLK_T_IN, 0, &[writes(to, 512)]), (0, 513));
    assert_eq!(guest.bytes(to, 512), data);
}

#[test]
fn what_cannot_be_done_is_answered() {
    let mut guest = Guest::new();
    let end = 8 * MIB / 512;
    let (io_error, unsupported) = (Status::IoErr as u8, Status::Unsupp as u8);
    for (sector, len) in [(end, 512), (end - 1, 1024), (u64::MAX, 512), (1 << 55, 512), (0, 511), (0, 100)] {
        assert_eq!(guest.run(VIRTIO_BLK_T_IN, sector, &[writes(DATA, len)]), (io_error, 0), "{sector:#x}");
        assert_eq!(guest.run(VIRTIO_BLK_T_OUT, sector, &[reads(DATA, len)]), (io_error, 1), "{sector:#x}");
    }
    // No data, data in the wrong direction, data outside memory.
    assert_eq!(guest.run(VIRTIO_BLK_T_IN, 0, &[]), (io_error, 1));
    assert_eq!(guest.run(VIRTIO_BLK_T_OUT, 0, &[]), (io_error, 1));
    assert_eq!(guest.run(VIRTIO_BLK_T_IN, 0, &[reads(DATA, 512), writes(DATA, 512)]), (io_error, 0));
    assert_eq!(guest.run(VIRTIO_BLK_T_OUT, 0, &[reads(DATA, 512), writes(DATA, 512)]), (io_error, 0));
    for address in [2 * MIB, 2 * MIB - 256, u64::MAX - 100, 1 << 63] {
        assert_eq!(guest.run(VIRTIO_BLK_T_IN, 0, &[writes(address, 512)]), (io_error, 0), "{address:#x}");
        assert_eq!(guest.run(VIRTIO_BLK_T_OUT, 0, &[reads(address, 512)]), (io_error, 1), "{address:#x}");
    }
    for request_type in [2, 3, 5, 7, 10, 12, 14, 15, 0x8000_0000, u32::MAX] {
        assert_eq!(guest.run(request_type, 0, &[]), (unsupported, 1), "{request_type}");
    }
    guest.check_io();
}

#[test]
fn a_disk_that_is_read_only_stays_as_it_is() {
    let mut disk = TestDisk::new(MIB, Hold::default());
    disk.info.read_only = true;
    let mut guest = Guest::powered(Arc::new(disk), Hold::default(), batch());
    guest.bring_up(ALL, 64);
    range(&guest, 0, 0, 8, 0);
    assert_eq!(guest.run(VIRTIO_BLK_T_OUT, 0, &[reads(DATA, 512)]), (1, 1));
    assert_eq!(guest.run(VIRTIO_BLK_T_WRITE_ZEROES, 0, &[reads(DATA, 16)]), (1, 1));
    assert_eq!(guest.run(VIRTIO_BLK_T_IN, 0, &[writes(DATA, 512)]), (0, 513));
    assert_eq!(guest.run(VIRTIO_BLK_T_FLUSH, 0, &[]), (0, 1));
}

#[test]
fn a_disk_that_cannot_discard_says_so() {
    let mut guest = Guest::held(batch());
    range(&guest, 0, 0, 8, 0);
    assert_eq!(guest.run(VIRTIO_BLK_T_DISCARD, 0, &[reads(DATA, 16)]), (2, 1));
}

/// The operations of a disk with a cache, for one write and one write of zeros.
fn asked(features: u64, writeback: Option<u8>) -> Vec<Op> {
    let mut disk = TestDisk::new(MIB, Hold::default());
    disk.info.volatile_cache = true;
    let log = disk.log.clone();
    let mut guest = Guest::powered(Arc::new(disk), Hold::default(), batch());
    guest.bring_up(features, 64);
    if let Some(mode) = writeback {
        guest.write(DEVICE_CFG + WRITEBACK, 1, mode.into());
        assert_eq!(guest.read(DEVICE_CFG + WRITEBACK, 1), u64::from(mode));
    }
    guest.check_io();
    range(&guest, 0, 0, 8, 0);
    assert_eq!(guest.run(VIRTIO_BLK_T_WRITE_ZEROES, 0, &[reads(DATA, 16)]), (0, 1));
    log.take().into_iter().filter(|op| *op != Op::Read).collect()
}

#[test]
fn the_cache_is_written_through_where_the_driver_wants_it() {
    let zeroes = Op::WriteZeroes { may_unmap: false };
    let back = [Op::Write { fua: false }, zeroes];
    let forced = [Op::Write { fua: true }, zeroes, Op::Flush];
    let without = |features: BlkFeatures| !features.bits();
    assert_eq!(asked(ALL, None), back);
    assert_eq!(asked(ALL, Some(0)), forced);
    assert_eq!(asked(ALL, Some(1)), back);
    assert_eq!(asked(without(BlkFeatures::CONFIG_WCE), None), back);
    // For a driver that has not accepted flushes, the device must write through.
    assert_eq!(asked(without(BlkFeatures::FLUSH), None), forced);
    assert_eq!(asked(without(BlkFeatures::FLUSH | BlkFeatures::CONFIG_WCE), None), forced);
}

/// Requests of random sizes on all queues at once, compared with a copy of the disk.
fn churn(disk: Arc<dyn Disk>, rounds: u64) {
    let config = Config { queues: 4, tasks: 12, ..batch() };
    let mut guest = Guest::powered(disk, Hold::default(), config);
    guest.bring_up(ALL, 64);
    let mut random = Random::new(7);
    let mut copy = vec![0u8; 64 * 512];
    for round in 0..rounds {
        // Each request of a round has 4 sectors of its own.
        let mut reads_of = Vec::new();
        for n in 0..16u64 {
            let sectors = 1 + random.below(4);
            let (queue, len) = ((n % 4) as u16, (sectors * 512) as usize);
            let (at, from) = (DATA + 2048 * n, (4 * n * 512) as usize);
            let half = len / 2;
            if random.below(2) == 0 {
                let data = guest.fill(at, len, (round + n) as u8);
                copy[from..from + len].copy_from_slice(&data);
                let pieces = [reads(at, half as u32), reads(at + half as u64, half as u32)];
                guest.request(queue, n, VIRTIO_BLK_T_OUT, 4 * n, &pieces);
            } else {
                guest.request(queue, n, VIRTIO_BLK_T_IN, 4 * n, &[writes(at, len as u32)]);
                reads_of.push((n, at, from, len));
            }
        }
        (0..4).for_each(|queue| guest.kick(queue));
        let mut ended = 0;
        let begin = Instant::now();
        while ended < 16 {
            assert!(begin.elapsed().as_secs() < 60, "{ended} of 16 ended");
            ended += (0..4).map(|queue| guest.completions(queue).len()).sum::<usize>();
            guest.device.on_completions(guest.now);
        }
        assert_eq!(ended, 16);
        assert!((0..16).all(|n| guest.status_of(n) == 0));
        for (n, at, from, len) in reads_of {
            assert_eq!(guest.bytes(at, len), copy[from..from + len], "request {n} of round {round}");
        }
    }
    let stats = guest.device.stats();
    assert_eq!((stats.requests, stats.completions, stats.errors), (16 * rounds, 16 * rounds, 0));
    assert_eq!(guest.in_flight(), 0);
}

#[test]
fn many_queues_at_once() {
    churn(Arc::new(RamDisk::new(MIB, SectorSize::B512).unwrap()), 500);
}

#[test]
fn many_queues_on_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(MIB).unwrap();
    churn(OpenOptions::new(file.path()).open().unwrap(), 100);
}
