//! DATA SET MANAGEMENT.

use paradisk_disk_formats::Op;

use super::*;

fn put(guest: &Guest, entries: &[(u64, u64)]) {
    guest.memory.write_slice(&[0; 4096], GuestAddress(DATA)).unwrap();
    for (index, (lba, count)) in entries.iter().enumerate() {
        guest.memory.write_obj(lba | count << 48, GuestAddress(DATA + 8 * index as u64)).unwrap();
    }
}

fn trim(guest: &mut Guest, blocks: u16) -> (u8, u8) {
    let len = u64::from(blocks) * 512;
    guest.set_table(&[(DATA, len)]);
    guest.command48(command::DATA_SET_MANAGEMENT, TRIM.into(), 0, blocks);
    guest.start_engine(true);
    guest.serve();
    assert!(guest.line());
    guest.end_dma()
}

#[test]
fn ranges_that_follow_each_other_are_one() {
    let mut guest = Guest::new();
    put(&guest, &[(0, 100), (100, 28), (0, 0), (512, 8), (1024, 8)]);
    assert_eq!(trim(&mut guest, 1), (4, GOOD));
    assert_eq!(guest.log(0), [Op::Discard; 3]);
    // The last entry of the last block.
    put(&guest, &[(0, 0); 511].into_iter().chain([(5, 1)]).collect::<Vec<_>>());
    assert_eq!(trim(&mut guest, 8), (4, GOOD));
    assert_eq!(guest.log(0), [Op::Discard]);
    put(&guest, &[]);
    assert_eq!((trim(&mut guest, 1), guest.log(0)), ((4, GOOD), vec![]));
    // With the write cache off, the command completes after a flush.
    guest.simple(command::SET_FEATURES, feature::DISABLE_WRITE_CACHE, 0);
    guest.log(0);
    put(&guest, &[(1, 1)]);
    assert_eq!((trim(&mut guest, 1), guest.log(0)), ((4, GOOD), vec![Op::Discard, Op::Flush]));
}

/// Disks in memory complete each range at once.
#[test]
fn one_call_discards_a_limited_number_of_ranges() {
    let mut guest = Guest::new();
    put(&guest, &(0..512).map(|index| (4 * index, 1)).collect::<Vec<_>>());
    guest.set_table(&[(DATA, 4096)]);
    guest.command48(command::DATA_SET_MANAGEMENT, TRIM.into(), 0, 8);
    guest.start_engine(true);
    let first = guest.log(0).len();
    assert!((2..100).contains(&first), "{first}");
    assert_eq!((guest.alternate_status() & 0x80, guest.line()), (0x80, false));
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No, "the owner calls again");
    guest.serve();
    assert_eq!((guest.end_dma(), first + guest.log(0).len()), ((4, GOOD), 512));
}

#[test]
fn all_ranges_are_checked_before_the_first_is_discarded() {
    let mut guest = Guest::new();
    for entry in [(SECTORS, 1), (SECTORS - 1, 2), (0xffff_ffff_ffff, 0xffff)] {
        put(&guest, &[(0, 8), entry]);
        assert_eq!(trim(&mut guest, 1), (4, FAILED), "{entry:x?}");
        assert_eq!((guest.error(), guest.log(0)), (Error::IDNF.bits(), vec![]));
    }
    guest.check_io();
}

#[test]
fn other_functions_and_lengths_are_aborted() {
    let mut guest = Guest::new();
    for (features, blocks) in [(0, 1), (2, 1), (1, 0), (1, 9), (1, 0x100)] {
        guest.command48(command::DATA_SET_MANAGEMENT, features, 0, blocks);
        assert_eq!((guest.in_byte(reg::STATUS), guest.error()), (FAILED, 4), "{features} {blocks}");
    }
    let mut guest = Guest::with(Setup { discard: false, ..USUAL });
    assert_eq!(guest.simple(command::DATA_SET_MANAGEMENT, TRIM, 1), FAILED);
}
