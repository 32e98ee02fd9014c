use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::super::entry::encode;
use super::super::{Log, find};
use super::*;
use crate::contract::error::{IoError, or_bad};
use crate::host::crash::CrashFile;
use crate::host::store::Store;

/// The error of `find` for a file with these consecutive entries, each given with its tail.
fn refused(entries: &[(u32, &[Update], Sizes)]) -> String {
    let mut file = vec![0; LEN as usize];
    let mut at = 0;
    for ((tail, updates, sizes), sequence) in entries.iter().zip(1..) {
        let entry = encode(updates, sequence, *tail, GUID, *sizes);
        put(&mut file, &entry, at);
        at += (entry.len() / SECTOR) as u32;
    }
    let bad =
        or_bad(find(&CrashFile::new(file), REGION, GUID)).expect("a readable file").expect_err("refused");
    format!("{} is {}, expected {}", bad.field, bad.value, bad.expected)
}

#[test]
fn what_cannot_be_replayed_is_refused_by_name() {
    let zeros = |offset, len| [Update::Zero { offset, len }];
    let at = |offset| [data(offset, |_| 1)];
    let last = |last| Sizes { last, ..SIZES };
    let sizes = [Sizes { flushed: LEN + 1, ..SIZES }, last(u64::MAX), last((128 << 40) + 1)];
    let is = "file offset of a log descriptor is";
    let cases: &[(&str, &[Update], Sizes)] = &[
        ("flushed file offset is 327681 bytes, expected at most the file's 327680", &[], sizes[0]),
        ("last file offset is 18446744073709551615 bytes, expected at most", &[], sizes[1]),
        ("last file offset is 140737488355329 bytes, expected at most 140737488355328", &[], sizes[2]),
        (&format!("{is} 0x2f000 for 4096 bytes, expected at least 0x30000"), &at(0x2F000), SIZES),
        (&format!("{is} 0x0 for 200704 bytes"), &zeros(0, 0x31000), SIZES),
        (&format!("{is} 0x40000 for 4096 bytes, expected a place outside the log"), &at(0x40000), SIZES),
        (&format!("{is} 0x4f000 for"), &at(0x4F000), SIZES),
        (&format!("{is} 0x30000 for 69632 bytes"), &zeros(0x30000, 0x11000), SIZES),
        (&format!("{is} 0xfffffffffffff000 for"), &at(u64::MAX << 12), SIZES),
        (&format!("{is} 0x7ffffffffffff000 for"), &at(i64::MAX as u64 >> 12 << 12), SIZES),
        (
            &format!("{is} 0x800000000000 for 4096 bytes, expected an end at 0x800000000000"),
            &at(128 << 40),
            SIZES,
        ),
    ];
    for (message, updates, sizes) in cases {
        let refusal = refused(&[(0, updates, *sizes)]);
        assert!(refusal.starts_with(message), "{refusal}, not {message}");
    }
    assert!(refused(&[]).starts_with("log GUID is 01234567-89ab-cdef-0123-456789abcdef, expected that of"));
    assert!(refused(&[(5, &[], SIZES)]).starts_with("log GUID"), "a tail outside");
    let refusal = refused(&[(0, &at(0x30000), SIZES), (1, &[], SIZES)]);
    assert!(refusal.starts_with("tail of the log is 0x1000, expected the start of an entry"), "{refusal}");
}

/// Valid logs of other programs: changes next to the headers and to the log, sizes that are not whole MiB, an entry
/// that wraps, and an entry older than the tail, whose sizes and changes no longer count.
#[test]
fn what_others_may_write_is_replayed() {
    let mut file = vec![9; LEN as usize];
    let odd = Sizes { flushed: LEN - 1, last: LEN + 5 };
    let zeros = |offset, len| Update::Zero { offset, len };
    let old = Sizes { flushed: u64::MAX, last: u64::MAX };
    let old = encode(&[data(0x30000, |_| 1)], 7, 10, GUID, old);
    let first = encode(&[data(0x31000, |_| 2), zeros(0x32000, 0), data(0x31000, |_| 3)], 8, 12, GUID, odd);
    let second = [zeros(0x3F000, 0x1000), data(0x50000, |_| 4), zeros(0x10_0000, 0x1000)];
    let second = encode(&second, 9, 12, GUID, odd);
    for (entry, start) in [(&old, 10), (&first, 12), (&second, 15)] {
        put(&mut file, entry, start);
    }
    let file = CrashFile::new(file);
    let replay = find(&file, REGION, GUID).expect("good");
    assert_eq!((replay.entries(), updates(&replay, &file).len(), replay.end()), (2, 6, 0x10_1000));
    replay.apply(&file).expect("space");
    let bytes = file.bytes();
    assert_eq!(bytes.len(), 2 << 20, "grown to the last change's end, and to whole MiB");
    for (at, with) in [(0x30000, 9), (0x31000, 3), (0x32000, 9), (0x3E000, 9), (0x3F000, 0), (0x50000, 4)] {
        assert!(bytes[at..at + SECTOR].iter().all(|byte| *byte == with), "{at:#x}");
    }
}

/// A ring in which every sector may begin an entry as long as the ring, and a ring of valid but inactive entries.
/// Neither is read once for every sector.
#[test]
fn a_ring_of_beginnings_takes_no_longer() {
    let region = Region { offset: 1 << 20, length: 32 << 20 };
    let sector = |length: u32, sequence: u32| {
        let mut sector = encode(&[], sequence.into(), 1, GUID, SIZES);
        sector[8..12].copy_from_slice(&length.to_le_bytes());
        seal(&mut sector);
        sector
    };
    let last = region.sectors() - 1;
    // In the first ring each entry may continue. In the second each is valid, and the tail of the last is outside of
    // the sequence.
    let rings: [&dyn Fn(u32) -> Vec<u8>; 2] = [&|_| sector(region.length, 1), &|at| match at {
        0 | 1 => vec![0; SECTOR],
        _ => sector(SECTOR as u32, at),
    }];
    for ring in rings {
        let ring = (0..=last).flat_map(ring);
        let file = CrashFile::new(std::iter::repeat_n(0, 1 << 20).chain(ring).collect());
        let bad = or_bad(find(&file, region, GUID)).expect("readable").expect_err("no sequence");
        assert_eq!(bad.field, "log GUID");
    }
}

/// A file that counts the bytes that are read from it.
struct Counting(CrashFile, AtomicU64);

impl Store for Counting {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        self.1.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.0.read_at(data, offset)
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.0.next_data(offset)
    }

    fn write_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_size(&self, _size: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn reserve(&self, _start: u64, _end: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _may_unmap: bool) -> Result<(), IoError> {
        Err(IoError::Unsupported)
    }

    fn clone_range(&self, _source: &dyn Store, _from: u64, _to: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Number of bytes read to find the entries to replay, and number of their changes.
fn read_for(file: CrashFile, region: Region) -> (u64, usize) {
    let file = Counting(file, AtomicU64::new(0));
    let replay = find(&file, region, GUID).expect("good");
    let count = updates(&replay, &file).len();
    (file.1.into_inner(), count)
}

/// A ring full of one-sector entries, or with one entry as long as the ring: each byte is read only a few times.
#[test]
fn a_full_ring_is_read_some_times() {
    let region = Region { offset: 1 << 20, length: 8 << 20 };
    let last = region.sectors() - 1;
    let zeros = |count| vec![Update::Zero { offset: 64 << 20, len: 4096 }; count];
    let small: Vec<u8> =
        (0..last).flat_map(|at| encode(&zeros(5), u64::from(at) + 1, 0, GUID, SIZES)).collect();
    let many = (last as usize * SECTOR - 64) / 32;
    for (ring, changes) in [(small, last as usize * 5), (encode(&zeros(many), 1, 0, GUID, SIZES), many)] {
        let mut file = vec![0; 1 << 20];
        file.extend(ring);
        file.resize((region.offset + u64::from(region.length)) as usize, 0);
        let (read, found) = read_for(CrashFile::new(file), region);
        assert_eq!(found, changes);
        assert!(read < 6 * u64::from(region.length), "{read} bytes");
    }
}

/// Holes of the file are not read: a log may be 1 GiB long.
#[test]
fn holes_in_the_ring_are_not_read() {
    let region = Region { offset: 1 << 20, length: 512 << 20 };
    for start in [0, 1000, region.sectors() - 1] {
        let file = CrashFile::new(vec![0; 1 << 20]);
        file.set_size(region.offset + u64::from(region.length)).expect("space");
        let entry = encode(&[Update::Zero { offset: 1 << 30, len: 4096 }], 1, start, GUID, SIZES);
        file.write_at(&entry, region.position(start.into())).expect("space");
        let (read, found) = read_for(file, region);
        assert_eq!(found, 1);
        assert!(read < 2 << 20, "{read} bytes");
    }
}

#[test]
fn an_entry_of_full_capacity_fits_and_a_larger_one_is_refused() {
    let sizes = Sizes { flushed: 0, ..SIZES };
    for (sectors, capacity) in [(16, 6), (256, 126), (512, 253), (1024, 507)] {
        let region = Region { offset: 1 << 20, length: sectors * SECTOR as u32 };
        let file = CrashFile::new(vec![0; 1 << 20]);
        file.set_size(region.offset + u64::from(region.length)).expect("space");
        let mut log = Log::start(&file, region, GUID, sizes).expect("space");
        assert_eq!(log.capacity(), capacity);
        let mut updates: Vec<Update> = (0..capacity).map(|at| data(0x30000, |_| at as u8)).collect();
        // Repeated until the ring wraps.
        for _ in 0..4 {
            log.append(&file, &updates, sizes).expect("it fits");
            let replay = find(&file, region, GUID).expect("good");
            assert!(super::updates(&replay, &file) == updates && replay.entries() == 1);
        }
        updates.push(data(0x30000, |_| 0));
        let error = log.append(&file, &updates, sizes).expect_err("too large");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}
