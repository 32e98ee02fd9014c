//! Reservations, unit attention and changes of capacity.

use super::*;

/// PERSISTENT RESERVE OUT: its status, and the sense code or 0.
fn out(rig: &mut Rig, action: u8, kind: u8, key: u64, action_key: u64, flags: u8) -> (Status, u16) {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    match rig.run(&cdb, Direction::Out, &list, 0).0 {
        TaskEnd::Answered { status, sense: None, .. } => (status, 0),
        end => (Status::CheckCondition, summary(&end).1),
    }
}

fn report(rig: &mut Rig, action: u8) -> Vec<u8> {
    rig.data_in(&[0x5e, action, 0, 0, 0, 0, 0, 1, 0, 0])
}

const OK: (Status, u16) = (Status::Good, 0);
const CONFLICT: (Status, u16) = (Status::ReservationConflict, 0);

#[test]
fn persistent_reservations() {
    let mut rig = Rig::small();
    assert_eq!(report(&mut rig, 0), [0; 8]);
    assert_eq!(report(&mut rig, 2), [0, 8, 0, 0x80, 0xea, 1, 0, 0]);
    assert_eq!(out(&mut rig, 1, 5, 0, 0, 0), CONFLICT);
    assert_eq!(out(&mut rig, 0, 0, 9, 0x11, 0), CONFLICT);
    assert_eq!(out(&mut rig, 0, 0, 0, 0x11, 1), (Status::CheckCondition, 0x2600));
    assert_eq!(out(&mut rig, 0, 0, 0, 0x11, 0), OK);
    assert_eq!(report(&mut rig, 0), [0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0x11]);
    assert_eq!(out(&mut rig, 0, 0, 0, 0x12, 0), CONFLICT);
    assert_eq!(out(&mut rig, 6, 0, 0, 0x12, 0), OK);
    // Reserve: type and scope must be supported, the key must match, another type conflicts.
    assert_eq!(out(&mut rig, 1, 2, 0x12, 0, 0), (Status::CheckCondition, 0x2400));
    assert_eq!(out(&mut rig, 1, 0x15, 0x12, 0, 0), (Status::CheckCondition, 0x2400));
    assert_eq!(out(&mut rig, 1, 5, 0x11, 0, 0), CONFLICT);
    assert_eq!(out(&mut rig, 1, 5, 0x12, 0, 0), OK);
    assert_eq!(out(&mut rig, 1, 5, 0x12, 0, 0), OK);
    assert_eq!(out(&mut rig, 1, 6, 0x12, 0, 0), CONFLICT);
    let reservation = report(&mut rig, 1);
    assert_eq!(reservation[..16], [0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0x12]);
    assert_eq!(reservation[16..], [0, 0, 0, 0, 0, 5, 0, 0]);
    // The holder's commands do not conflict. A reset does not end the reservation.
    rig.good(&ten(0x2a, 0, 0, 1), Direction::Out, &[1; 512], 0);
    rig.bus.reset_unit(HERE);
    rig.attention();
    assert_eq!(report(&mut rig, 1).len(), 24);
    assert_eq!(out(&mut rig, 2, 6, 0x12, 0, 0), (Status::CheckCondition, 0x2604));
    assert_eq!(out(&mut rig, 2, 5, 0x12, 0, 0), OK);
    assert_eq!(report(&mut rig, 1).len(), 8);
    // Preempt: own reservation with another type; keys that are not registered.
    assert_eq!(out(&mut rig, 1, 1, 0x12, 0, 0), OK);
    assert_eq!(out(&mut rig, 4, 7, 0x12, 0x99, 0), CONFLICT);
    assert_eq!(out(&mut rig, 4, 7, 0x12, 0, 0), (Status::CheckCondition, 0x2600));
    assert_eq!(out(&mut rig, 5, 7, 0x12, 0x12, 0), OK);
    let reservation = report(&mut rig, 1);
    assert_eq!(
        (&reservation[..4], &reservation[8..16], reservation[21]),
        (&[0, 0, 0, 3][..], &[0; 8][..], 7)
    );
    assert_eq!(out(&mut rig, 4, 3, 0x12, 0, 0), OK);
    assert_eq!(report(&mut rig, 1)[21], 3);
    assert_eq!(out(&mut rig, 3, 0, 0x12, 0, 0), OK);
    assert_eq!(report(&mut rig, 0), [0, 0, 0, 5, 0, 0, 0, 0]);
    // Unregistering releases the reservation.
    assert_eq!(out(&mut rig, 6, 0, 0, 1, 0), OK);
    assert_eq!(out(&mut rig, 1, 1, 1, 0, 0), OK);
    assert_eq!(out(&mut rig, 0, 0, 1, 0, 0), OK);
    assert_eq!(report(&mut rig, 1), [0, 0, 0, 7, 0, 0, 0, 0]);
}

/// REGISTER AND MOVE to a SAS initiator port: its status, and the sense code or 0.
fn move_to(rig: &mut Rig, key: u64, action_key: u64, flags: u8, initiator: u64) -> (Status, u16) {
    move_with(rig, key, action_key, initiator, |list| list[17] = flags)
}

fn move_with(
    rig: &mut Rig,
    key: u64,
    action_key: u64,
    initiator: u64,
    change: impl FnOnce(&mut [u8]),
) -> (Status, u16) {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0, 0, 0, 1, 0, 0, 0, 24]].concat();
    list.extend([[6, 0, 0, 0].as_slice(), &initiator.to_be_bytes(), &[0; 12]].concat());
    change(&mut list);
    match rig.run(&[0x5f, 7, 0, 0, 0, 0, 0, 0, 48, 0], Direction::Out, &list, 0).0 {
        TaskEnd::Answered { status, sense: None, .. } => (status, 0),
        end => (Status::CheckCondition, summary(&end).1),
    }
}

/// The descriptor of a nexus in READ FULL STATUS data.
fn full_status(key: u8, holds: Option<u8>, initiator: u64) -> Vec<u8> {
    let (flags, kind) = (u8::from(holds.is_some()), holds.unwrap_or(0));
    let status = [0, 0, 0, 0, 0, 0, 0, key, 0, 0, 0, 0, flags, kind, 0, 0, 0, 0, 0, 1, 0, 0, 0, 24];
    [&status[..], &[6, 0, 0, 0], &initiator.to_be_bytes(), &[0; 12]].concat()
}

/// The nexus of the bus.
const OURS: u64 = 0x3000_0000_0000_0001;
const OTHER: u64 = 0x5000_0000_0000_0002;

#[test]
fn full_status_of_registrations() {
    let mut rig = Rig::small();
    assert_eq!(report(&mut rig, 3), [0; 8]);
    assert_eq!(out(&mut rig, 6, 0, 0, 0x11, 0), OK);
    let header = [0, 0, 0, 1, 0, 0, 0, 48];
    assert_eq!(report(&mut rig, 3), [&header[..], &full_status(0x11, None, OURS)].concat());
    assert_eq!(out(&mut rig, 1, 7, 0x11, 0, 0), OK);
    assert_eq!(report(&mut rig, 3), [&header[..], &full_status(0x11, Some(7), OURS)].concat());
    // Cut at the allocation length.
    assert_eq!(rig.data_in(&[0x5e, 3, 0, 0, 0, 0, 0, 0, 9, 0]).len(), 9);
}

#[test]
fn a_reservation_is_moved_to_another_nexus_and_preempted() {
    let mut rig = Rig::small();
    assert_eq!(out(&mut rig, 6, 0, 0, 0x11, 0), OK);
    assert_eq!(out(&mut rig, 1, 1, 0x11, 0, 0), OK);
    assert_eq!(move_to(&mut rig, 0x11, 0x22, 0, OTHER), OK);
    let keys = report(&mut rig, 0);
    assert_eq!((&keys[..8], keys[15], keys[23]), (&[0, 0, 0, 2, 0, 0, 0, 16][..], 0x11, 0x22));
    let reservation = report(&mut rig, 1);
    assert_eq!((reservation[15], reservation[21]), (0x22, 1));
    let both = [full_status(0x11, None, OURS), full_status(0x22, Some(1), OTHER)].concat();
    assert_eq!(report(&mut rig, 3), [&[0, 0, 0, 2, 0, 0, 0, 96][..], &both].concat());
    // Write Exclusive: reads only, after a reset as well.
    let write = ten(0x2a, 0, 0, 1);
    let conflicts = |rig: &mut Rig, cdb: &[u8], direction| {
        let end = rig.run(cdb, direction, &[0; 512], 0).0;
        matches!(end, TaskEnd::Answered { status: Status::ReservationConflict, transferred: 0, .. })
    };
    assert!(conflicts(&mut rig, &write, Direction::Out));
    assert!(conflicts(&mut rig, &ten(0x35, 0, 0, 0), Direction::None));
    assert!(conflicts(&mut rig, &[0x1b, 0, 0, 0, 0, 0], Direction::None));
    rig.good(&ten(0x28, 0, 0, 1), Direction::In, &[], 512);
    rig.bus.reset_unit(HERE);
    rig.attention();
    assert!(conflicts(&mut rig, &write, Direction::Out));
    // Reserving and moving again conflict. Releasing has no effect.
    assert_eq!(out(&mut rig, 1, 1, 0x11, 0, 0), CONFLICT);
    assert_eq!(move_to(&mut rig, 0x11, 0x33, 0, OTHER), CONFLICT);
    assert_eq!(out(&mut rig, 2, 1, 0x11, 0, 0), OK);
    assert_eq!(report(&mut rig, 1)[15], 0x22);
    // Unregistering ourselves does not release it.
    assert_eq!(out(&mut rig, 6, 0, 0, 0, 0), OK);
    assert!(conflicts(&mut rig, &write, Direction::Out));
    let end = rig.run(&[0x16, 0, 0, 0, 0, 0], Direction::None, &[], 0).0;
    assert!(matches!(end, TaskEnd::Answered { status: Status::ReservationConflict, .. }));
    assert_eq!(out(&mut rig, 6, 0, 0, 0x44, 0), OK);
    assert_eq!(out(&mut rig, 4, 3, 0x44, 0x22, 0), OK);
    assert_eq!(report(&mut rig, 3)[8..], full_status(0x44, Some(3), OURS));
    rig.good(&write, Direction::Out, &[0; 512], 0);
}

#[test]
fn what_a_moved_reservation_of_each_type_allows() {
    // Type, UNREG; whether reads and writes are then permitted.
    for (kind, unreg, reads, writes) in [
        (1, 2, true, false),
        (3, 0, false, false),
        (5, 0, true, true),
        (5, 2, true, false),
        (6, 0, true, true),
        (6, 2, false, false),
    ] {
        let mut rig = Rig::small();
        assert_eq!(out(&mut rig, 6, 0, 0, 0x11, 0), OK);
        assert_eq!(out(&mut rig, 1, kind, 0x11, 0, 0), OK);
        assert_eq!(move_to(&mut rig, 0x11, 0x22, unreg, OTHER), OK);
        let goes = |rig: &mut Rig, cdb: &[u8], direction| {
            let end = rig.run(cdb, direction, &[0; 512], 0).0;
            matches!(end, TaskEnd::Answered { status: Status::Good, .. })
        };
        for cdb in
            [ten(0x28, 0, 0, 1).to_vec(), ten(0x2f, 0, 0, 1).to_vec(), sixteen(0x9e, 0x12, 0, 24).to_vec()]
        {
            assert_eq!(goes(&mut rig, &cdb, Direction::Either), reads, "{kind} {unreg}: {cdb:02x?}");
        }
        for cdb in [&ten(0x2a, 0, 0, 1)[..], &ten(0x2e, 0, 0, 1), &ten(0x41, 0, 0, 1), &ten(0x35, 0, 0, 0)] {
            assert_eq!(goes(&mut rig, cdb, Direction::Out), writes, "{kind} {unreg}: {cdb:02x?}");
        }
        for cdb in [&[0; 6][..], &[0x12, 0, 0, 0, 36, 0], &ten(0x25, 0, 0, 0), &ten(0x4d, 0, 0, 8)] {
            assert!(goes(&mut rig, cdb, Direction::Either), "{kind} {unreg}: {cdb:02x?}");
        }
    }
}

#[test]
fn reservations_that_cannot_be_moved() {
    let mut rig = Rig::small();
    let bad = (Status::CheckCondition, 0x2600);
    assert_eq!(move_to(&mut rig, 0, 0x22, 0, OTHER), CONFLICT);
    assert_eq!(out(&mut rig, 6, 0, 0, 0x11, 0), OK);
    // Nothing is reserved.
    assert_eq!(move_to(&mut rig, 0x11, 0x22, 0, OTHER), (Status::CheckCondition, 0x2400));
    assert_eq!(out(&mut rig, 1, 8, 0x11, 0, 0), OK);
    assert_eq!(move_to(&mut rig, 0x11, 0x22, 0, OTHER), CONFLICT);
    assert_eq!(out(&mut rig, 4, 5, 0x11, 0, 0), OK);
    assert_eq!(move_to(&mut rig, 0x12, 0x22, 0, OTHER), CONFLICT);
    // No key, a key that persists, the same nexus.
    assert_eq!(move_to(&mut rig, 0x11, 0, 0, OTHER), bad);
    assert_eq!(move_to(&mut rig, 0x11, 0x22, 1, OTHER), bad);
    assert_eq!(move_to(&mut rig, 0x11, 0x22, 0, OURS), bad);
    // Another target port, another length, another protocol (iSCSI).
    for (at, byte) in [(19, 2), (23, 20), (24, 5)] {
        assert_eq!(move_with(&mut rig, 0x11, 0x22, OTHER, |list| list[at] = byte), bad, "{at}");
    }
    assert_eq!(report(&mut rig, 3)[8..], full_status(0x11, Some(5), OURS));
    assert_eq!(move_to(&mut rig, 0x11, 0x22, 0, OTHER), OK);
    assert_eq!(out(&mut rig, 3, 0, 0x11, 0, 0), OK);
    assert_eq!(report(&mut rig, 3)[4..], [0; 4]);
}

#[test]
fn bad_reservation_commands() {
    let mut rig = Rig::small();
    assert_eq!(rig.bad(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 23, 0]).1, 0x1a00);
    assert_eq!(rig.bad_out(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &[0; 20]).1, 0x1a00);
    assert_eq!(rig.bad(&[0x5f, 8, 0, 0, 0, 0, 0, 0, 24, 0]), field(1, Some(4)));
    assert_eq!(rig.bad(&[0x5f, 7, 0, 0, 0, 0, 0, 0, 24, 0]).1, 0x1a00);
    assert_eq!(rig.bad(&[0x5e, 4, 0, 0, 0, 0, 0, 0, 24, 0]), field(1, Some(4)));
    assert_eq!(
        rig.run(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], Direction::In, &[], 24).0,
        TaskEnd::WrongDirection
    );
}

#[test]
fn reserve_and_release() {
    let mut rig = Rig::small();
    let (reserve, release) = ([0x16, 0, 0, 0, 0, 0], [0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    rig.good(&reserve, Direction::None, &[], 0);
    assert_eq!(out(&mut rig, 6, 0, 0, 1, 0), CONFLICT);
    rig.bus.reset_target(3);
    assert_eq!(rig.attention(), 0x2903);
    assert_eq!(out(&mut rig, 6, 0, 0, 1, 0), OK);
    let end = rig.run(&reserve, Direction::None, &[], 0).0;
    assert!(matches!(end, TaskEnd::Answered { status: Status::ReservationConflict, .. }));
    assert_eq!(out(&mut rig, 6, 0, 0, 0, 0), OK);
    rig.good(&reserve, Direction::None, &[], 0);
    rig.good(&release, Direction::None, &[], 0);
    assert_eq!(out(&mut rig, 6, 0, 0, 1, 0), OK);
    assert_eq!(rig.bad(&[0x16, 1, 0, 0, 0, 0]), field(1, Some(0)));
}

#[test]
fn unit_attention_is_reported_once_and_before_the_command() {
    let mut rig = Rig::fresh(disk::info(64));
    assert_eq!(rig.bad_out(&ten(0x2a, 0, 0, 1), &[1; 512]), (6, 0x2901, [0; 3]));
    assert!(rig.control(|control| control.log.is_empty()));
    rig.good(&ten(0x2a, 0, 0, 1), Direction::Out, &[1; 512], 0);
    rig.bus.reset_all();
    assert_eq!(rig.bad(&[0xff; 6]), (6, 0x2902, [0; 3]));
    assert_eq!(rig.bad(&[0xff; 6]), (5, 0x2000, [0; 3]));
}

#[test]
fn a_grown_disk_is_told_of() {
    let mut rig = Rig::small();
    rig.disk.grow(80 * 512);
    assert_eq!(rig.bad(&ten(0x28, 0, 64, 1)).1, 0x2100);
    rig.bus.refresh();
    assert_eq!(rig.attention(), 0x2a09);
    assert_eq!(rig.data_in(&ten(0x25, 0, 0, 0))[3], 79);
    rig.bus.refresh();
    rig.good(&[0; 6], Direction::None, &[], 0);
    // Without `refresh`, READ CAPACITY and TEST UNIT READY detect the change.
    let mut rig = Rig::small();
    rig.disk.grow(80 * 512);
    assert_eq!(rig.data_in(&ten(0x25, 0, 0, 0))[3], 79);
    assert_eq!(rig.attention(), 0x2a09);
    assert_eq!(rig.bus.refresh().len(), 1, "for adapters that tell it in a way of their own");
    assert!(rig.bus.refresh().is_empty());
}

/// A unit that still has to report a reset does not also report changed LUNs.
#[test]
fn a_reset_includes_that_units_were_attached() {
    let mut rig = Rig::fresh(disk::info(64));
    let unit = || LogicalUnit::new(rig.disk.clone(), rig.disk.memory_queue(4), identity());
    let (first, second) = (unit(), unit());
    rig.bus.attach(Address { lun: 1, ..HERE }, first).unwrap();
    assert_eq!(rig.attention(), 0x2901);
    rig.good(&[0; 6], Direction::None, &[], 0);
    rig.bus.attach(Address { lun: 2, ..HERE }, second).unwrap();
    assert_eq!(rig.attention(), 0x3f0e);
    rig.good(&[0; 6], Direction::None, &[], 0);
}
