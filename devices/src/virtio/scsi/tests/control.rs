//! Task management.

use super::*;

const OK: u8 = Response::Ok as u8;

/// The responses to these requests.
fn responses(guest: &mut Guest, numbers: &[u64]) -> Vec<u8> {
    numbers.iter().map(|n| guest.answered(*n).response).collect()
}

/// A guest with two request queues, whose disks hold requests.
fn held() -> Guest {
    let mut guest = Guest::with(ALL, Config { queues: 2, ..batch() });
    guest.completions(FIRST);
    guest.hold.set(true);
    guest
}

fn let_go(guest: &mut Guest) {
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
}

#[test]
fn a_task_is_aborted_whatever_its_queue() {
    let mut guest = held();
    guest.start(FIRST, 1, HERE, false);
    guest.start(FIRST + 1, 2, HERE, true);
    guest.start(FIRST, 3, HERE, false);
    guest.manage(tmf::ABORT_TASK, lun::lun(HERE), 2);
    // The request is in flight at the disk.
    assert_eq!(guest.managed(), None);
    let_go(&mut guest);
    assert_eq!(guest.managed(), Some(OK));
    assert_eq!((guest.completions(FIRST).len(), guest.completions(FIRST + 1).len()), (2, 1));
    assert_eq!(responses(&mut guest, &[1, 2, 3]), [OK, Response::Aborted as u8, OK]);
    guest.check_io();
}

#[test]
fn a_task_that_waits_ends_at_once() {
    let mut guest = held();
    guest.start(FIRST, 1, HERE, false);
    let pieces = [
        guest.header(2, lun::lun(HERE), VIRTIO_SCSI_S_ORDERED, &transfer10(true, 0, 1)),
        reads(DATA, 512),
        guest.answer(2),
    ];
    guest.put(FIRST, &pieces);
    guest.kick(FIRST);
    guest.manage(tmf::ABORT_TASK, lun::lun(HERE), 2);
    assert_eq!((guest.managed(), guest.in_flight()), (Some(OK), 1));
    assert_eq!(guest.answered(2).response, Response::Aborted as u8);
}

#[test]
fn tasks_are_told_apart_by_unit_and_number() {
    let mut guest = held();
    guest.start(FIRST, 1, HERE, false);
    guest.start(FIRST, 2, THERE, false);
    let (here, there) = (lun::lun(HERE), lun::lun(THERE));
    let succeeded = Response::FunctionSucceeded as u8;
    for (subtype, lun, id, response) in [
        (tmf::QUERY_TASK, here, 1, succeeded),
        (tmf::QUERY_TASK, there, 1, OK),
        (tmf::QUERY_TASK, there, 2, succeeded),
        (tmf::QUERY_TASK, here, u64::MAX, OK),
        (tmf::QUERY_TASK_SET, here, 0, succeeded),
        // A task that does not exist needs no abort.
        (tmf::ABORT_TASK, here, 2, OK),
        (tmf::CLEAR_ACA, here, 0, Response::FunctionRejected as u8),
        (8, here, 0, Response::FunctionRejected as u8),
        (tmf::QUERY_TASK, [1, 3, 0, 6, 0, 0, 0, 0], 1, Response::IncorrectLun as u8),
        (tmf::LOGICAL_UNIT_RESET, [1, 4, 0, 0, 0, 0, 0, 0], 1, Response::BadTarget as u8),
        (tmf::I_T_NEXUS_RESET, [1, 4, 0, 0, 0, 0, 0, 0], 1, Response::BadTarget as u8),
        (tmf::QUERY_TASK, [0; 8], 1, Response::BadTarget as u8),
        (tmf::QUERY_TASK, lun::REPORT_LUNS, 1, Response::BadTarget as u8),
    ] {
        guest.manage(subtype, lun, id);
        assert_eq!(guest.managed(), Some(response), "function {subtype} of {lun:?}");
    }
    let_go(&mut guest);
    assert_eq!(responses(&mut guest, &[1, 2]), [OK, OK]);
    guest.manage(tmf::QUERY_TASK_SET, here, 0);
    assert_eq!(guest.managed(), Some(OK));
}

#[test]
fn sets_of_tasks_end_together() {
    for subtype in [tmf::ABORT_TASK_SET, tmf::CLEAR_TASK_SET] {
        let mut guest = held();
        for n in 1..=6 {
            guest.start(FIRST + (n % 2) as u16, n, if n < 5 { HERE } else { THERE }, n % 3 == 0);
        }
        guest.manage(subtype, lun::lun(HERE), 0);
        assert_eq!(guest.managed(), None);
        let_go(&mut guest);
        assert_eq!(guest.managed(), Some(OK));
        let aborted = Response::Aborted as u8;
        assert_eq!(responses(&mut guest, &[1, 2, 3, 4, 5, 6]), [aborted, aborted, aborted, aborted, OK, OK]);
        // An abort establishes no unit attention.
        guest.completions(FIRST);
        guest.completions(FIRST + 1);
        guest.check_io();
    }
}

#[test]
fn resets_end_tasks_first() {
    for (subtype, lun) in [
        (tmf::LOGICAL_UNIT_RESET, lun::lun(THERE)),
        (tmf::I_T_NEXUS_RESET, lun::lun(THERE)),
        // The LUN may be that of any unit of the target.
        (tmf::I_T_NEXUS_RESET, [1, 3, 0, 0, 0, 0, 0, 0]),
    ] {
        let mut guest = held();
        guest.start(FIRST, 1, HERE, false);
        guest.start(FIRST + 1, 2, THERE, false);
        // A request that was made available without a notification: the function applies to it, too.
        guest.request(FIRST, 3, THERE, &transfer10(false, 0, 1), &[writes(DATA, 512)]);
        guest.manage(subtype, lun, 0);
        // The function is answered when the disk has completed the requests. Later requests wait, too.
        guest.start(FIRST, 4, THERE, false);
        assert_eq!((guest.managed(), guest.hold.waits()), (None, 0));
        let_go(&mut guest);
        assert_eq!(guest.managed(), Some(OK));
        let reset = Response::Reset as u8;
        assert_eq!(responses(&mut guest, &[2, 3]), [reset, reset]);
        assert_eq!(guest.in_flight(), 0);
        guest.completions(FIRST);
        guest.completions(FIRST + 1);
        // Request 4 reports the unit attention.
        let attention = guest.answered(4);
        assert_eq!((attention.status, attention.sense[2], attention.sense[12]), (2, 6, 0x29));
        assert_good(&guest.run(HERE, TEST_UNIT_READY, &[]), 0);
        assert_good(&guest.run(THERE, TEST_UNIT_READY, &[]), 0);
    }
}

#[test]
fn a_function_reaches_requests_before_it_that_have_no_room() {
    for tasks in [1, 2, 4] {
        let mut guest = Guest::with(ALL, Config { queues: 2, tasks, ..batch() });
        guest.completions(FIRST);
        guest.hold.set(true);
        for n in 1..=6 {
            guest.start(FIRST, n, HERE, false);
        }
        guest.start(FIRST, 7, THERE, false);
        guest.start(FIRST + 1, 8, THERE, false);
        // Requests that wait for a task number, in either queue, and with more task numbers one in flight at the disk.
        guest.manage(tmf::ABORT_TASK, lun::lun(HERE), 6);
        assert_eq!(guest.managed(), Some(OK));
        assert_eq!(responses(&mut guest, &[6]), [Response::Aborted as u8]);
        guest.manage(tmf::QUERY_TASK, lun::lun(HERE), 5);
        assert_eq!(guest.managed(), Some(Response::FunctionSucceeded as u8));
        guest.manage(tmf::LOGICAL_UNIT_RESET, lun::lun(HERE), 0);
        let early = guest.completions(FIRST).len();
        assert!((6 - tasks as usize..7).contains(&early), "{early}");
        // The device sleeps until the disk completes requests.
        while guest.device.before_sleep(guest.now) == Sleep::No {
            guest.device.on_completions(guest.now);
        }
        assert_eq!((guest.device.before_sleep(guest.now), guest.managed()), (Sleep::Forever, None));
        // Later requests do not delay the answer.
        for n in 9..30 {
            guest.start(FIRST, n, HERE, false);
        }
        let_go(&mut guest);
        for _ in 0..20 {
            guest.device.on_completions(guest.now);
        }
        assert_eq!(guest.managed(), Some(OK));
        let reset = Response::Reset as u8;
        assert_eq!(responses(&mut guest, &[1, 2, 3, 4, 5]), [reset; 5]);
        assert_eq!((guest.completions(FIRST + 1).len(), guest.answered(8).response), (1, 0));
        assert_eq!(guest.completions(FIRST).len() + early, 28);
        assert_eq!((guest.in_flight(), guest.hold.waits()), (0, 0));
        guest.clear_unit_attention();
        guest.check_io();
    }
}

#[test]
fn more_functions_than_are_kept_wait_in_the_ring() {
    let mut guest = held();
    guest.start(FIRST, 1, HERE, false);
    guest.device.before_sleep(guest.now);
    for _ in 0..2 {
        for _ in 0..32 {
            guest.manage(tmf::ABORT_TASK, lun::lun(HERE), 1);
        }
        // A driver may reuse descriptors only when their chain is answered; this guest reuses them before.
        assert!(guest.completions(CONTROL).is_empty());
    }
    guest.manage(tmf::QUERY_TASK, lun::lun(HERE), 1);
    assert!(guest.completions(CONTROL).is_empty());
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    let_go(&mut guest);
    assert_eq!(guest.completions(CONTROL).len(), 65);
}

#[test]
fn disks_have_nothing_to_notify_of() {
    let mut guest = Guest::new();
    for kind in [VIRTIO_SCSI_T_AN_QUERY, VIRTIO_SCSI_T_AN_SUBSCRIBE] {
        for (lun, response) in [
            (lun::lun(HERE), Response::Ok),
            ([1, 3, 0, 6, 0, 0, 0, 0], Response::IncorrectLun),
            ([1, 9, 0, 0, 0, 0, 0, 0], Response::BadTarget),
        ] {
            let asked = Notifications { lun, requested: 0x7e.into() };
            guest.control(&[&kind.to_le_bytes(), asked.as_bytes()].concat(), 5);
            assert_eq!(guest.completions(CONTROL).len(), 1);
            assert_eq!(guest.bytes(REQUESTS - 0x1000 + 0x100, 6), [0, 0, 0, 0, response as u8, 0xff]);
        }
    }
}
