use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::*;
use crate::formats::flat::raw::Raw;
use crate::host::backing::Access;
use crate::map::format::Format;

const SECTORS: u64 = 8192;

/// A disk of zeros, except for these sectors.
fn disk(sectors: &[(u64, Vec<u8>)]) -> (NamedTempFile, impl Format) {
    let file = NamedTempFile::new().unwrap();
    let mut bytes = vec![0; (SECTORS * 512) as usize];
    for (sector, data) in sectors {
        let at = (*sector * 512) as usize;
        bytes[at..at + data.len()].copy_from_slice(data);
    }
    std::fs::write(file.path(), bytes).unwrap();
    let disk = Raw::open(file.path(), Access::READ_ONLY).unwrap();
    (file, disk)
}

fn mbr(entries: &[(u8, u8, u32, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    for (number, (active, kind, first, count)) in entries.iter().enumerate() {
        let entry = &mut bytes[446 + 16 * number..462 + 16 * number];
        (entry[0], entry[4]) = (*active, *kind);
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..16].copy_from_slice(&count.to_le_bytes());
    }
    bytes[510..].copy_from_slice(&[0x55, 0xAA]);
    bytes
}

/// A GPT with one partition, number 2, from 2048 to 4095. The header is in sector `own`, the entries start in sector
/// `at`.
fn gpt(own: u64, at: u64, change: impl Fn(&mut Vec<u8>, &mut Vec<u8>)) -> Vec<(u64, Vec<u8>)> {
    let (mut header, mut entries) = (vec![0; 512], vec![0; 128 * 128]);
    entries[128..144].fill(7);
    entries[160..168].copy_from_slice(&2048u64.to_le_bytes());
    entries[168..176].copy_from_slice(&4095u64.to_le_bytes());
    header[..8].copy_from_slice(b"EFI PART");
    header[8..12].copy_from_slice(&0x10000u32.to_le_bytes());
    header[12..16].copy_from_slice(&92u32.to_le_bytes());
    for (field, value) in [(24, own), (32, SECTORS - own), (40, 34), (48, SECTORS - 34), (72, at)] {
        header[field..field + 8].copy_from_slice(&value.to_le_bytes());
    }
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    header[88..92].copy_from_slice(&crc32(&entries).to_le_bytes());
    change(&mut header, &mut entries);
    let crc = crc32(&header[..92]);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
    vec![(own, header), (at, entries)]
}

fn with_gpt(change: impl Fn(&mut Vec<u8>, &mut Vec<u8>)) -> Vec<(u64, Vec<u8>)> {
    [vec![(0, mbr(&[(0, PROTECTIVE, 1, u32::MAX)]))], gpt(1, 2, change)].concat()
}

fn found(sectors: &[(u64, Vec<u8>)], number: u32) -> Result<Range<u64>, String> {
    let (_file, disk) = disk(sectors);
    find(Content::new(&disk), number).map_err(|error| match error {
        TableError::Bad(bad) => format!("{} is {}, expected {}", bad.field, bad.value, bad.expected),
        TableError::Image(error) => error.to_string(),
    })
}

fn sectors(first: u64, count: u64) -> Result<Range<u64>, String> {
    Ok(first * 512..(first + count) * 512)
}

#[test]
fn the_checksum_is_that_of_the_standard() {
    assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
}

#[test]
fn partitions_of_an_mbr() {
    let head = mbr(&[(0x80, 0x07, 63, 100), (0, 0x05, 1000, 3000), (0, 0, 0, 0), (0, 0x83, 8000, 192)]);
    let logical = [
        (0, head),
        (1000, mbr(&[(0, 0x83, 8, 92), (0, 0x05, 200, 300)])),
        (1200, mbr(&[(0, 0x83, 8, 100), (0, 0x0F, 600, 2400)])),
        (1600, mbr(&[(0, 0x83, 1, 2399)])),
    ];
    assert_eq!(found(&logical, 1), sectors(63, 100));
    assert_eq!(found(&logical, 4), sectors(8000, 192));
    assert_eq!(found(&logical, 5), sectors(1008, 92));
    assert_eq!(found(&logical, 6), sectors(1208, 100));
    assert_eq!(found(&logical, 7), sectors(1601, 2399));
    for (number, expected) in [
        (0, "partition is 0, expected 1 to 128"),
        (129, "expected 1 to 128"),
        (2, "2, an extended one"),
        (3, "partition is 3, expected one that the partition table has"),
        (8, "expected one that the partition table has"),
    ] {
        let error = found(&logical, number).unwrap_err();
        assert!(error.contains(expected), "{number}: {error}");
    }
}

#[test]
fn hostile_mbrs() {
    let primary = |entry| vec![(0, mbr(&[entry]))];
    for (disk, number, expected) in [
        (vec![], 1, "partition table is missing in sector 0"),
        (primary((1, 0x83, 63, 100)), 1, "boot indicator of a partition is 0x01"),
        (primary((0, 0x83, 0, 100)), 1, "100 sectors from 0 on, expected inside the sectors 1 to 8192"),
        (primary((0, 0x83, 63, 0)), 1, "0 sectors from 63 on"),
        (primary((0, 0x83, 8000, 193)), 1, "193 sectors from 8000 on"),
        (primary((0, 0x83, u32::MAX, u32::MAX)), 1, "4294967295 sectors from 4294967295 on"),
        (primary((0, 0x83, 63, 100)), 5, "partition is 5"),
        (primary((0, 0x05, 63, 100)), 5, "missing in sector 63"),
        (primary((0, 0x05, 8000, 200)), 5, "200 sectors from 8000 on"),
    ] {
        let error = found(&disk, number).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    // A chain that goes back, and one that leaves the partition.
    for next in [0, 1, 3000, u32::MAX] {
        let chain = [
            (0, mbr(&[(0, 0x05, 1000, 3000)])),
            (1000, mbr(&[(0, 0x83, 8, 92), (0, 0x05, 2, 10)])),
            (1002, mbr(&[(0, 0x83, 1, 1), (0, 0x05, next, 10)])),
        ];
        let error = found(&chain, 128).unwrap_err();
        assert!(error.contains("next logical partition is sector"), "{next}: {error}");
    }
    // A chain that is too long.
    let head = (0, mbr(&[(0, 0x05, 1000, 3000)]));
    let chain: Vec<_> = std::iter::once(head)
        .chain((0..200).map(|at| (1000 + at, mbr(&[(0, 0x83, 1, 1), (0, 0x05, at as u32 + 1, 10)]))))
        .collect();
    assert_eq!(found(&chain, 128), sectors(1000 + 123 + 1, 1));
}

#[test]
fn partitions_of_a_gpt() {
    let good = with_gpt(|_, _| ());
    assert_eq!(found(&good, 2), sectors(2048, 2048));
    assert!(found(&good, 1).unwrap_err().contains("partition is 1"));
    assert!(found(&good, 128).unwrap_err().contains("partition is 128"));
    // If the primary GPT is damaged, the backup is used.
    let mut both = [with_gpt(|_, _| ()), gpt(SECTORS - 1, SECTORS - 33, |_, _| ())].concat();
    both[1].1[0] = 0;
    assert_eq!(found(&both, 2), sectors(2048, 2048));
}

#[test]
fn hostile_gpts() {
    let set = |header: &mut Vec<u8>, at: usize, value: u64| {
        header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    let set32 = |header: &mut Vec<u8>, at: usize, value: u32| {
        header[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    type Change<'a> = &'a dyn Fn(&mut Vec<u8>, &mut Vec<u8>);
    let changes: [(Change<'_>, &str); 14] = [
        (&|header, _| header[0] = 0, "GPT signature"),
        (&|header, _| set32(header, 12, 91), "GPT header size is 91"),
        (&|header, _| set32(header, 12, u32::MAX), "GPT header size is 4294967295"),
        (&|header, _| set(header, 24, 2), "GPT header's own sector is 2, expected 1"),
        (&|header, _| set(header, 40, 0), "GPT usable sectors"),
        (&|header, _| set(header, 48, u64::MAX), "GPT usable sectors"),
        (&|header, _| set(header, 48, 33), "GPT usable sectors is 34 to 33"),
        (&|header, _| set32(header, 80, u32::MAX), "GPT partition entries is 4294967295 of 128 bytes"),
        (&|header, _| set32(header, 84, 0), "GPT partition entries is 128 of 0 bytes"),
        (&|header, _| set32(header, 84, 192), "GPT partition entries is 128 of 192 bytes"),
        (&|header, _| set(header, 72, u64::MAX), "GPT partition entries is at sector 18446744073709551615"),
        (&|header, _| set(header, 72, 1), "GPT partition entries is at sector 1"),
        (&|_, entries| entries[0] = 1, "GPT entries' checksum"),
        (&|header, _| set32(header, 88, 0), "GPT entries' checksum is 0x00000000"),
    ];
    for (change, expected) in changes {
        let error = found(&with_gpt(|header, entries| change(header, entries)), 2).unwrap_err();
        assert!(error.contains(expected), "{error}\nexpected: {expected}");
    }
    let mut torn = with_gpt(|_, _| ());
    torn[1].1[17] ^= 1;
    assert!(found(&torn, 2).unwrap_err().contains("GPT header checksum"));
    // Entries outside of the usable sectors.
    for (first, last) in [(0, 100), (33, 100), (2048, SECTORS - 33), (100, 99), (0, u64::MAX), (u64::MAX, 0)]
    {
        let table = with_gpt(|header, entries| {
            set(entries, 160, first);
            set(entries, 168, last);
            set32(header, 88, crc32(entries));
        });
        let error = found(&table, 2).unwrap_err();
        assert!(error.contains("expected inside the sectors 34 to"), "{first} to {last}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the table contains, a partition is inside the disk.
    #[test]
    fn partitions_lie_inside_the_disk(
        gpt in any::<bool>(),
        number in 0u32..130,
        hits in proptest::collection::vec((0usize..512, any::<u8>()), 0..6),
    ) {
        let mut sectors = match gpt {
            true => with_gpt(|header, _| hits.iter().for_each(|(at, value)| header[*at] = *value)),
            false => vec![
                (0, mbr(&[(0, 0x83, 63, 100), (0, 0x05, 1000, 3000)])),
                (1000, mbr(&[(0, 0x83, 8, 92), (0, 0x05, 200, 300)])),
            ],
        };
        if !gpt {
            hits.iter().enumerate().for_each(|(number, (at, value))| sectors[number % 2].1[*at] = *value);
        }
        if let Ok(run) = found(&sectors, number) {
            prop_assert!(run.start >= 512 && run.start < run.end && run.end <= SECTORS * 512);
        }
    }
}
