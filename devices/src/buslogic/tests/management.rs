//! Aborts and resets, and memory that is unmapped.

use super::*;
use crate::testing::attach_nameless;

/// A guest with this many tasks and reads, the latter for both targets in turn; some are in flight at the disk. Returns the CCBs, too.
fn crowded(tasks: u32, count: u32) -> (Guest, Vec<u64>) {
    let mut guest = Guest::up(Config { tasks, ..Config::default() });
    guest.hold.set(true);
    let put = (0..count)
        .map(|n| {
            let target = if n % 2 == 0 { 0 } else { 3 };
            let read = Ccb { target, ..guest.transfer(false, n, 1) };
            guest.put(&read)
        })
        .collect();
    guest.ring();
    guest.serve();
    assert!(guest.device.engine.in_flight.count() <= tasks && guest.incoming().is_empty());
    (guest, put)
}

/// Let the disks complete all requests. Returns the completions, by CCB.
fn let_go(guest: &mut Guest) -> Vec<(u64, (u8, u8, u8))> {
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    guest.serve();
    guest.acknowledge();
    assert_eq!(guest.device.engine.in_flight.count(), 0);
    assert!(guest.device.engine.backlog.is_empty() && guest.device.resets.is_empty());
    ends(guest)
}

fn ends(guest: &mut Guest) -> Vec<(u64, (u8, u8, u8))> {
    guest.incoming().iter().map(|end| (end.ccb.into(), told(end))).collect()
}

fn abort(guest: &mut Guest, ccb: u64) {
    guest.put_mailbox(ccb, action::ABORT);
    guest.ring();
    guest.serve();
}

const GOOD: (u8, u8, u8) = (completion::GOOD, 0, 0);
const ABORTED: (u8, u8, u8) = (completion::ABORTED, adapter_status::ABORTED, 0);
const RESET: (u8, u8, u8) = (completion::ERROR, adapter_status::DEVICE_RESET, 0);

#[test]
fn an_abort_ends_its_ccb_once() {
    for tasks in [2, 256] {
        let (mut guest, put) = crowded(tasks, 10);
        // One in flight at the disk; one waiting for a task number, or in flight too.
        abort(&mut guest, put[0]);
        abort(&mut guest, put[9]);
        assert!(!ends(&mut guest).iter().any(|(ccb, _)| *ccb == put[0]), "the disk has it");
        let missing = 0x9999;
        abort(&mut guest, missing);
        let not_found = (completion::ABORT_NOT_FOUND, adapter_status::NORMAL, 0);
        assert_eq!(ends(&mut guest), [(missing, not_found)]);
        let (mut aborted, mut good) = (0, 0);
        for (ccb, end) in let_go(&mut guest) {
            assert!(put.contains(&ccb));
            match end {
                ABORTED => aborted += 1,
                GOOD => good += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((aborted, good), if tasks == 2 { (1, 8) } else { (2, 8) });
        abort(&mut guest, put[0]);
        assert_eq!(ends(&mut guest), [(put[0], not_found)], "it has ended");
        guest.acknowledge();
        guest.check_io();
        let stats = guest.device.stats();
        assert_eq!(stats.requests, stats.completions);
        assert_eq!(stats.errors, 2 + 2 + 2, "attentions, what was not found, what was aborted");
    }
}

#[test]
fn a_target_is_reset() {
    for tasks in [2, 5, 256] {
        let (mut guest, put) = crowded(tasks, 10);
        let reset = Ccb { opcode: ccb_opcode::BUS_DEVICE_RESET, target: 3, ..guest.ccb(&[]) };
        let reset = guest.put(&reset);
        guest.ring();
        guest.serve();
        let mut ended = ends(&mut guest);
        assert!(ended.iter().all(|(ccb, _)| *ccb != reset), "the disk still has requests from before");
        ended.extend(let_go(&mut guest));
        let place = |wanted: u64| ended.iter().position(|(ccb, _)| *ccb == wanted).unwrap();
        assert_eq!(ended[place(reset)].1, GOOD);
        for (n, &ccb) in put.iter().enumerate() {
            assert_eq!(ended[place(ccb)].1, if n % 2 == 0 { GOOD } else { RESET });
            assert!(n % 2 == 0 || place(ccb) < place(reset));
        }
        assert_eq!(ended.len(), 11);
        guest.clear_unit_attention(&[3]);
        guest.check_io();
    }
}

#[test]
fn resets_of_targets_are_bounded() {
    let (mut guest, _) = crowded(256, 2);
    let reset = Ccb { opcode: ccb_opcode::BUS_DEVICE_RESET, target: 3, ..guest.ccb(&[]) };
    let mut refused = 0;
    for _ in 0..300 {
        guest.put(&reset);
        guest.ring();
        guest.serve();
        refused += guest.incoming().len();
    }
    assert_eq!((guest.device.resets.len(), refused), (255, 45));
    let absent = Ccb { target: 9, ..reset };
    guest.device.resets.clear();
    guest.hold.set(false);
    guest.serve();
    guest.device.on_completions(guest.now);
    guest.incoming();
    guest.acknowledge();
    assert_eq!(told(&guest.run(&absent)), (completion::ERROR, adapter_status::SELECTION_TIMEOUT, 0));
}

#[test]
fn the_bus_is_reset() {
    for tasks in [2, 256] {
        let (mut guest, put) = crowded(tasks, 10);
        guest.write(reg::STATUS_CONTROL, Control::RESET_BUS.bits());
        assert_eq!(guest.interrupt() & Interrupts::BUS_RESET.bits(), 0);
        let mut ended = ends(&mut guest);
        ended.extend(let_go(&mut guest));
        assert!(ended.iter().all(|(ccb, end)| put.contains(ccb) && *end == RESET));
        assert_eq!(ended.len(), 10);
        guest.clear_unit_attention(&[0, 3]);
        guest.check_io();
    }
}

/// Requests in flight at the disk, requests that wait for a task number, and the reset of a target.
#[test]
fn requests_that_a_reset_drops_have_completed() {
    for tasks in [2, 256] {
        let (mut guest, _) = crowded(tasks, 10);
        let reset = Ccb { opcode: ccb_opcode::BUS_DEVICE_RESET, target: 3, ..guest.ccb(&[]) };
        guest.put(&reset);
        guest.ring();
        guest.serve();
        let before = guest.device.stats();
        assert!(guest.device.engine.in_flight.count() > 0 && guest.device.resets.len() == 1);
        assert_eq!(
            before.requests,
            before.completions + (guest.device.engine.unanswered() + guest.device.resets.len() as u64)
        );
        guest.reset(Control::SOFT_RESET);
        let after = guest.device.stats();
        assert_eq!((after.requests, after.completions), (before.requests, before.requests));
        guest.hold.set(false);
        guest.bring_up();
        guest.clear_unit_attention(&[0, 3]);
        guest.check_io();
    }
}

#[test]
fn what_was_taken_is_done_before_memory_is_saved() {
    let (mut guest, put) = crowded(2, 10);
    guest.device.quiesce(guest.now);
    assert_eq!(guest.device.engine.in_flight.count(), 0);
    assert_eq!(ends(&mut guest).len(), put.len());
    assert!(guest.line());
}

#[test]
fn memory_of_requests_is_in_use_until_they_end() {
    let (mut guest, _) = crowded(256, 3);
    let mib = |n: u64| n * MIB..(n + 1) * MIB;
    assert!(guest.device.uses_memory(&[mib(1)], guest.now), "data");
    assert!(guest.device.uses_memory(&[mib(0)], guest.now), "CCBs, sense data and mailboxes");
    assert!(!guest.device.uses_memory(&[mib(2)], guest.now));
    guest.device.refuse_memory(&[mib(0)]);
    let read = guest.transfer(false, 0, 1);
    guest.put(&read);
    guest.ring();
    guest.serve();
    assert_eq!(guest.device.engine.in_flight.count(), 3, "its end would be posted there");
    guest.hold.set(false);
    assert!(!guest.device.uses_memory(&[mib(0), mib(1)], guest.now));
    assert_eq!(guest.incoming().len(), 3);
    guest.device.memory_replaced(guest.now);
    guest.serve();
    assert_eq!(guest.incoming().len(), 1);
    guest.acknowledge();
    guest.check_io();
}

#[test]
fn disks_come_and_go() {
    let mut guest = Guest::new();
    let at = |target| Address { target, lun: 0 };
    let hot_plug = |guest: &mut Guest| guest.device.hot_plug().is_some();
    assert!(hot_plug(&mut guest));
    for target in [7, 16, 255] {
        let unit = unit(&guest.hold);
        let refused = guest.device.hot_plug().unwrap().attach(at(target), unit);
        assert!(matches!(refused, Err(crate::scsi::AttachError::Target(_))));
    }
    let other = unit(&guest.hold);
    guest.device.hot_plug().unwrap().attach(at(15), other).unwrap();
    guest.clear_unit_attention(&[15]);
    let ready = Ccb { target: 15, ..guest.ccb(&[0; 6]) };
    assert_good(&guest.run(&ready));
    assert_eq!(guest.command(opcode::INQUIRE_TARGETS, &[], 2), [0b1001, 0x80]);
    let now = guest.now;
    assert!(guest.device.hot_plug().unwrap().detach(at(15), now));
    assert_eq!(guest.run(&ready).adapter_status, adapter_status::SELECTION_TIMEOUT);
}

#[test]
fn disks_without_names_have_that_of_their_place() {
    attach_nameless(&mut Guest::new().device, "buslogic", 5, |device, address| {
        device.engine.bus.serial(address)
    });
}
