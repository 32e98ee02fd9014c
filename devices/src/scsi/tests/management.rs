//! Reservations, unit attention and changes of capacity.

use super::*;

/// PERSISTENT RESERVE OUT: its status, and the sense code where there is one.
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
    // Reserve: the type and scope must be, the key must fit, another type conflicts.
    assert_eq!(out(&mut rig, 1, 2, 0x12, 0, 0), (Status::CheckCondition, 0x2400));
    assert_eq!(out(&mut rig, 1, 0x15, 0x12, 0, 0), (Status::CheckCondition, 0x2400));
    assert_eq!(out(&mut rig, 1, 5, 0x11, 0, 0), CONFLICT);
    assert_eq!(out(&mut rig, 1, 5, 0x12, 0, 0), OK);
    assert_eq!(out(&mut rig, 1, 5, 0x12, 0, 0), OK);
    assert_eq!(out(&mut rig, 1, 6, 0x12, 0, 0), CONFLICT);
    let reservation = report(&mut rig, 1);
    assert_eq!(reservation[..16], [0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0x12]);
    assert_eq!(reservation[16..], [0, 0, 0, 0, 0, 5, 0, 0]);
    // The holder itself is not kept out; nor does a reset end the reservation.
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
    // Giving the registration up gives the reservation up.
    assert_eq!(out(&mut rig, 6, 0, 0, 1, 0), OK);
    assert_eq!(out(&mut rig, 1, 1, 1, 0, 0), OK);
    assert_eq!(out(&mut rig, 0, 0, 1, 0, 0), OK);
    assert_eq!(report(&mut rig, 1), [0, 0, 0, 7, 0, 0, 0, 0]);
}

#[test]
fn bad_reservation_commands() {
    let mut rig = Rig::small();
    assert_eq!(rig.bad(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 23, 0]).1, 0x1a00);
    assert_eq!(rig.bad_out(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &[0; 20]).1, 0x1a00);
    assert_eq!(rig.bad(&[0x5f, 7, 0, 0, 0, 0, 0, 0, 24, 0]), field(1, Some(4)));
    assert_eq!(rig.bad(&[0x5e, 3, 0, 0, 0, 0, 0, 0, 24, 0]), field(1, Some(4)));
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
    // Without being told, READ CAPACITY and TEST UNIT READY find it out.
    let mut rig = Rig::small();
    rig.disk.grow(80 * 512);
    assert_eq!(rig.data_in(&ten(0x25, 0, 0, 0))[3], 79);
    assert_eq!(rig.attention(), 0x2a09);
    assert_eq!(rig.bus.refresh().len(), 1, "for adapters that tell it in a way of their own");
    assert!(rig.bus.refresh().is_empty());
}
