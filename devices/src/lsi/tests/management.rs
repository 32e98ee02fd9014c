//! Task management and resets, with I/O in flight.

use super::*;

fn manage(kind: u8, target: u8, task: u32) -> TaskMgmtRequest {
    let mut request = TaskMgmtRequest::new_zeroed();
    request.function = function::SCSI_TASK_MGMT;
    request.task_type = kind;
    request.target_id = target;
    request.task_msg_context = task.into();
    request.msg_context = 0x00aa_0000.into();
    request
}

/// Three reads that the disks hold: two of target 0, one of target 3. Returns their contexts.
fn held(guest: &mut Guest) -> [u32; 3] {
    guest.hold.set(true);
    [0, 0, 3].map(|target| {
        let mut read = guest.transfer(false, 0, 1);
        read.target_id = target;
        guest.post(read.as_bytes(), &simple(512, DATA));
        guest.serve();
        read.msg_context.get()
    })
}

fn statuses(replies: &[Taken]) -> Vec<(u32, u16)> {
    replies
        .iter()
        .map(|reply| match reply {
            Taken::Context(context) => (*context, 0),
            Taken::Frame(bytes) => (u32::from_le_bytes(bytes[8..12].try_into().unwrap()), reply.status()),
        })
        .collect()
}

const TM: u32 = 0x00aa_0000;

#[test]
fn an_aborted_task_is_told_before_its_abort() {
    let mut guest = Guest::new();
    let [first, second, third] = held(&mut guest);
    guest.post(manage(task_type::ABORT_TASK, 0, second).as_bytes(), &[]);
    guest.serve();
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    guest.serve();
    let replies = guest.replies();
    let order = statuses(&replies);
    let place = |context| order.iter().position(|reply| reply.0 == context).unwrap();
    assert!(place(second) < place(TM));
    assert_eq!(order[place(second)].1, ioc_status::SCSI_TASK_TERMINATED);
    assert_eq!((order[place(first)].1, order[place(third)].1), (0, 0));
    let reply: TaskMgmtReply = replies[place(TM)].frame();
    assert_eq!((reply.ioc_status.get(), reply.response_code, reply.termination_count.get()), (0, 0, 1));
    guest.check_io();
}

/// The disk is stalled, and the driver uses all its credits: task management with the last credit is processed.
#[test]
fn task_management_is_taken_with_the_last_credit() {
    let mut guest = Guest::new();
    let facts = guest.handshake(&[u32::from(function::IOC_FACTS) << 24, 0, 0]);
    let credits = IocFactsReply::read_from_bytes(&facts).unwrap().global_credits.get();
    guest.hold.set(true);
    let mut last = 0;
    for _ in 1..credits {
        let read = guest.transfer(false, 0, 1);
        last = read.msg_context.get();
        guest.post(read.as_bytes(), &simple(512, DATA));
    }
    guest.serve();
    guest.post(manage(task_type::QUERY_TASK, 0, last).as_bytes(), &[]);
    guest.serve();
    let reply: TaskMgmtReply = guest.replies()[0].frame();
    assert_eq!(reply.response_code, response::TM_SUCCEEDED);
}

#[test]
fn a_task_that_is_not_there_cannot_be_aborted() {
    let mut guest = Guest::new();
    guest.post(manage(task_type::ABORT_TASK, 0, 77).as_bytes(), &[]);
    guest.serve();
    let reply: TaskMgmtReply = guest.replies()[0].frame();
    assert_eq!(reply.ioc_status.get(), ioc_status::SCSI_TASK_MGMT_FAILED);
    let [first, ..] = held(&mut guest);
    for (task, response) in [(first, response::TM_SUCCEEDED), (77, response::TM_COMPLETE)] {
        guest.post(manage(task_type::QUERY_TASK, 0, task).as_bytes(), &[]);
        guest.serve();
        let reply: TaskMgmtReply = guest.replies()[0].frame();
        assert_eq!(reply.response_code, response);
    }
}

#[test]
fn resets_end_what_they_reach_and_nothing_else() {
    for (kind, ended) in
        [(task_type::TARGET_RESET, 2), (task_type::LOGICAL_UNIT_RESET, 2), (task_type::RESET_BUS, 3)]
    {
        let mut guest = Guest::new();
        held(&mut guest);
        guest.post(manage(kind, 0, 0).as_bytes(), &[]);
        guest.serve();
        // The reset completes when the disk has completed the requests. Only the driver waits for that.
        assert!(guest.replies().is_empty());
        assert_eq!(guest.hold.waits(), 0);
        guest.hold.set(false);
        guest.device.on_completions(guest.now);
        guest.serve();
        let replies = statuses(&guest.replies());
        let terminated = replies.iter().filter(|reply| reply.1 == ioc_status::SCSI_TASK_TERMINATED).count();
        assert_eq!(terminated, ended, "{kind}");
        let management = replies.iter().position(|reply| reply.0 == TM);
        assert!(management >= replies.iter().rposition(|reply| reply.1 != 0), "after those of the tasks");
        assert_eq!(replies.len(), 4, "{kind}");
        // The unit reports the reset.
        let ready = guest.scsi(&[0; 6], 0, 0);
        let reply: ScsiIoReply = guest.run(&ready, &[]).frame();
        assert_eq!((reply.scsi_status, guest.bytes(SENSE, 14)[12]), (2, 0x29));
        guest.check_io();
    }
}

#[test]
fn management_by_handshake_is_answered_through_the_fifo() {
    let mut guest = Guest::new();
    let request = manage(task_type::RESET_BUS, 0, 0);
    let dwords: Vec<u32> = request
        .as_bytes()
        .chunks_exact(4)
        .map(|dword| u32::from_le_bytes(dword.try_into().unwrap()))
        .collect();
    guest.begin(&dwords);
    assert_eq!(guest.read(reg::INT_STATUS) & int::DOORBELL, int::DOORBELL, "one interrupt, no inline reply");
    guest.write(reg::INT_STATUS, 0);
    assert_eq!(guest.read(reg::INT_STATUS) & int::DOORBELL, 0);
    let reply: TaskMgmtReply = guest.replies()[0].frame();
    assert_eq!((reply.task_type, reply.ioc_status.get()), (task_type::RESET_BUS, 0));
}

#[test]
fn functions_of_the_doorbell_without_a_reply_end_with_one_interrupt() {
    let mut guest = Guest::new();
    for function in [doorbell_fn::REPLY_FRAME_REMOVAL, doorbell_fn::HOST_PAGEBUF_ACCESS_CONTROL] {
        guest.write(reg::INT_STATUS, 0);
        guest.write(reg::DOORBELL, u32::from(function) << 24);
        assert_eq!(guest.read(reg::INT_STATUS) & int::DOORBELL, int::DOORBELL, "{function:#x}");
    }
    guest.write(reg::INT_STATUS, 0);
    guest.check_io();
}

#[test]
fn a_unit_reset_drops_everything_silently() {
    let mut guest = Guest::new();
    held(&mut guest);
    let before = guest.fill(DATA, 512, 0x33);
    for message in [doorbell_fn::MESSAGE_UNIT_RESET, doorbell_fn::IO_UNIT_RESET] {
        guest.write(reg::DOORBELL, u32::from(message) << 24);
        guest.write(reg::INT_STATUS, 0);
        // The reset completes when the disks have completed the requests: a driver waits for READY.
        assert_eq!(guest.state(), IocState::Reset as u32);
    }
    guest.write(reg::DOORBELL, u32::from(doorbell_fn::HANDSHAKE) << 24 | 3 << 16);
    guest.post(guest.transfer(false, 0, 1).as_bytes(), &simple(512, DATA));
    guest.serve();
    assert_eq!((guest.state(), guest.hold.waits()), (IocState::Reset as u32, 0));
    guest.hold.set(false);
    assert_eq!(guest.state(), IocState::Ready as u32);
    guest.fill(DATA, 512, 0x33);
    guest.device.on_completions(guest.now);
    guest.serve();
    assert_eq!(guest.read(reg::REPLY_FIFO), FIFO_EMPTY);
    assert_eq!(guest.bytes(DATA, 512), before, "nothing is written late");
    assert!(!guest.counts.line());
    guest.works_again();
}

#[test]
fn management_is_no_request_and_requests_that_a_reset_drops_have_completed() {
    for tasks in [2, 64] {
        let (mut guest, contexts) = crowded(tasks, 5);
        let before = guest.device.stats();
        assert_eq!(before.requests, before.completions + contexts.len() as u64);
        guest.post(manage(task_type::QUERY_TASK, 0, 77).as_bytes(), &[]);
        guest.post(manage(task_type::ABORT_TASK, 0, contexts[0]).as_bytes(), &[]);
        guest.serve();
        assert_eq!(guest.device.stats().requests, before.requests);
        assert_eq!(guest.held(), contexts.len() as u64, "the disk has what is aborted");
        guest.write(reg::DOORBELL, u32::from(doorbell_fn::MESSAGE_UNIT_RESET) << 24);
        guest.hold.set(false);
        assert_eq!(guest.state(), IocState::Ready as u32);
        let after = guest.device.stats();
        assert_eq!((after.requests, after.completions), (before.requests, before.requests));
    }
}

/// As many task management requests as the FIFO holds. They must not be processed recursively.
#[test]
fn a_fifo_full_of_task_management_is_served() {
    let mut guest = Guest::new();
    let address = guest.post(manage(task_type::QUERY_TASK, 0, 77).as_bytes(), &[]);
    for _ in 1..1024 {
        guest.write(reg::REQUEST_FIFO, address as u32 | 3);
    }
    let mut seen = 0;
    for _ in 0..1024 {
        guest.serve();
        seen += guest.replies().len();
        guest.now = guest.now.after(std::time::Duration::from_millis(2));
        guest.device.on_completions(guest.now);
    }
    assert_eq!(seen, 1024);
    guest.check_io();
}

/// A guest keeps posting requests, and provides no frames: the controller enters FAULT instead of keeping all replies.
#[test]
fn replies_that_nobody_takes_do_not_pile_up_for_ever() {
    let mut guest = Guest::new();
    for _ in 0..5000 {
        guest.device.reply(Reply::default_to(&Header::default(), 0));
    }
    assert!(guest.device.engine.deferred.len() <= 2048);
    assert_eq!(guest.device.state, IocState::Fault);
}

/// Without bus mastering, memory is not written. When it is enabled again, completions are posted.
#[test]
fn nothing_is_written_without_bus_mastering() {
    let mut guest = Guest::new();
    held(&mut guest);
    guest.device.config_write(4, &3u16.to_le_bytes());
    guest.hold.set(false);
    for _ in 0..5 {
        guest.device.on_completions(guest.now);
    }
    assert!(guest.replies().is_empty());
    guest.device.config_write(4, &7u16.to_le_bytes());
    guest.serve();
    assert_eq!(guest.replies().len(), 3);
}

/// Requests for both units, more than there are task numbers. Returns their contexts, those of target 0 first.
fn crowded(tasks: u32, count: u32) -> (Guest, Vec<u32>) {
    let mut guest = Guest::with_replies(tasks, Personality::Spi1030, 64);
    guest.hold.set(true);
    let mut contexts = Vec::new();
    for n in 0..count {
        let mut read = guest.transfer(false, n, 1);
        read.target_id = if n < count / 2 { 0 } else { 3 };
        contexts.push(read.msg_context.get());
        guest.post(read.as_bytes(), &simple(512, DATA + 4096 * u64::from(n)));
        guest.serve();
    }
    (guest, contexts)
}

fn let_go(guest: &mut Guest) -> Vec<(u32, u16)> {
    guest.hold.set(false);
    let mut replies = Vec::new();
    for _ in 0..40 {
        guest.device.on_completions(guest.now);
        guest.serve();
        replies.extend(statuses(&guest.replies()));
    }
    assert_eq!((guest.device.engine.in_flight.count(), guest.device.engine.backlog.len()), (0, 0));
    replies
}

#[test]
fn task_management_reaches_what_waits_for_a_task() {
    const TERMINATED: u16 = ioc_status::SCSI_TASK_TERMINATED;
    for (tasks, by_handshake) in [(1, false), (2, true), (4, false), (4, true)] {
        let send = |guest: &mut Guest, request: &TaskMgmtRequest| {
            if by_handshake {
                let dwords = request.as_bytes().chunks_exact(4);
                let dwords: Vec<_> =
                    dwords.map(|dword| u32::from_le_bytes(dword.try_into().unwrap())).collect();
                guest.begin(&dwords);
                guest.write(reg::INT_STATUS, 0);
            } else {
                guest.post(request.as_bytes(), &[]);
                guest.serve();
            }
        };
        let (mut guest, contexts) = crowded(tasks, 24);
        assert!(guest.replies().is_empty());
        // Abort a request of the backlog.
        send(&mut guest, &manage(task_type::QUERY_TASK, 0, contexts[11]));
        let reply: TaskMgmtReply = guest.replies()[0].frame();
        assert_eq!(reply.response_code, response::TM_SUCCEEDED);
        send(&mut guest, &manage(task_type::ABORT_TASK, 0, contexts[11]));
        assert_eq!(statuses(&guest.replies()), [(contexts[11], TERMINATED), (TM, 0)]);
        // A target reset: requests of the backlog end at once, those on the disk when the disk completes them, and the
        // reset after them.
        send(&mut guest, &manage(task_type::TARGET_RESET, 0, 0));
        let mut replies = statuses(&guest.replies());
        assert!(replies.len() >= 11 - tasks as usize && replies.len() < 12, "{}", replies.len());
        for (n, context) in (0..12).zip(&contexts) {
            if replies.iter().any(|reply| reply.0 == *context) {
                guest.fill(DATA + 4096 * n, 512, 0x77);
            }
        }
        let early = replies.clone();
        let memory = guest.bytes(DATA, 12 * 4096);
        assert_eq!(guest.hold.waits(), 0);
        replies.extend(let_go(&mut guest));
        let status = |context: u32| replies.iter().find(|reply| reply.0 == context).map(|reply| reply.1);
        assert!(contexts[..11].iter().all(|context| status(*context) == Some(TERMINATED)));
        assert!(contexts[12..].iter().all(|context| status(*context) == Some(0)), "{replies:x?}");
        assert_eq!((status(TM), replies.len()), (Some(0), 24));
        for (n, context) in contexts[..12].iter().enumerate() {
            let at = 4096 * n;
            if early.iter().any(|reply| reply.0 == *context) {
                assert_eq!(guest.bytes(DATA + at as u64, 512), memory[at..at + 512], "written after its end");
            }
        }
    }
}
