//! The interrupt register and the line, mailboxes that are not free, the doorbell, and interrupt moderation.

use std::time::Duration;

use super::small_tables::{ABSENT, Driver};
use super::*;
use crate::device::AccessKind;
use crate::testing::backstop;

fn guest(policy: Policy) -> Guest {
    Guest::up(Config { coalescing: Coalescing::policy(policy), ..Config::default() })
}

fn read_batch(guest: &mut Guest, count: u32) {
    for lba in 0..count {
        let read = guest.transfer(false, lba, 1);
        guest.put(&read);
    }
    guest.ring();
    guest.serve();
}

#[test]
fn the_line_follows_the_register() {
    let mut guest = guest(Policy::Batch);
    assert!(!guest.line());
    read_batch(&mut guest, 3);
    assert!(guest.line());
    assert_eq!(guest.interrupt(), 0x81);
    guest.acknowledge();
    assert!(!guest.line());
    assert_eq!(guest.incoming().len(), 3);
    // The interrupt-disable bit of the PCI command register gates the line.
    read_batch(&mut guest, 1);
    guest.device.config_write(4, &0x403u16.to_le_bytes());
    assert!(!guest.line());
    guest.device.config_write(4, &3u16.to_le_bytes());
    assert!(guest.line());
}

#[test]
fn one_cause_is_shown_and_the_other_postponed() {
    let mut guest = guest(Policy::Batch);
    read_batch(&mut guest, 1);
    // CMDC stays pending, and a driver that polls for it waits.
    guest.write(reg::DATA, opcode::TEST_COMMAND_COMPLETE);
    assert_eq!(guest.interrupt(), 0x81);
    let told = guest.device.stats().interrupts;
    guest.acknowledge();
    assert_eq!((guest.interrupt(), guest.line()), (0x84, true));
    assert_eq!(guest.device.stats().interrupts, told + 1, "the line was low in between");
    // IMBL is pending while CMDC is presented.
    assert_eq!(guest.incoming().len(), 1);
    read_batch(&mut guest, 2);
    assert_eq!(guest.interrupt(), 0x84);
    guest.acknowledge();
    assert_eq!((guest.interrupt(), guest.line()), (0x81, true));
    guest.acknowledge();
    assert_eq!((guest.interrupt(), guest.line()), (0, false));
    assert_eq!(guest.incoming().len(), 2);
}

/// The driver reads the register, acknowledges, and polls the mailboxes. Another completion is posted before its acknowledgement arrives.
#[test]
fn an_acknowledgement_that_arrives_late_loses_no_end() {
    for reads_late in [false, true] {
        let mut guest = guest(Policy::Batch);
        read_batch(&mut guest, 3);
        assert_eq!(guest.interrupt(), 0x81);
        assert_eq!(guest.incoming().len(), 3);
        read_batch(&mut guest, 2);
        if reads_late {
            assert_eq!(guest.incoming().len(), 2);
        }
        guest.acknowledge();
        assert_eq!(guest.line(), !reads_late, "asserted while something is unread");
        if !reads_late {
            assert_eq!(guest.interrupt(), 0x81);
            guest.acknowledge();
            assert!(!guest.line(), "with the mailboxes still to be looked at");
            assert_eq!(guest.incoming().len(), 2);
        }
    }
}

#[test]
fn ends_wait_for_incoming_mailboxes() {
    let mut guest = guest(Policy::Oio);
    guest.count = 4;
    guest.bring_up();
    guest.clear_unit_attention(&[0, 3]);
    guest.hold.set(true);
    let before = guest.device.stats().requests;
    let ready = guest.transfer(false, 0, 1);
    let put: Vec<_> = (0..12)
        .map(|_| {
            let at = guest.put(&ready) as u32;
            guest.ring();
            guest.serve();
            at
        })
        .collect();
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    // Four mailboxes are free; the others are in use.
    assert_eq!(guest.device.engine.deferred.len(), 8);
    assert_eq!(guest.interrupt(), 0x81, "moderation holds nothing back then");
    let Sleep::Until(poll) = guest.device.before_sleep(guest.now) else { panic!("no poll") };
    assert_eq!(poll, guest.now.after(Duration::from_millis(1)));
    // Other accesses of the guest do not move the deadline.
    for _ in 0..9 {
        guest.now = guest.now.after(Duration::from_micros(100));
        guest.status();
        guest.write(reg::GEOMETRY, 0);
        assert_eq!(guest.device.before_sleep(guest.now), Sleep::Until(poll));
    }
    // No requests are taken, but commands work.
    guest.put(&ready);
    guest.ring();
    guest.device.on_completions(guest.now);
    assert_eq!(guest.device.stats().requests, before + 12);
    let mut ends = Vec::new();
    for _ in 0..4 {
        guest.acknowledge();
        ends.extend(guest.incoming());
        guest.now = guest.now.after(Duration::from_millis(1));
        guest.device.on_completions(guest.now);
    }
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever, "no polls any more");
    assert_eq!(guest.interrupt(), 0x81);
    assert_eq!(ends.iter().map(|end| end.ccb).collect::<Vec<_>>()[..12], put);
    assert_eq!(ends.len(), 13);
    guest.serve();
    guest.acknowledge();
    assert!(guest.incoming().is_empty());
    guest.check_io();
}

/// Any thread may ring the doorbell, read registers and acknowledge the interrupt. The value of the doorbell may be a command's parameter, such
/// as a byte of the mailboxes' address.
#[test]
fn accesses_of_each_kind() {
    let mut guest = guest(Policy::Batch);
    let kind = |guest: &Guest, bar, offset, data: &[u8]| guest.device.access_kind(bar, offset, Some(data));
    for (bar, offset, data, expected) in [
        (1, reg::DATA, &[2][..], AccessKind::Submission),
        (0, 5, &[2], AccessKind::Submission),
        (0, reg::DATA, &[4], AccessKind::Command),
        (0, reg::DATA, &[2, 0], AccessKind::Command),
        (2, reg::DATA, &[2], AccessKind::Command),
        (0, reg::STATUS_CONTROL, &[Control::RESET_INTERRUPT.bits()], AccessKind::Register),
        (0, reg::STATUS_CONTROL, &[0x80], AccessKind::Command),
    ] {
        assert_eq!(kind(&guest, bar, offset, data), expected, "{bar} {offset} {data:?}");
    }
    assert!((0..4).all(|offset| guest.device.access_kind(0, offset, None) == AccessKind::Register));
    guest.write(reg::DATA, opcode::ECHO);
    assert_eq!(kind(&guest, 0, reg::DATA, &[2]), AccessKind::Command);
    guest.write(reg::DATA, 2);
    assert_eq!(kind(&guest, 0, reg::DATA, &[2]), AccessKind::Command, "the reply is not read");
    assert_eq!(guest.read(reg::DATA), 2);
    assert_eq!(kind(&guest, 0, reg::DATA, &[2]), AccessKind::Submission);
}

/// A submission is taken when the device is called, once for all.
#[test]
fn the_doorbell_waits_for_the_devices_thread() {
    let mut guest = guest(Policy::Batch);
    let ready = guest.ccb(&[0; 6]);
    guest.serve();
    guest.put(&ready);
    let before = guest.device.stats();
    guest.write(reg::DATA, opcode::EXECUTE_MAILBOX);
    guest.write(reg::DATA, opcode::EXECUTE_MAILBOX);
    assert_eq!(guest.device.stats().requests, before.requests);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    guest.serve();
    assert_eq!((guest.incoming().len(), guest.device.stats().doorbells), (1, before.doorbells + 1));
}

/// Interrupts for reads that end one after the other.
fn interrupts(policy: Policy, count: u32) -> u64 {
    let mut guest = guest(policy);
    let before = guest.device.stats().interrupts;
    guest.hold.set(true);
    read_batch(&mut guest, count);
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    let mut ends = 0;
    while guest.line() {
        assert_eq!(guest.interrupt(), 0x81);
        guest.acknowledge();
        ends += guest.incoming().len();
        guest.serve();
    }
    assert_eq!(ends, count as usize);
    guest.device.stats().interrupts - before
}

#[test]
fn all_ends_are_told() {
    for policy in [Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops] {
        for count in [1, 2, 20, 200] {
            assert_eq!(interrupts(policy, count), 1, "{policy:?}: one line for those that end together");
        }
    }
}

#[test]
fn withheld_interrupts_have_a_backstop() {
    let mut driver = Driver::new(guest(Policy::OioIops));
    let counts = driver.guest.counts.clone();
    backstop::play(&mut driver, &counts, ABSENT, |driver| {
        driver.guest.command(opcode::INQUIRE_BOARD_ID, &[], 4);
        assert_eq!(counts.signals(), 1, "CMDC is not held back");
    });
}

#[test]
fn a_change_of_moderation_tells_what_was_held_back() {
    let mut guest = guest(Policy::Oio);
    guest.hold.set(true);
    read_batch(&mut guest, 31);
    // Enough for one epoch of the moderation, whose ratio suppresses interrupts.
    for _ in 0..100 {
        guest.now.0 += 50_000_000;
        let absent = Ccb { target: 1, ..guest.ccb(&[0; 6]) };
        guest.put(&absent);
        guest.ring();
        guest.device.on_completions(guest.now);
        guest.interrupt();
        guest.incoming();
        let told = guest.line();
        guest.acknowledge();
        assert!(!guest.line());
        if !told {
            break;
        }
    }
    guest.device.set_coalescing(Coalescing::policy(Policy::Off));
    assert!(guest.line());
}
