//! Fewer task numbers than requests, and disks whose I/O does not complete.

use std::time::Instant;

use super::*;
use crate::testing::initiator::{Initiator, LEN, Manage, Outcome, at};
use crate::testing::{broken_queues, small_tables};

const RESET: u16 = HostStatus::BusReset as u16;
const ABORTED: u16 = HostStatus::AbortQueue as u16;

/// A guest with this many task numbers and reads, the latter for both targets in turn; some are in flight at the disk. Contexts begin with
/// 100, and each read has a page of its own.
fn crowded(tasks: u32, count: u64) -> Guest {
    let mut guest = Guest::up(1, Config { tasks, ..Config::default() });
    guest.hold.set(true);
    for n in 0..count {
        let mut request = guest.transfer(false, n as u32, 1);
        request.target = if n % 2 == 0 { 0 } else { 3 };
        request.context = (100 + n).into();
        request.data_addr = (DATA + n * 4096).into();
        guest.put(&request);
    }
    guest.kick();
    assert!(guest.device.engine.in_flight.count() <= tasks && guest.completions().is_empty());
    guest
}

/// The contexts of these completions, which must all have this status.
fn contexts(completions: &[RingCmpDesc], host: u16) -> Vec<u64> {
    let mut contexts: Vec<_> = completions
        .iter()
        .map(|end| {
            assert_eq!(end.host_status.get(), host, "{end:?}");
            end.context.get()
        })
        .collect();
    contexts.sort_unstable();
    contexts
}

fn reset_device(guest: &mut Guest, target: u32) -> u32 {
    let mut reset = CmdDescResetDevice::new_zeroed();
    reset.target = target.into();
    guest.command(command::RESET_DEVICE, reset.as_bytes())
}

fn abort(guest: &mut Guest, context: u64, target: u32) {
    let mut abort = CmdDescAbortCmd::new_zeroed();
    abort.context = context.into();
    abort.target = target.into();
    guest.command(command::ABORT_CMD, abort.as_bytes());
}

/// Let the disk complete all requests. Returns the completions.
fn let_go(guest: &mut Guest) -> Vec<RingCmpDesc> {
    guest.hold.set(false);
    let mut ended = Vec::new();
    loop {
        guest.device.on_completions(guest.now);
        ended.extend(guest.completions());
        if guest.device.before_sleep(guest.now) != crate::device::Sleep::No {
            break;
        }
    }
    assert_eq!(guest.device.engine.in_flight.count(), 0);
    assert!(guest.device.engine.backlog.is_empty());
    ended
}

#[test]
fn a_bus_reset_ends_what_waits_for_a_task() {
    for (tasks, count) in [(1, 2), (1, 32), (2, 5), (4, 32), (5, 20)] {
        let mut guest = crowded(tasks, count);
        assert_eq!(guest.command(command::RESET_BUS, &[]), COMMAND_SUCCEEDED);
        let on_disk = u64::from(guest.device.engine.in_flight.count());
        let mut ended = guest.completions();
        assert_eq!(ended.len() as u64, count - on_disk, "{tasks}");
        // The driver may reuse the memory of completed requests.
        let mut filled: Vec<(u64, Vec<u8>)> = Vec::new();
        for end in &ended {
            let at = DATA + (end.context.get() - 100) * 4096;
            filled.push((at, guest.fill(at, 4096, 0x77)));
        }
        ended.extend(let_go(&mut guest));
        assert_eq!(contexts(&ended, RESET), (100..100 + count).collect::<Vec<_>>());
        assert!(filled.iter().all(|(at, data)| guest.bytes(*at, 4096) == *data), "written after its end");
        guest.clear_unit_attention(&[0, 3]);
        guest.check_io();
    }
}

#[test]
fn a_device_reset_ends_what_waits_for_a_task_of_the_device() {
    for tasks in [1, 2, 4, 7] {
        let mut guest = crowded(tasks, 30);
        assert_eq!(reset_device(&mut guest, 3), COMMAND_SUCCEEDED);
        let mut ended = guest.completions();
        assert!(ended.len() >= 15 - tasks as usize && contexts(&ended, RESET).iter().all(|at| at % 2 == 1));
        ended.extend(let_go(&mut guest));
        let (ours, others): (Vec<_>, Vec<_>) = ended.iter().partition(|end| end.context.get() % 2 == 1);
        assert_eq!(contexts(&ours, RESET), (0..15).map(|n| 101 + 2 * n).collect::<Vec<_>>());
        assert_eq!(contexts(&others, 0), (0..15).map(|n| 100 + 2 * n).collect::<Vec<_>>());
        guest.clear_unit_attention(&[3]);
        guest.check_io();
    }
}

#[test]
fn a_request_that_waits_for_a_task_is_aborted() {
    for tasks in [1, 3, 4] {
        // One request was put in without a kick.
        let mut guest = crowded(tasks, 30);
        let mut last = guest.transfer(false, 0, 1);
        last.context = 130.into();
        guest.put(&last);
        // The context of a request of the other target.
        abort(&mut guest, 127, 0);
        assert!(guest.completions().is_empty());
        for context in [127, 130, 120] {
            abort(&mut guest, context, if context % 2 == 0 { 0 } else { 3 });
            assert_eq!(contexts(&guest.completions(), ABORTED), [context], "{tasks}");
        }
        assert_eq!(let_go(&mut guest).len(), 28);
        guest.check_io();
    }
}

#[test]
fn nothing_of_the_ring_outlives_an_adapter_reset() {
    let mut guest = crowded(2, 30);
    guest.command(command::ADAPTER_RESET, &[]);
    let data = guest.fill(DATA, 30 * 4096, 0x77);
    assert_eq!(guest.set_up(), COMMAND_SUCCEEDED);
    assert!(let_go(&mut guest).is_empty());
    assert_eq!(guest.bytes(DATA, 30 * 4096), data);
    guest.write(REG_INTR_MASK, 0xf);
    guest.clear_unit_attention(&[0, 3]);
    guest.check_io();
}

#[test]
fn requests_in_the_backlog_of_a_detached_unit_are_answered() {
    let mut guest = Guest::up(4, Config { tasks: 4, ..Config::default() });
    small_tables::detach_with_backlog(&mut guest, Address { target: TARGETS[1], lun: 0 });
}

#[test]
fn a_disk_that_does_not_complete_leaves_tasks_to_the_others() {
    for tasks in [2, 3, 8, 256] {
        let mut guest = Guest::up(4, Config { tasks, ..Config::default() });
        let address = Address { target: TARGETS[1], lun: 0 };
        small_tables::stall_one_disk(&mut guest, 100, 1, address);
    }
}

#[test]
fn a_reset_does_not_wait_long_and_is_over_for_each_request_with_its_completion() {
    let mut guest = crowded(4, 6);
    guest.device.reset_wait = Duration::from_millis(5);
    let start = Instant::now();
    reset_device(&mut guest, 0);
    guest.command(command::RESET_BUS, &[]);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let early = guest.completions().len();
    let on_disk = guest.device.engine.in_flight.count();
    assert!(on_disk > 0 && early + on_disk as usize == 6);
    // A command that comes after the reset completes after all earlier requests: Linux frees memory when that command has succeeded.
    let mut ready = guest.request(&[0; 6]);
    ready.context = 999.into();
    guest.put(&ready);
    guest.kick();
    guest.device.on_completions(guest.now);
    assert!(guest.completions().is_empty());
    assert_eq!(guest.hold.waits(), 0, "the thread was blocked");
    let late = let_go(&mut guest);
    assert_eq!(late.len(), on_disk as usize + 1);
    assert_eq!(late.last().map(|end| end.context.get()), Some(999));
    assert_eq!(contexts(&late[..on_disk as usize], RESET).len(), on_disk as usize);
    guest.clear_unit_attention(&[3]);
    guest.check_io();
}

/// Two units, and a target without one.
const TARGETS: [u8; 3] = [0, 3, 1];
pub(super) const ABSENT: usize = 2;

impl Initiator for Guest {
    /// The number of ring entries.
    const SLOTS: u64 = 32;
    const RESET_WAITS: bool = true;

    fn hold(&self) -> &Hold {
        &self.hold
    }

    fn device(&mut self) -> (&mut dyn IoDevice, &mut Time) {
        (&mut self.device, &mut self.now)
    }

    fn start(&mut self, slot: u64, unit: usize, write: bool) {
        let mut request = self.transfer(write, slot as u32 * 4, 4);
        request.target = TARGETS[unit];
        request.context = (slot + 1).into();
        request.data_addr = at(slot).into();
        self.put(&request);
        self.kick();
    }

    fn ended(&mut self) -> Vec<(u64, Outcome)> {
        let ended = self.completions().into_iter().map(|end| {
            let outcome = match end.host_status.get() {
                0 => Outcome::of_scsi(end.scsi_status.get() as u8, &self.bytes(SENSE, 18)),
                _ => Outcome::Other,
            };
            assert!(outcome != Outcome::Good || end.data_len.get() == LEN, "{end:?}");
            (end.context.get() - 1, outcome)
        });
        ended.collect()
    }

    fn manage(&mut self, manage: Manage) {
        match manage {
            Manage::Abort { slot, unit } => abort(self, slot + 1, TARGETS[unit].into()),
            Manage::ResetUnit(unit) => {
                reset_device(self, TARGETS[unit].into());
            }
            Manage::ResetBus => {
                self.command(command::RESET_BUS, &[]);
            }
        }
    }

    /// The driver considers the reset complete when the register is written.
    fn begin_reset(&mut self) {
        self.command(command::ADAPTER_RESET, &[]);
        (self.req_prod, self.cmp_cons) = (0, self.state(offset_of!(RingsState, cmp_prod_idx)));
    }

    fn reset_is_over(&mut self) -> bool {
        true
    }

    fn bring_up(&mut self) {
        assert_eq!(self.set_up(), COMMAND_SUCCEEDED);
        self.write(REG_INTR_MASK, 0xf);
    }
}

#[test]
fn small_tables() {
    for tasks in [1, 2, 3, 4, 7] {
        let mut guest = Guest::up(1, Config { tasks, ..Config::default() });
        small_tables::play(&mut guest, tasks.into(), 4000);
    }
}

#[test]
fn broken_queues() {
    broken_queues::play(|| Guest::up(1, Config::default()), true);
}

#[test]
fn requests_that_wait_for_a_task_go_on_after_an_unmap() {
    small_tables::unmap_while_requests_wait(|tasks| Guest::up(1, Config { tasks, ..Config::default() }));
}

#[test]
fn a_unit_is_detached_while_its_disk_does_not_complete() {
    let mut guest = Guest::up(1, Config::default());
    small_tables::detach_stalled(&mut guest, Address { target: TARGETS[0], lun: 0 });
}
