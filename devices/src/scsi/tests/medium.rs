//! Commands that read and write the medium.

use paradisk_disk_formats::{IoError, Op, SectorSize};

use super::*;

/// Sectors that differ from each other.
fn pattern(sectors: usize, seed: u8) -> Vec<u8> {
    (0..sectors * 512).map(|at| (at / 512 * 7 + at % 251) as u8 ^ seed).collect()
}

/// EIO.
pub(super) fn os_error() -> IoError {
    IoError::Os(rustix::io::Errno::IO)
}

#[test]
fn reads_what_was_written_with_every_command() {
    let mut rig = Rig::small();
    let data = pattern(3, 1);
    let twelve = |code| [code, 0, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0];
    let writes = [
        vec![0x0a, 0, 0, 4, 3, 0],
        ten(0x2a, 0, 4, 3).to_vec(),
        twelve(0xaa).to_vec(),
        sixteen(0x8a, 0, 4, 3).to_vec(),
    ];
    let reads = [
        vec![0x08, 0, 0, 4, 3, 0],
        ten(0x28, 0, 4, 3).to_vec(),
        twelve(0xa8).to_vec(),
        sixteen(0x88, 0, 4, 3).to_vec(),
    ];
    for (at, (write, read)) in writes.iter().zip(&reads).enumerate() {
        let data: Vec<u8> = data.iter().map(|byte| byte ^ at as u8).collect();
        assert_eq!(rig.run(write, Direction::Out, &data, 0).0, good(1536, 1536));
        assert_eq!(rig.control(|control| control.data[2048..3584].to_vec()), data);
        let (end, read) = rig.run(read, Direction::In, &[], 1536);
        assert_eq!((end, read), (good(1536, 1536), data));
    }
    assert!(
        rig.control(|control| control.data[..2048]
            .iter()
            .chain(&control.data[3584..])
            .all(|byte| *byte == 0))
    );
}

#[test]
fn ranges_end_with_the_medium() {
    let mut rig = Rig::small();
    rig.good(&ten(0x28, 0, 63, 1), Direction::In, &[], 512);
    rig.good(&ten(0x28, 0, 0, 0), Direction::None, &[], 0);
    let out = (5, 0x2100, [0; 3]);
    for cdb in [ten(0x28, 0, 63, 2), ten(0x28, 0, 64, 0), ten(0x2f, 0, 64, 0), ten(0x35, 0, 60, 5)] {
        assert_eq!(rig.bad(&cdb), out, "{cdb:02x?}");
    }
    for code in [0x88, 0x8a, 0x8f, 0x91, 0x93] {
        assert_eq!(rig.bad(&sixteen(code, 0, u64::MAX, u32::MAX)), out);
        assert_eq!(rig.bad(&sixteen(code, 0, 1, 64)), out);
    }
    assert_eq!(rig.bad(&sixteen(0x89, 0, 63, 2)), out);
    assert_eq!(rig.bad(&sixteen(0x9e, 0x12, 64, 24)), out);
    assert!(rig.control(|control| control.log.len() == 1));
}

#[test]
fn transfers_above_the_limit_are_refused() {
    let mut rig = Rig::fresh(disk::info(1 << 20));
    rig.attention();
    assert_eq!(rig.bad(&sixteen(0x88, 0, 0, 65_537)), (5, 0x2400, [0; 3]));
    assert_eq!(rig.bad(&sixteen(0x8f, 0, 0, 65_537)), (5, 0x2400, [0; 3]));
    assert_eq!(rig.bad(&sixteen(0x93, 1, 0, (128 << 11) + 1)), field(10, None));
    assert_eq!(rig.bad(&sixteen(0x93, 1, 0, 0)), field(10, None));
    assert_eq!(rig.run(&sixteen(0x88, 0, 0, 65_536), Direction::In, &[], 512).0, good(512, 32 << 20));
}

#[test]
fn buffers_shorter_and_longer_than_the_command() {
    let mut rig = Rig::small();
    let data = pattern(4, 9);
    rig.control(|control| control.data[..2048].copy_from_slice(&data));
    let read = ten(0x28, 0, 0, 4);
    for capacity in [0, 1, 511, 512, 700, 1024, 2047] {
        let (end, got) = rig.run(&read, Direction::In, &[], capacity);
        assert_eq!(end, good(capacity as u64, 2048));
        assert_eq!(got, data[..capacity]);
    }
    let (end, got) = rig.run(&read, Direction::Either, &[], 3000);
    assert_eq!(end, good(2048, 2048));
    assert_eq!((&got[..2048], &got[2048..]), (&data[..], &[0xee; 952][..]));
    // Writes transfer only whole blocks.
    let write = ten(0x2a, 0, 8, 2);
    assert_eq!(rig.run(&write, Direction::Out, &data[..700], 0).0, good(512, 1024));
    assert_eq!(rig.run(&ten(0x2a, 0, 12, 1), Direction::Out, &data[..700], 0).0, good(512, 512));
    assert_eq!(rig.run(&write, Direction::Out, &data[..100], 0).0, good(0, 1024));
    assert_eq!(rig.run(&write, Direction::None, &[], 0).0, good(0, 1024));
    rig.control(|control| {
        assert_eq!(control.data[8 * 512..9 * 512], data[..512]);
        assert_eq!(control.data[9 * 512..10 * 512], [0; 512]);
        assert_eq!(control.data[13 * 512..14 * 512], [0; 512]);
    });
    assert_eq!(rig.run(&write, Direction::In, &[], 1024).0, TaskEnd::WrongDirection);
    assert_eq!(rig.run(&read, Direction::Out, &data, 0).0, TaskEnd::WrongDirection);
}

#[test]
fn force_unit_access() {
    let ops = |rig: &Rig| rig.control(|control| control.log.drain(..).map(|(op, ..)| op).collect::<Vec<_>>());
    let mut rig = Rig::small();
    rig.good(&ten(0x2a, 8, 0, 1), Direction::Out, &[1; 512], 0);
    assert_eq!(ops(&rig), [Op::Write { fua: true }]);
    assert_eq!(rig.good(&ten(0x28, 0x18, 0, 1), Direction::In, &[], 512), [1; 512]);
    assert_eq!(ops(&rig), [Op::Flush, Op::Read]);
    // Also when the buffer ends inside a block.
    assert_eq!(rig.run(&ten(0x28, 0x18, 0, 1), Direction::In, &[], 100), (good(100, 512), vec![1; 100]));
    assert_eq!(ops(&rig), [Op::Flush, Op::Read]);
    let mut rig = Rig::with(|info| info.volatile_cache = false);
    rig.good(&ten(0x2a, 8, 0, 1), Direction::Out, &[1; 512], 0);
    rig.good(&ten(0x28, 8, 0, 1), Direction::In, &[], 512);
    rig.good(&ten(0x35, 0, 0, 0), Direction::None, &[], 0);
    assert_eq!(ops(&rig), [Op::Write { fua: false }, Op::Read]);
}

#[test]
fn disk_errors_become_sense() {
    let mut rig = Rig::small();
    let mut fail = |error, cdb: &[u8], direction| {
        // VERIFY flushes first.
        let errors = if cdb[0] == 0x2f { vec![None, Some(error)] } else { vec![Some(error)] };
        rig.control(|control| control.errors = errors.into());
        let len = if cdb[0] == 0x41 { 512 } else { 1024 };
        let sense = sense(&rig.run(cdb, direction, &[5; 1024][..len], 0).0);
        (sense[2], u16::from_be_bytes([sense[12], sense[13]]), sense[0] & 0x80 != 0, sense[6])
    };
    let (read, write) = (ten(0x28, 0, 9, 2), ten(0x2a, 0, 9, 2));
    assert_eq!(fail(os_error(), &read, Direction::In), (3, 0x1100, true, 9));
    assert_eq!(fail(os_error(), &write, Direction::Out), (3, 0x0c00, true, 9));
    assert_eq!(fail(IoError::NoSpace, &write, Direction::Out), (7, 0x2707, true, 9));
    assert_eq!(fail(IoError::Damaged("BAT"), &read, Direction::In), (3, 0x3100, true, 9));
    assert_eq!(fail(IoError::ReadOnly, &write, Direction::Out), (7, 0x2700, false, 0));
    assert_eq!(fail(IoError::OutOfRange, &write, Direction::Out), (5, 0x2100, false, 0));
    assert_eq!(fail(IoError::Misaligned, &write, Direction::Out), (4, 0x4400, false, 0));
    assert_eq!(fail(os_error(), &ten(0x2f, 0, 9, 2), Direction::None), (3, 0x1100, true, 9));
    assert_eq!(fail(os_error(), &ten(0x35, 0, 0, 0), Direction::None), (3, 0x0c00, false, 0));
    assert_eq!(fail(os_error(), &ten(0x41, 0, 9, 2), Direction::Out), (3, 0x0c00, true, 9));
}

#[test]
fn read_only_disks() {
    let mut rig = Rig::with(|info| info.read_only = true);
    let protected = (7, 0x2700, [0; 3]);
    for cdb in [ten(0x2a, 0, 0, 1), ten(0x41, 0, 0, 1), ten(0x42, 0, 0, 24)] {
        assert_eq!(rig.bad_out(&cdb, &[0; 512]), protected);
    }
    assert_eq!(rig.bad_out(&sixteen(0x89, 0, 0, 1), &[0; 1024]), protected);
    assert_eq!(rig.data_in(&[0x1a, 8, 8, 0, 4, 0])[2], 0x90);
    rig.good(&ten(0x28, 0, 0, 1), Direction::In, &[], 512);
}

#[test]
fn verify() {
    let mut rig = Rig::fresh(disk::info(1024));
    rig.attention();
    let mut data = pattern(300, 3);
    rig.control(|control| control.data[512..512 + data.len()].copy_from_slice(&data));
    rig.good(&sixteen(0x8f, 0, 1, 300), Direction::None, &[], 0);
    assert_eq!(rig.run(&sixteen(0x8f, 2, 1, 300), Direction::Out, &data, 0).0, good(153_600, 153_600));
    data[200 * 512 + 5] ^= 1;
    let end = rig.run(&sixteen(0x8f, 2, 1, 300), Direction::Out, &data, 0).0;
    assert_eq!(sense(&end)[..7], [0xf0, 0, 0x0e, 0, 0, 0, 201]);
    assert_eq!(summary(&end).1, 0x1d00);
    // One block against many.
    let block = pattern(1, 3);
    rig.control(|control| control.data.chunks_mut(512).for_each(|sector| sector.copy_from_slice(&block)));
    rig.good(&ten(0x2f, 0x16, 0, 1024), Direction::Out, &block, 0);
    rig.control(|control| control.data[1000 * 512 + 1] ^= 1);
    assert_eq!(sense(&rig.run(&ten(0x2f, 6, 0, 1024), Direction::Out, &block, 0).0)[3..7], [0, 0, 3, 0xe8]);
    // Too little data.
    let end = rig.run(&ten(0x2f, 2, 0, 2), Direction::Out, &block, 0).0;
    assert!(matches!(end, TaskEnd::Answered { wanted: 1024, transferred: 0, .. }));
    assert_eq!(summary(&end).1, 0x2400);
    assert_eq!(rig.bad(&ten(0x2f, 0x20, 0, 2)), field(1, Some(5)));
}

#[test]
fn write_same() {
    let mut rig = Rig::fresh(disk::info(2048));
    rig.attention();
    let block = pattern(1, 8);
    assert_eq!(rig.run(&ten(0x41, 0, 5, 1000), Direction::Out, &block, 0).0, good(512, 512));
    rig.control(|control| {
        for (lba, sector) in control.data.chunks(512).enumerate() {
            assert_eq!(sector == block, (5..1005).contains(&lba), "{lba}");
        }
        control.log.clear();
    });
    // Zeros are one request, with or without a buffer and permission to unmap.
    rig.good(&ten(0x41, 0, 10, 4), Direction::Out, &[0; 512], 0);
    rig.good(&sixteen(0x93, 8, 20, 4), Direction::Out, &[0; 512], 0);
    rig.good(&sixteen(0x93, 9, 30, 4), Direction::None, &[], 0);
    rig.good(&sixteen(0x93, 8, 40, 4), Direction::Out, &block, 0);
    let zeroes = |may_unmap, lba: u64| (Op::WriteZeroes { may_unmap }, lba * 512, 2048);
    rig.control(|control| {
        assert_eq!(control.log[..3], [zeroes(false, 10), zeroes(true, 20), zeroes(true, 30)]);
        assert_eq!(control.log[3..], [(Op::Write { fua: false }, 40 * 512, 2048)]);
        assert_eq!(control.data[10 * 512..14 * 512], [0; 2048]);
    });
    assert_eq!(rig.bad(&sixteen(0x93, 0x10, 0, 1)), field(1, Some(4)));
    assert_eq!(rig.bad(&ten(0x41, 1, 0, 1)), field(1, Some(0)));
    assert_eq!(rig.bad_out(&ten(0x41, 0, 0, 1), &[0; 100]).1, 0x2400);
    rig.control(|control| control.errors = [None, Some(IoError::NoSpace)].into());
    let end = rig.run(&ten(0x41, 0, 0, 1000), Direction::Out, &block, 0).0;
    assert_eq!(sense(&end)[..7], [0xf0, 0, 7, 0, 0, 0, 128]);
}

pub(super) fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors = (ranges.len() * 16) as u16;
    let mut list = [(descriptors + 6).to_be_bytes(), descriptors.to_be_bytes(), [0; 2], [0; 2]].concat();
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

#[test]
fn unmap() {
    let mut rig = Rig::small();
    rig.control(|control| control.data.fill(7));
    let unmap = |len: usize| ten(0x42, 0, 0, len as u16);
    let list = unmap_list(&[(1, 2), (9, 0), (60, 4)]);
    assert_eq!(rig.run(&unmap(list.len()), Direction::Out, &list, 0).0, good(56, 56));
    let discards = [(Op::Discard, 512, 1024), (Op::Discard, 60 * 512, 2048)];
    assert_eq!(rig.control(|control| control.log.clone()), discards);
    rig.good(&unmap(0), Direction::None, &[], 0);
    rig.good(&unmap(8), Direction::Out, &unmap_list(&[]), 0);
    // A cut descriptor is ignored. A range off the medium fails the whole list.
    rig.good(&unmap(20), Direction::Out, &list[..20], 0);
    let list = unmap_list(&[(1, 2), (63, 2)]);
    assert_eq!(rig.bad_out(&unmap(list.len()), &list), (5, 0x2100, [0; 3]));
    assert_eq!(rig.bad_out(&unmap(7), &[0; 7]).1, 0x1a00);
    assert_eq!(rig.bad_out(&unmap(24), &[0; 8]).1, 0x1a00);
    let list = unmap_list(&[(0, 1); 257]);
    assert_eq!(rig.bad_out(&unmap(list.len()), &list), (5, 0x2600, [0x80, 0, 2]));
    assert_eq!(rig.bad(&ten(0x42, 1, 0, 24)), field(1, Some(0)));
    assert_eq!(rig.control(|control| control.log.len()), 2);
    let list = unmap_list(&[(1, 2)]);
    rig.control(|control| control.errors = [Some(os_error())].into());
    assert_eq!(rig.bad_out(&unmap(list.len()), &list), (3, 0x0c00, [0; 3]));
}

#[test]
fn compare_and_write() {
    let mut rig = Rig::small();
    let (old, new) = (pattern(2, 1), pattern(2, 2));
    rig.control(|control| control.data[2048..3072].copy_from_slice(&old));
    let swap = sixteen(0x89, 8, 4, 2);
    let both = [&old[..], &new].concat();
    assert_eq!(rig.run(&swap, Direction::Out, &both, 0).0, good(2048, 2048));
    rig.control(|control| {
        assert_eq!(control.data[2048..3072], new);
        assert_eq!(
            control.log,
            [(Op::Flush, 0, 0), (Op::Read, 2048, 1024), (Op::Write { fua: true }, 2048, 1024)]
        );
        control.data[2048 + 777] ^= 0x80;
    });
    let end = rig.run(&swap, Direction::Out, &[&new[..], &old].concat(), 0).0;
    assert_eq!(sense(&end)[..14], [0xf0, 0, 0x0e, 0, 0, 3, 9, 10, 0, 0, 0, 0, 0x1d, 0]);
    assert!(matches!(end, TaskEnd::Answered { transferred: 2048, wanted: 2048, .. }));
    assert_eq!(rig.bad_out(&swap, &old).1, 0x2400);
    rig.good(&sixteen(0x89, 0, 4, 0), Direction::None, &[], 0);
    assert_eq!(rig.bad(&sixteen(0x89, 0x20, 4, 1)), field(1, Some(5)));
    let mut big = Rig::fresh(disk::info(1024));
    big.attention();
    assert_eq!(big.bad(&sixteen(0x89, 0, 0, 129)), field(13, None));
    big.good(&sixteen(0x89, 0, 0, 128), Direction::Out, &[0; 131_072], 0);
}

#[test]
fn sectors_of_4096_bytes() {
    let mut rig = Rig::with(|info| info.logical_sector = SectorSize::B4096);
    let data: Vec<u8> = (0..8192).map(|at| (at % 253) as u8).collect();
    rig.good(&ten(0x2a, 0, 6, 2), Direction::Out, &data, 0);
    assert_eq!(rig.good(&ten(0x28, 0, 6, 2), Direction::In, &[], 8192), data);
    assert_eq!(rig.control(|control| control.data[24576..].to_vec()), data);
    rig.good(&ten(0x2f, 2, 6, 2), Direction::Out, &data, 0);
    rig.good(&ten(0x41, 0, 0, 3), Direction::Out, &data[4096..], 0);
    assert_eq!(rig.control(|control| control.data[8192..12288].to_vec()), data[4096..]);
    assert_eq!(rig.bad(&ten(0x28, 0, 7, 2)).1, 0x2100);
}

#[test]
fn lba_status() {
    let mut rig = Rig::small();
    rig.control(|control| control.data[512..2048].fill(1));
    let status = |alloc| sixteen(0x9e, 0x12, 0, alloc);
    let mut expected = vec![0, 0, 0, 52, 0, 0, 0, 0];
    for (lba, blocks, provision) in [(0, 1, 1), (1, 3, 0), (4, 60, 1)] {
        expected.extend([0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, blocks, provision, 0, 0, 0]);
    }
    assert_eq!(rig.data_in(&status(512)), expected);
    let one = rig.data_in(&sixteen(0x9e, 0x12, 2, 24));
    assert_eq!(one, [0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0]);
    assert_eq!(rig.data_in(&status(10)).len(), 10);
}

/// The cost of an answer does not depend on the size or content of the disk.
#[test]
fn lba_status_of_large_and_scattered_disks_is_bounded() {
    const MOST: usize = 64;
    const WINDOW: u64 = 16 << 20;
    let mut rig = Rig::fresh(disk::info(1 << 37));
    rig.attention();
    let lba = 1u64 << 30;
    let answer = rig.data_in(&sixteen(0x9e, 0x12, lba, 8192));
    // One descriptor for the ranges looked up, starting at the requested block.
    assert_eq!((answer.len(), &answer[8..16]), (24, &lba.to_be_bytes()[..]));
    let blocks = u32::from_be_bytes(answer[16..20].try_into().unwrap());
    assert!(blocks >= 1 << 20, "{blocks}");
    let mut looked_up = rig.control(|control| std::mem::take(&mut control.looked_up));
    assert!(looked_up.len() <= MOST && looked_up.iter().all(|(_, limit)| *limit <= WINDOW), "{looked_up:?}");
    // Each other sector.
    rig.control(|control| control.data.chunks_mut(512).step_by(2).for_each(|sector| sector[0] = 1));
    assert_eq!(rig.data_in(&sixteen(0x9e, 0x12, 0, 8192)).len(), 8 + 32 * 16);
    looked_up = rig.control(|control| std::mem::take(&mut control.looked_up));
    assert!(looked_up.len() <= MOST && looked_up.iter().all(|(_, limit)| *limit <= WINDOW), "{looked_up:?}");
}

#[test]
fn synchronize_cache_and_deferred_errors() {
    let mut rig = Rig::small();
    rig.good(&ten(0x35, 0, 0, 0), Direction::None, &[], 0);
    rig.good(&sixteen(0x91, 0, 1, 2), Direction::None, &[], 0);
    assert_eq!(rig.control(|control| std::mem::take(&mut control.log).len()), 2);
    // IMMED: GOOD before the flush has completed; the next command reports its failure.
    rig.control(|control| control.errors = [Some(os_error())].into());
    assert_eq!(rig.submit(1, &ten(0x35, 2, 0, 0), Attribute::Simple, Direction::None, &[]), Some(good(0, 0)));
    assert_eq!(rig.bus.in_flight(), 0);
    rig.bus.submit_pushed();
    assert!(rig.reap().is_empty());
    assert_eq!(rig.control(|control| control.log.len()), 1);
    let sense = sense(&rig.run(&[0; 6], Direction::None, &[], 0).0);
    assert_eq!((sense[0], sense[2], sense[12]), (0x71, 3, 0x0c));
    rig.good(&[0; 6], Direction::None, &[], 0);
}

/// READ takes the fast path, except while a condition is to be reported.
#[test]
fn a_deferred_error_comes_before_the_next_read() {
    let mut rig = Rig::small();
    rig.good(&ten(0x28, 0, 0, 1), Direction::In, &[], 512);
    rig.control(|control| control.errors = [Some(os_error())].into());
    assert_eq!(rig.submit(1, &ten(0x35, 2, 0, 0), Attribute::Simple, Direction::None, &[]), Some(good(0, 0)));
    rig.bus.submit_pushed();
    assert!(rig.reap().is_empty());
    let sense = sense(&rig.run(&ten(0x28, 0, 0, 1), Direction::In, &[], 512).0);
    assert_eq!((sense[0], sense[2], sense[12]), (0x71, 3, 0x0c));
    rig.good(&ten(0x28, 0, 0, 1), Direction::In, &[], 512);
}

/// If a flush fails whose command ended with GOOD, this is reported after a reset is, whichever came first.
#[test]
fn deferred_errors_outlive_a_reset() {
    for flush_first in [true, false] {
        let mut rig = Rig::small();
        rig.control(|control| (control.errors, control.allowed) = ([Some(os_error())].into(), 0));
        let flush = ten(0x35, 2, 0, 0);
        assert_eq!(rig.submit(1, &flush, Attribute::Simple, Direction::None, &[]), Some(good(0, 0)));
        rig.bus.submit_pushed();
        if flush_first {
            rig.control(|control| control.allowed = usize::MAX);
            assert!(rig.reap().is_empty());
        }
        rig.bus.reset_all();
        rig.control(|control| control.allowed = usize::MAX);
        assert!(rig.reap().is_empty());
        assert_eq!(rig.attention(), 0x2902);
        let sense = sense(&rig.run(&[0; 6], Direction::None, &[], 0).0);
        assert_eq!((sense[0], sense[2], sense[12]), (0x71, 3, 0x0c), "{flush_first}");
        rig.good(&[0; 6], Direction::None, &[], 0);
    }
}

#[test]
fn start_and_stop() {
    let mut rig = Rig::small();
    rig.good(&[0x1b, 0, 0, 0, 0, 0], Direction::None, &[], 0);
    assert_eq!(rig.control(|control| control.log.clone()), [(Op::Flush, 0, 0)]);
    let not_ready = (2, 0x0402, [0; 3]);
    assert_eq!(rig.bad(&[0; 6]), not_ready);
    assert_eq!(rig.bad(&ten(0x28, 0, 0, 1)), not_ready);
    rig.data_in(&[0x12, 0, 0, 0, 36, 0]);
    rig.good(&[0x1b, 1, 0, 0, 1, 0], Direction::None, &[], 0);
    rig.good(&ten(0x28, 0, 0, 1), Direction::In, &[], 512);
    rig.good(&[0x1b, 0, 0, 0, 4, 0], Direction::None, &[], 0);
    assert_eq!(rig.control(|control| control.log.len()), 2);
    rig.bus.reset_all();
    assert_eq!(rig.attention(), 0x2902);
    rig.good(&[0; 6], Direction::None, &[], 0);
}
