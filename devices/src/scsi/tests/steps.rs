//! Commands of several disk requests: the last request, and errors.

use paradisk_disk_formats::{IoError, Op};

use super::medium::{os_error, unmap_list};
use super::*;

/// MODE SELECT that turns the write cache off.
fn write_cache_off() -> Vec<u8> {
    let mut list = vec![0; 4];
    list.extend([0x08, 0x12]);
    list.resize(24, 0);
    list
}

fn ops(rig: &Rig) -> Vec<Op> {
    rig.control(|control| control.log.drain(..).map(|(op, ..)| op).collect())
}

const WRITE: Op = Op::Write { fua: false };

#[test]
fn data_are_flushed_where_the_write_cache_is_off() {
    let mut rig = Rig::small();
    let unmap = unmap_list(&[(1, 2), (9, 4)]);
    let unmap_cdb = ten(0x42, 0, 0, unmap.len() as u16);
    for off in [false, true] {
        if off {
            rig.good(&[0x15, 0x10, 0, 0, 24, 0], Direction::Out, &write_cache_off(), 0);
            assert_eq!(ops(&rig), [Op::Flush]);
        }
        let flush = off.then_some(Op::Flush);
        rig.good(&ten(0x41, 0, 0, 9), Direction::Out, &[5; 512], 0);
        assert_eq!(ops(&rig), [WRITE].into_iter().chain(flush).collect::<Vec<_>>());
        rig.good(&unmap_cdb, Direction::Out, &unmap, 0);
        assert_eq!(ops(&rig), [Op::Discard; 2].into_iter().chain(flush).collect::<Vec<_>>());
    }
    // The flush is the last step, and may fail.
    rig.control(|control| control.errors = [None, Some(IoError::NoSpace)].into());
    assert_eq!(rig.bad_out(&ten(0x41, 0, 0, 9), &[5; 512]).1, 0x2707);
}

/// The write cache is turned off between two steps.
#[test]
fn the_mode_parameters_of_the_end_decide_on_the_flush() {
    let mut rig = Rig::fresh(disk::info(1024));
    rig.attention();
    rig.control(|control| control.allowed = 0);
    rig.memory.buf(0, 512).write(&[5; 512]);
    let block = [rig.memory.buf(0, 512)];
    assert!(rig.submit(1, &ten(0x41, 0, 0, 200), Attribute::Simple, Direction::Out, &block).is_none());
    rig.memory.buf(512, 24).write(&write_cache_off());
    let list = [rig.memory.buf(512, 24)];
    let select = [0x15, 0x10, 0, 0, 24, 0];
    assert!(rig.submit(2, &select, Attribute::Simple, Direction::Out, &list).is_none());
    rig.bus.submit_pushed();
    rig.control(|control| control.allowed = usize::MAX);
    let mut ended: Vec<u32> = (0..4).flat_map(|_| rig.reap()).map(|(id, _)| id).collect();
    ended.sort_unstable();
    assert_eq!(ended, [1, 2]);
    assert_eq!(ops(&rig), [WRITE, Op::Flush, WRITE, Op::Flush]);
}

#[test]
fn a_failed_flush_between_two_steps_is_reported_at_the_first_block() {
    let mut rig = Rig::small();
    rig.control(|control| control.errors = [None, Some(os_error())].into());
    let end = rig.run(&ten(0x2e, 0, 7, 1), Direction::Out, &[5; 512], 0).0;
    assert_eq!(sense(&end)[..7], [0xf0, 0, 3, 0, 0, 0, 7]);
}
