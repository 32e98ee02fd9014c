//! The task set: batches, barriers, full queues, aborts and resets with disk requests in flight.

use paradisk_disk_formats::{DiskInfo, Op};

use super::*;

/// A rig whose disk completes nothing until [`allow`].
fn held() -> Rig {
    let rig = Rig::small();
    rig.control(|control| control.allowed = 0);
    rig
}

fn write(rig: &mut Rig, id: u32, lba: u32, attribute: Attribute) -> Option<TaskEnd> {
    let at = id as usize * 512;
    rig.memory.buf(at, 512).write(&[id as u8 + 1; 512]);
    let bufs = [rig.memory.buf(at, 512)];
    rig.submit(id, &ten(0x2a, 0, lba, 1), attribute, Direction::Out, &bufs)
}

fn read(rig: &mut Rig, id: u32, lba: u32, attribute: Attribute) -> Option<TaskEnd> {
    let bufs = [rig.memory.buf(id as usize * 512, 512)];
    rig.submit(id, &ten(0x28, 0, lba, 1), attribute, Direction::In, &bufs)
}

fn byte(rig: &Rig, id: u32) -> u8 {
    let mut byte = [0];
    rig.memory.buf(id as usize * 512, 1).read(&mut byte);
    byte[0]
}

/// Let this many requests complete, and reap.
fn allow(rig: &mut Rig, count: usize) -> Vec<u32> {
    rig.bus.submit_pushed();
    rig.control(|control| control.allowed = count);
    rig.reap().into_iter().map(|(id, _)| id).collect()
}

#[test]
fn a_batch_is_one_submit_and_ends_in_any_order() {
    let mut rig = held();
    let submits = rig.bus.queue_stats().submits;
    for id in 0..8 {
        assert_eq!(write(&mut rig, id, id, Attribute::Simple), None);
    }
    assert_eq!(rig.bus.in_flight(), 8);
    rig.bus.submit_pushed();
    rig.bus.submit_pushed();
    assert_eq!(rig.bus.queue_stats().submits, submits + 1);
    rig.control(|control| control.reverse = true);
    assert_eq!(allow(&mut rig, 8), [7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(rig.bus.in_flight(), 0);
}

#[test]
fn task_numbers_in_flight_are_not_taken_twice() {
    let mut rig = held();
    assert_eq!(write(&mut rig, 0, 0, Attribute::Simple), None);
    let full = TaskEnd::Answered { status: Status::TaskSetFull, transferred: 0, wanted: 0, sense: None };
    assert_eq!(write(&mut rig, 0, 1, Attribute::Simple), Some(full));
    assert_eq!(rig.submit(64, &[0; 6], Attribute::Simple, Direction::None, &[]), Some(full));
    assert_eq!(allow(&mut rig, 1), [0]);
    assert_eq!(write(&mut rig, 0, 1, Attribute::Simple), None);
}

#[test]
fn a_full_queue_keeps_tasks_in_order() {
    let mut rig = held();
    for id in 0..40 {
        assert_eq!(write(&mut rig, id, id, Attribute::Simple), None);
    }
    let mut ended = Vec::new();
    for _ in 0..40 {
        ended.extend(allow(&mut rig, 4));
    }
    assert_eq!(ended, (0..40).collect::<Vec<_>>());
    let data = rig.control(|control| control.data.clone());
    assert!((0..40).all(|id| data[id * 512..][..512] == [id as u8 + 1; 512]));
}

#[test]
fn ordered_tasks_are_barriers() {
    let mut rig = held();
    write(&mut rig, 0, 5, Attribute::Simple);
    write(&mut rig, 1, 5, Attribute::Ordered);
    read(&mut rig, 2, 5, Attribute::Simple);
    write(&mut rig, 3, 5, Attribute::Ordered);
    // INQUIRY never waits; other commands without disk I/O do.
    let inquiry = rig.submit(4, &[0x12, 0, 0, 0, 0, 0], Attribute::Simple, Direction::None, &[]);
    assert_eq!(inquiry, Some(good(0, 0)));
    assert_eq!(rig.submit(5, &[0; 6], Attribute::Simple, Direction::None, &[]), None);
    assert_eq!(allow(&mut rig, 9), [0]);
    assert_eq!(allow(&mut rig, 9), [1]);
    assert_eq!(allow(&mut rig, 9), [2]);
    assert_eq!(byte(&rig, 2), 2);
    assert_eq!(allow(&mut rig, 9), [3, 5]);
    assert_eq!(rig.control(|control| control.data[5 * 512]), 4);
    assert_eq!(rig.bus.in_flight(), 0);
}

#[test]
fn head_of_queue_goes_past_those_that_wait() {
    let mut rig = held();
    write(&mut rig, 0, 5, Attribute::Simple);
    write(&mut rig, 1, 5, Attribute::Ordered);
    read(&mut rig, 2, 5, Attribute::HeadOfQueue);
    assert_eq!(allow(&mut rig, 9), [0, 2]);
    assert_eq!(byte(&rig, 2), 1);
    assert_eq!(allow(&mut rig, 9), [1]);
}

#[test]
fn nothing_comes_between_compare_and_write() {
    let mut rig = held();
    write(&mut rig, 0, 5, Attribute::Simple);
    let old_and_new = [rig.memory.buf(8192, 512), rig.memory.buf(9000, 512)];
    old_and_new[0].write(&[1; 512]);
    old_and_new[1].write(&[0x77; 512]);
    rig.submit(1, &sixteen(0x89, 0, 5, 1), Attribute::Simple, Direction::Out, &old_and_new);
    write(&mut rig, 2, 5, Attribute::Simple);
    read(&mut rig, 3, 5, Attribute::HeadOfQueue);
    // Before all waiting tasks, including the swap that has not begun.
    assert_eq!(allow(&mut rig, 9), [0, 3]);
    assert_eq!(byte(&rig, 3), 1);
    read(&mut rig, 3, 5, Attribute::HeadOfQueue);
    assert!(allow(&mut rig, 1).is_empty());
    // If the read were in the disk's queue beside the write, it would now complete first.
    rig.control(|control| control.reverse = true);
    assert_eq!(allow(&mut rig, 9), [1]);
    assert_eq!(rig.control(|control| control.data[5 * 512]), 0x77);
    rig.control(|control| control.reverse = false);
    assert_eq!(allow(&mut rig, 9), [3, 2]);
    assert_eq!(byte(&rig, 3), 0x77);
    assert_eq!(rig.control(|control| control.data[5 * 512]), 3);
}

#[test]
fn jobs_run_one_after_the_other_and_simple_tasks_beside_them() {
    // Without a volatile cache, VERIFY has no flush.
    let mut rig = Rig::fresh(DiskInfo { volatile_cache: false, ..disk::info(1024) });
    rig.attention();
    rig.control(|control| control.allowed = 0);
    for id in [0, 1] {
        assert_eq!(rig.submit(id, &ten(0x2f, 0, 0, 300), Attribute::Simple, Direction::None, &[]), None);
    }
    write(&mut rig, 2, 0, Attribute::Simple);
    assert_eq!(allow(&mut rig, 9), [2]);
    assert_eq!((allow(&mut rig, 9), allow(&mut rig, 9)), (vec![], vec![0]));
    // Both the waiting and the running task can be aborted.
    rig.submit(3, &ten(0x2f, 0, 0, 300), Attribute::Simple, Direction::None, &[]);
    assert!(rig.bus.abort(3));
    assert_eq!(rig.reap(), [(3, TaskEnd::Aborted)]);
    rig.control(|control| control.allowed = 0);
    assert!(rig.bus.abort(1));
    assert!(rig.reap().is_empty());
    rig.control(|control| control.allowed = 9);
    assert_eq!(rig.reap(), [(1, TaskEnd::Aborted)]);
    assert_eq!(rig.bus.in_flight(), 0);
    rig.control(|control| control.allowed = usize::MAX);
    rig.good(&ten(0x2f, 0, 0, 300), Direction::None, &[], 0);
}

#[test]
fn aborted_tasks_end_when_their_disk_request_is_over() {
    let mut rig = held();
    read(&mut rig, 0, 0, Attribute::Simple);
    write(&mut rig, 1, 0, Attribute::Ordered);
    write(&mut rig, 2, 1, Attribute::Simple);
    rig.bus.submit_pushed();
    assert!(rig.bus.abort(0));
    assert!(rig.bus.abort(0));
    assert!(!rig.bus.abort(9));
    assert!(rig.reap().is_empty());
    // The waiting task ends at once. Tasks that waited for it no longer do.
    assert!(rig.bus.abort(1));
    assert_eq!(rig.reap(), [(1, TaskEnd::Aborted)]);
    rig.control(|control| control.allowed = 9);
    assert_eq!(rig.reap(), [(0, TaskEnd::Aborted), (2, good(512, 512))]);
    assert!(!rig.bus.abort(0));
    assert_eq!(rig.bus.in_flight(), 0);
}

#[test]
fn abort_stops_a_task_between_its_steps() {
    let mut rig = held();
    // A read with FUA: a flush goes before it.
    rig.submit(0, &ten(0x28, 8, 0, 1), Attribute::Simple, Direction::In, &[rig.memory.buf(0, 512)]);
    rig.bus.abort(0);
    rig.bus.submit_pushed();
    rig.control(|control| control.allowed = 9);
    assert_eq!(rig.reap(), [(0, TaskEnd::Aborted)]);
    assert_eq!(rig.control(|control| control.log.clone()), [(Op::Flush, 0, 0)]);
}

#[test]
fn tasks_end_as_reset_when_the_disk_has_done_with_them() {
    let mut rig = held();
    rig.control(|control| control.data.fill(0x55));
    for id in 0..20 {
        read(&mut rig, id, id, if id == 9 { Attribute::Ordered } else { Attribute::Simple });
    }
    rig.submit(20, &ten(0x2f, 0, 0, 9), Attribute::HeadOfQueue, Direction::None, &[]);
    rig.bus.submit_pushed();
    rig.bus.reset_unit(HERE);
    assert!(rig.bus.resetting(|address| address == HERE) && !rig.bus.resetting(|address| address != HERE));
    // Waiting tasks end at once. Reads in the disk end when it completes them.
    let mut ended = rig.reap();
    assert!(!ended.is_empty() && ended.len() < 21);
    // New tasks wait for these reads.
    rig.control(|control| control.log.clear());
    write(&mut rig, 21, 60, Attribute::HeadOfQueue);
    rig.control(|control| control.allowed = 5);
    ended.extend(rig.reap());
    assert!(rig.bus.resetting(|_| true));
    let early: Vec<u32> = ended.iter().map(|(id, _)| *id).filter(|id| *id < 20).collect();
    for &id in &early {
        rig.memory.buf(id as usize * 512, 512).write(&[0xaa; 512]);
    }
    rig.control(|control| control.allowed = usize::MAX);
    let last = rig.reap();
    assert!(!rig.bus.resetting(|_| true));
    assert!(
        rig.control(|control| !control.log.iter().any(|(op, ..)| matches!(op, Op::Write { .. }))),
        "the write came first"
    );
    ended.extend(last);
    ended.sort_by_key(|(id, _)| *id);
    let attention = ended.pop();
    assert!(
        matches!(attention, Some((21, TaskEnd::Answered { status: Status::CheckCondition, .. }))),
        "{attention:?}"
    );
    assert_eq!(ended, (0..21).map(|id| (id, TaskEnd::Reset)).collect::<Vec<_>>());
    assert!(rig.reap().is_empty());
    assert_eq!(rig.bus.in_flight(), 0);
    assert!(early.iter().all(|id| byte(&rig, *id) == 0xaa));
    rig.good(&ten(0x28, 0, 0, 1), Direction::In, &[], 512);
}

#[test]
fn a_reset_of_a_target_leaves_others_alone() {
    let mut rig = held();
    let other = Address { target: 4, lun: 0 };
    let unit = LogicalUnit::new(rig.disk.clone(), rig.disk.memory_queue(4), identity());
    rig.bus.attach(other, unit).unwrap();
    write(&mut rig, 0, 0, Attribute::Simple);
    rig.bus.reset_target(4);
    assert!(rig.reap().is_empty());
    assert_eq!(allow(&mut rig, 1), [0]);
    write(&mut rig, 0, 0, Attribute::Simple);
    assert!(rig.bus.detach(HERE));
    assert!(!rig.bus.detach(HERE));
    // The address is free, and the task ends when the disk completes it.
    assert!(rig.reap().is_empty() && rig.bus.detaching(HERE));
    assert_eq!(write(&mut rig, 1, 0, Attribute::Simple), Some(TaskEnd::NoTarget));
    assert_eq!(rig.bus.events().len(), 2);
    let again = LogicalUnit::new(rig.disk.clone(), rig.disk.memory_queue(4), identity());
    rig.bus.attach(HERE, again).unwrap();
    assert_eq!(rig.bus.events().len(), 3);
    assert_eq!(rig.bus.addresses().filter(|address| *address == HERE).count(), 1);
    rig.control(|control| control.allowed = usize::MAX);
    assert_eq!(rig.reap(), [(0, TaskEnd::Reset)]);
    assert!(!rig.bus.detaching(HERE));
    assert_eq!(rig.bus.events().len(), 2);
    assert_eq!(rig.attention(), 0x2901);
    // The index is free for the next unit, too. A unit without disk I/O is dropped at once.
    assert!(rig.bus.detach(HERE) && !rig.bus.detaching(HERE));
    let unit = LogicalUnit::new(rig.disk.clone(), rig.disk.memory_queue(4), identity());
    rig.bus.attach(HERE, unit).unwrap();
    assert_eq!(rig.attention(), 0x2901);
}

#[test]
fn drain_waits_for_all() {
    let mut rig = held();
    for id in 0..40 {
        write(&mut rig, id, id, if id % 7 == 0 { Attribute::Ordered } else { Attribute::Simple });
    }
    rig.bus.drain();
    assert_eq!(rig.bus.in_flight(), 40);
    let mut ids: Vec<u32> = rig.reap().into_iter().map(|(id, _)| id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..40).collect::<Vec<_>>());
    assert_eq!(rig.bus.in_flight(), 0);
}

/// An adapter without bus mastering does not reap.
#[test]
fn a_unit_that_was_detached_is_dropped_when_all_is_drained() {
    let mut rig = held();
    read(&mut rig, 0, 0, Attribute::Simple);
    rig.bus.submit_pushed();
    assert!(rig.bus.detach(HERE) && rig.bus.detaching(HERE));
    rig.control(|control| control.allowed = 9);
    rig.bus.drain();
    assert!(!rig.bus.detaching(HERE));
    assert_eq!(rig.bus.events().len(), 0);
    assert_eq!(rig.reap(), [(0, TaskEnd::Reset)]);
    assert_eq!(rig.bus.in_flight(), 0);
}
