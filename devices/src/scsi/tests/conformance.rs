//! Cases of libiscsi's conformance suite, as an initiator sends them.

use paradisk_disk_formats::Op;

use super::medium::unmap_list;
use super::*;

/// INVALID FIELD IN CDB without a field pointer.
const INVALID_FIELD: (u8, u16, [u8; 3]) = (5, 0x2400, [0; 3]);

/// A buffer longer than the command's data is an error, because the initiator means another command.
#[test]
fn data_out_of_another_length_than_the_command_says() {
    let mut rig = Rig::small();
    // 256 blocks do not fit into COMPARE AND WRITE's one byte, and become 0.
    assert_eq!(rig.bad_out(&sixteen(0x89, 0, 0, 0), &[1; 262_144]), INVALID_FIELD);
    assert_eq!(rig.bad_out(&sixteen(0x89, 0, 0, 1), &[1; 2048]), INVALID_FIELD);
    for flags in [0, 8] {
        for len in [256, 1024] {
            assert_eq!(rig.bad_out(&ten(0x41, flags, 0, 1), &vec![1; len]), INVALID_FIELD);
            assert_eq!(rig.bad_out(&sixteen(0x93, flags, 0, 1), &vec![1; len]), INVALID_FIELD);
        }
    }
    assert_eq!(rig.bad_out(&sixteen(0x93, 9, 0, 1), &[0; 512]), INVALID_FIELD);
    assert!(rig.control(|control| control.log.is_empty()));
    rig.good(&sixteen(0x89, 0, 0, 0), Direction::None, &[], 0);
}

#[test]
fn unmap_of_no_blocks_at_the_end_of_the_medium() {
    let mut rig = Rig::small();
    let unmap = |rig: &mut Rig, lba, blocks| {
        let list = unmap_list(&[(lba, blocks)]);
        rig.run(&ten(0x42, 0, 0, list.len() as u16), Direction::Out, &list, 0).0
    };
    assert_eq!(unmap(&mut rig, 64, 0), good(24, 24));
    for (lba, blocks) in [(65, 0), (u64::MAX, 0), (64, 1), (u64::MAX, 1)] {
        assert_eq!(summary(&unmap(&mut rig, lba, blocks)), (5, 0x2100, [0; 3]), "{lba} {blocks}");
    }
    assert!(rig.control(|control| control.log.is_empty()));
}

#[test]
fn unmap_up_to_the_limit_that_the_page_tells() {
    let mut rig = Rig::fresh(disk::info(8 << 20));
    rig.attention();
    let limits = rig.data_in(&[0x12, 1, 0xb0, 0, 64, 0]);
    assert_eq!(limits[20..24], [0, 0x10, 0, 0]);
    let unmap = |rig: &mut Rig, ranges: &[(u64, u32)]| {
        let list = unmap_list(ranges);
        rig.run(&ten(0x42, 0, 0, list.len() as u16), Direction::Out, &list, 0).0
    };
    assert_eq!(unmap(&mut rig, &[(0, 1 << 19), (1 << 20, 1 << 19)]), good(40, 40));
    let end = unmap(&mut rig, &[(0, 1 << 19), (1 << 20, (1 << 19) + 1)]);
    assert_eq!(summary(&end), (5, 0x2600, [0; 3]));
}

#[test]
fn write_and_verify() {
    let mut rig = Rig::small();
    let data: Vec<u8> = (0..1024).map(|at| (at % 251) as u8).collect();
    let twelve = |flags| [0xae, flags, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0];
    let commands: [&dyn Fn(u8) -> Vec<u8>; 3] =
        [&|flags| ten(0x2e, flags, 4, 2).to_vec(), &|flags| twelve(flags).to_vec(), &|flags| {
            sixteen(0x8e, flags, 4, 2).to_vec()
        }];
    for command in commands {
        // The medium is verified, so the write is on it first.
        for flags in [0x00, 0x02, 0x12] {
            rig.control(|control| control.data.fill(0));
            assert_eq!(rig.run(&command(flags), Direction::Out, &data, 0).0, good(1024, 1024));
            let log = rig.control(|control| std::mem::take(&mut control.log));
            assert_eq!(log, [(Op::Write { fua: true }, 2048, 1024), (Op::Read, 2048, 1024)]);
            assert_eq!(rig.control(|control| control.data[2048..3072].to_vec()), data);
        }
        // WRPROTECT, BYTCHK 10b and 11b.
        assert_eq!(rig.bad_out(&command(0x20), &data), field(1, Some(5)));
        assert_eq!(rig.bad_out(&command(0x04), &data), field(1, Some(2)));
        assert_eq!(rig.bad_out(&command(0x06), &data), field(1, Some(2)));
        // Too little data.
        assert_eq!(rig.bad_out(&command(0x02), &data[..512]).1, 0x2400);
        assert_eq!(rig.run(&command(0), Direction::In, &[], 1024).0, TaskEnd::WrongDirection);
    }
    assert!(rig.control(|control| control.log.is_empty()));
    rig.good(&ten(0x2e, 0, 0, 0), Direction::None, &[], 0);
    assert_eq!(rig.bad(&ten(0x2e, 0, 65, 0)).1, 0x2100);
    assert_eq!(rig.bad_out(&ten(0x2e, 0, 63, 2), &data).1, 0x2100);
    let mut rig = Rig::with(|info| info.read_only = true);
    assert_eq!(rig.bad_out(&ten(0x2e, 0, 0, 2), &data).1, 0x2700);
}

#[test]
fn write_and_verify_on_disks_of_all_caches() {
    let ops = |change: fn(&mut DiskInfo)| {
        let mut rig = Rig::with(change);
        rig.good(&ten(0x2e, 2, 0, 1), Direction::Out, &[1; 512], 0);
        rig.control(|control| control.log.iter().map(|(op, ..)| *op).collect::<Vec<_>>())
    };
    assert_eq!(ops(|_| ()), [Op::Write { fua: true }, Op::Read]);
    assert_eq!(ops(|info| info.volatile_cache = false), [Op::Write { fua: false }, Op::Read]);
}

/// The commands that are about the medium see nothing of a volatile cache: it is flushed before they read (SBC-3, 5.30 and 5.2).
#[test]
fn what_is_verified_or_compared_with_fua_is_on_the_medium() {
    let twelve = |flags| [0xaf, flags, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0];
    let ops = |change: fn(&mut DiskInfo), cdb: &[u8], data: &[u8]| {
        let mut rig = Rig::with(change);
        let direction = if data.is_empty() { Direction::None } else { Direction::Out };
        rig.good(cdb, direction, data, 0);
        rig.control(|control| control.log.iter().map(|(op, ..)| *op).collect::<Vec<_>>())
    };
    let (write, durable) = (Op::Write { fua: false }, Op::Write { fua: true });
    let nothing: fn(&mut DiskInfo) = |_| ();
    let through: fn(&mut DiskInfo) = |info| info.volatile_cache = false;
    for cdb in [&ten(0x2f, 0, 4, 1)[..], &twelve(0), &sixteen(0x8f, 0, 4, 1)] {
        assert_eq!(ops(nothing, cdb, &[]), [Op::Flush, Op::Read]);
        assert_eq!(ops(through, cdb, &[]), [Op::Read]);
    }
    // BYTCHK 01b; and no block at all.
    assert_eq!(ops(nothing, &ten(0x2f, 2, 4, 1), &[0; 512]), [Op::Flush, Op::Read]);
    assert_eq!(ops(nothing, &ten(0x2f, 0, 4, 0), &[]), []);
    let [plain, forced] = [0, 8].map(|flags| sixteen(0x89, flags, 4, 1));
    assert_eq!(ops(nothing, &plain, &[0; 1024]), [Op::Read, write]);
    assert_eq!(ops(nothing, &forced, &[0; 1024]), [Op::Flush, Op::Read, durable]);
    assert_eq!(ops(through, &forced, &[0; 1024]), [Op::Read, write]);
}

#[test]
fn write_and_verify_finds_what_is_not_what_was_written() {
    let mut rig = Rig::fresh(disk::info(1024));
    rig.attention();
    let data: Vec<u8> = (0..300 * 512).map(|at| (at % 241) as u8).collect();
    let command = sixteen(0x8e, 2, 1, 300);
    assert_eq!(rig.run(&command, Direction::Out, &data, 0).0, good(153_600, 153_600));
    rig.control(|control| control.decays = Some(512 + 200 * 512 + 5));
    let end = rig.run(&command, Direction::Out, &data, 0).0;
    assert_eq!(sense(&end)[..7], [0xf0, 0, 0x0e, 0, 0, 0, 201]);
    assert_eq!(summary(&end).1, 0x1d00);
    // Without BYTCHK the blocks are only read.
    rig.control(|control| control.decays = Some(512));
    assert_eq!(rig.run(&sixteen(0x8e, 0, 1, 300), Direction::Out, &data, 0).0, good(153_600, 153_600));
    // Each step may fail.
    for (failing, code) in [(0, 0x0c00), (1, 0x1100)] {
        rig.control(|control| {
            control.errors = (0..=failing).map(|at| (at == failing).then(medium::os_error)).collect();
        });
        let end = rig.run(&command, Direction::Out, &data, 0).0;
        assert_eq!((summary(&end).0, summary(&end).1), (3, code), "{failing}");
    }
}

#[test]
fn self_test() {
    let mut rig = Rig::small();
    // The default self-test reads the first and the last block.
    rig.good(&[0x1d, 0x04, 0, 0, 0, 0], Direction::None, &[], 0);
    let log = rig.control(|control| std::mem::take(&mut control.log));
    assert_eq!(log, [(Op::Read, 0, 512), (Op::Read, 63 * 512, 512)]);
    // No self-test, and no parameter list.
    rig.good(&[0x1d, 0x10, 0, 0, 0, 0], Direction::None, &[], 0);
    assert_eq!(rig.bad_out(&[0x1d, 0x10, 0, 0, 8, 0], &[0; 8]), field(3, None));
    // Background self-tests.
    assert_eq!(rig.bad(&[0x1d, 0x20, 0, 0, 0, 0]), field(1, Some(5)));
    for errors in [vec![Some(medium::os_error())], vec![None, Some(medium::os_error())]] {
        rig.control(|control| control.errors = errors.into());
        assert_eq!(rig.bad(&[0x1d, 0x04, 0, 0, 0, 0]), (4, 0x3e03, [0; 3]));
    }
}

#[test]
fn log_pages() {
    let mut rig = Rig::small();
    let sense = |page, subpage, parameter: u8| [0x4d, 0, page, subpage, 0, 0, parameter, 1, 0, 0];
    assert_eq!(rig.data_in(&sense(0, 0, 0)), [0, 0, 0, 1, 0]);
    assert_eq!(rig.data_in(&sense(0x40, 0, 0)), [0, 0, 0, 1, 0]);
    assert_eq!(rig.data_in(&sense(0, 0xff, 0)), [0x40, 0xff, 0, 4, 0, 0, 0, 0xff]);
    assert_eq!(rig.data_in(&[0x4d, 0, 0, 0, 0, 0, 0, 0, 2, 0]), [0, 0]);
    assert_eq!(rig.bad(&sense(0x0d, 0, 0)), field(2, Some(5)));
    assert_eq!(rig.bad(&sense(0, 1, 0)), field(3, None));
    assert_eq!(rig.bad(&sense(0, 0, 1)), field(5, None));
    // SP: nothing is saved.
    assert_eq!(rig.bad(&[0x4d, 1, 0, 0, 0, 0, 0, 1, 0, 0]), field(1, Some(0)));
}
