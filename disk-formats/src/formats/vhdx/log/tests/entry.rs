use proptest::prelude::*;

use super::super::changes::Changes;
use super::super::entry::{Parser, Step, Summary, encode, sectors};
use super::super::scan::Place;
use super::*;
use crate::contract::error::or_bad;
use crate::host::crash::CrashFile;

/// Parse an entry in memory.
fn parse(bytes: &[u8], guid: Uuid) -> Option<(Summary, Vec<Update>)> {
    let region = Region { offset: 1 << 20, length: 4 << 20 };
    let (sectors, _) = bytes.as_chunks::<SECTOR>();
    let mut parser = Parser::new(sectors.first()?, region, guid)?;
    for sector in sectors {
        match parser.feed(sector) {
            Step::More => {}
            Step::Whole(summary) => return Some((summary, changes(bytes, region, summary))),
            Step::Broken => return None,
        }
    }
    None
}

/// The changes of a valid entry; none if one is in a forbidden range.
fn changes(bytes: &[u8], region: Region, summary: Summary) -> Vec<Update> {
    let file = CrashFile::default();
    file.set_size(region.offset + u64::from(region.length)).expect("space");
    file.write_at(bytes, region.offset).expect("space");
    let entries = [Place { start: 0, summary }];
    let (mut changes, mut updates) = (Changes::new(&file, region, &entries), Vec::new());
    loop {
        match or_bad(changes.next()).expect("readable") {
            Ok(Some(Change::Data { offset, sector })) => {
                updates.push(Update::Data { offset, sector: Box::new(*sector) })
            }
            Ok(Some(Change::Zero { offset, len })) => updates.push(Update::Zero { offset, len }),
            Ok(None) => return updates,
            Err(_) => return Vec::new(),
        }
    }
}

fn update() -> impl Strategy<Value = Update> {
    // Beyond the log.
    let aligned = |limit: u64| (0..limit).prop_map(|at| at * SECTOR as u64);
    let place = || aligned(1 << 34).prop_map(|at| at + (5 << 20));
    prop_oneof![
        (place(), any::<u64>()).prop_map(|(offset, seed)| {
            let mut random = Random(seed | 1);
            data(offset, |_| random.next() as u8)
        }),
        (place(), aligned(1 << 30)).prop_map(|(offset, len)| Update::Zero { offset, len }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Entries with up to three sectors of descriptors.
    #[test]
    fn what_is_encoded_is_read(
        updates in prop::collection::vec(update(), 0..270),
        sequence in 1u64..,
        tail in 0u32..1024,
        guid in any::<u128>(),
        sizes in any::<(u64, u64)>(),
    ) {
        let (guid, sizes) = (Uuid::from_u128(guid), Sizes { flushed: sizes.0, last: sizes.1 });
        let bytes = encode(&updates, sequence, tail, guid, sizes);
        prop_assert_eq!(bytes.len() as u64, sectors(&updates) * SECTOR as u64);
        let summary = Summary { sequence, sectors: (bytes.len() / SECTOR) as u32, tail, sizes };
        prop_assert_eq!(parse(&bytes, guid), Some((summary, updates)));
    }
}

/// Data, zeros, data: an entry of three sectors.
fn sample() -> Vec<u8> {
    let zeros = Update::Zero { offset: 0x50000, len: 0x2000 };
    let updates = [data(0x40000, |at| at as u8), zeros, data(0x60000, |_| 7)];
    encode(&updates, 0x5_0000_0009, 3, GUID, SIZES)
}

/// [MS-VHDX] 2.3.1: the offsets of the fields.
#[test]
fn an_entry_has_the_layout_of_the_specification() {
    let bytes = sample();
    let at = |at: usize, len: usize| &bytes[at..at + len];
    assert_eq!(bytes.len(), 3 * 4096);
    assert_eq!(at(0, 4), b"loge");
    assert_eq!(at(8, 8), b"\0\x30\0\0\0\x30\0\0", "length and tail");
    assert_eq!(at(16, 16), b"\x09\0\0\0\x05\0\0\0\x03\0\0\0\0\0\0\0", "sequence and descriptors");
    assert_eq!(at(32, 8), b"\x67\x45\x23\x01\xAB\x89\xEF\xCD", "the GUID's three integers");
    assert_eq!(at(40, 8), b"\x01\x23\x45\x67\x89\xAB\xCD\xEF", "and its bytes");
    assert_eq!(at(48, 16), b"\0\0\x05\0\0\0\0\0\0\0\x10\0\0\0\0\0", "sizes");
    assert_eq!(at(64, 16), b"desc\xFC\xFD\xFE\xFF\x00\x01\x02\x03\x04\x05\x06\x07");
    assert_eq!(at(80, 16), b"\0\0\x04\0\0\0\0\0\x09\0\0\0\x05\0\0\0", "offset and sequence");
    assert_eq!(at(96, 16), b"zero\0\0\0\0\0\x20\0\0\0\0\0\0");
    assert_eq!(at(4096, 10), b"data\x05\0\0\0\x08\x09");
    assert_eq!(at(8186, 6), b"\xFA\xFB\x09\0\0\0");
    assert_eq!(at(8192, 9), b"data\x05\0\0\0\x07");
}

#[test]
fn any_flipped_bit_makes_an_entry_invalid() {
    let mut bytes = sample();
    assert!(parse(&bytes, GUID).is_some());
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&bytes, GUID).is_none(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// The checksum is right, so that each rule is tested by itself.
#[test]
fn an_entry_has_to_make_sense() {
    let good = sample();
    let cases: &[(&str, usize, &[u8])] = &[
        ("signature", 0, b"LOGE"),
        ("no length", 8, &0u32.to_le_bytes()),
        ("length of less than the descriptors and data", 8, &0x2000u32.to_le_bytes()),
        ("length of more", 8, &0x4000u32.to_le_bytes()),
        ("length of parts of sectors", 8, &0x3200u32.to_le_bytes()),
        ("length beyond the ring", 8, &0x40_1000u32.to_le_bytes()),
        ("tail beyond the ring", 12, &0x40_0000u32.to_le_bytes()),
        ("tail inside a sector", 12, &0x3200u32.to_le_bytes()),
        ("no sequence number", 16, &[0; 8]),
        ("another sequence number", 16, &0x5_0000_000Au64.to_le_bytes()),
        ("one descriptor less", 24, &2u32.to_le_bytes()),
        ("one descriptor more", 24, &4u32.to_le_bytes()),
        ("no descriptors", 24, &0u32.to_le_bytes()),
        ("many descriptors", 24, &u32::MAX.to_le_bytes()),
        ("another log", 32, &[0; 16]),
        ("signature of a descriptor", 64, b"DESC"),
        ("zeros for data", 64, b"zero\0\0\0\0\0\0\0\0\0\0\0\0"),
        ("offset inside a sector", 80, &0x40200u64.to_le_bytes()),
        ("sequence number of a descriptor", 88, &8u64.to_le_bytes()),
        ("data for zeros", 96, b"desc"),
        ("length of zeros inside a sector", 104, &0x200u64.to_le_bytes()),
        ("signature of data", 4096, b"desc"),
        ("upper half of the sequence number", 4100, &4u32.to_le_bytes()),
        ("lower half of the sequence number", 8188, &8u32.to_le_bytes()),
        ("an entry inside", 8192, b"loge"),
    ];
    for (what, at, bytes) in cases {
        let mut bad = good.clone();
        bad[*at..at + bytes.len()].copy_from_slice(bytes);
        // The entry has as many sectors as its length says, if that is possible.
        let length = u32::from_le_bytes([bad[8], bad[9], bad[10], bad[11]]) as usize;
        bad.resize(length.clamp(3 * SECTOR, 4 * SECTOR), 0);
        seal(&mut bad[..length.clamp(SECTOR, 4 * SECTOR)]);
        assert_eq!(parse(&bad, GUID), None, "{what}");
    }
    let mut same = good.clone();
    seal(&mut same);
    assert_eq!(same, good);
    assert_eq!(parse(&good, Uuid::from_u128(1)), None);
    assert_eq!(parse(&good[..8192], GUID), None, "cut off");
}
