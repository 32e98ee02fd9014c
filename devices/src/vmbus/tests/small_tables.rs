//! Fewer task numbers than requests, and disks whose I/O does not complete.

use super::*;
use crate::testing::initiator::{Initiator, Manage, Outcome, at};
use crate::testing::{broken_queues, small_tables};

impl Initiator for Guest {
    const SLOTS: u64 = 32;
    const RESET_WAITS: bool = false;

    fn hold(&self) -> &Hold {
        &self.hold
    }

    fn device(&mut self) -> (&mut dyn IoDevice, &mut Time) {
        (&mut self.device, &mut self.now)
    }

    fn start(&mut self, slot: u64, unit: usize, write: bool) {
        let payload = transfer(write, LUNS[unit], slot as u32 * 4, 4);
        assert!(self.put(1, &transfer_at(slot + 1, payload, at(slot))));
    }

    fn ended(&mut self) -> Vec<(u64, Outcome)> {
        let ended = self.take(1);
        let requests = ended.iter().filter(|packet| packet.kind == 0xb && packet.transaction < CONTROL);
        requests
            .map(|packet| {
                let (srb, scsi, _) = packet.end();
                let outcome = match srb {
                    1 => Outcome::Good,
                    0x84 => Outcome::of_scsi(scsi, &packet.payload[28..46]),
                    _ => Outcome::Other,
                };
                (packet.transaction - 1, outcome)
            })
            .collect()
    }

    /// The protocol has no abort.
    fn manage(&mut self, manage: Manage) {
        let mut payload = match manage {
            Manage::Abort { .. } => return,
            Manage::ResetUnit(unit) => {
                let mut payload = vstor(4, 0);
                payload[2] = u64::from(LUNS[unit]) << 24;
                payload
            }
            Manage::ResetBus => vstor(6, 0),
        };
        payload[0] |= 1 << 32;
        assert!(self.put(1, &in_band(CONTROL, payload)));
    }

    /// The driver reconnects.
    fn begin_reset(&mut self) {
        self.messages.clear();
        self.post(&[14, 0, self.version, 0, 2, 0, 0, 0, 0, 0]);
    }

    fn reset_is_over(&mut self) -> bool {
        self.received().iter().any(|message| message[0] == 15)
    }

    fn bring_up(&mut self) {
        self.post(&[3, 0]);
        assert_eq!(self.offers().len(), 1);
        self.open_primary();
    }
}

#[test]
fn small_tables() {
    for tasks in [1, 2, 3, 4, 7] {
        let mut guest = Guest::up(Config { tasks, ..config(Policy::Batch) });
        small_tables::play(&mut guest, tasks.into(), 4000);
    }
}

#[test]
fn broken_queues() {
    broken_queues::play(Guest::new, true);
}

#[test]
fn a_unit_is_detached_while_its_disk_does_not_complete() {
    small_tables::detach_stalled(&mut Guest::new(), Address { target: LUNS[0], lun: 0 });
}

#[test]
fn requests_in_the_backlog_of_a_detached_unit_are_answered() {
    let mut guest = Guest::up(Config { tasks: 4, ..config(Policy::Batch) });
    small_tables::detach_with_backlog(&mut guest, Address { target: LUNS[1], lun: 0 });
}

#[test]
fn a_disk_that_does_not_complete_leaves_tasks_to_the_others() {
    for tasks in [2, 3, 8, 256] {
        let mut guest = Guest::up(Config { tasks, ..config(Policy::Batch) });
        small_tables::stall_one_disk(&mut guest, 60, 1, Address { target: LUNS[1], lun: 0 });
    }
}

/// Requests beyond the backlog's limit wait in the ring. Their space is freed when they are taken.
#[test]
fn requests_beyond_all_tables_wait_in_the_ring() {
    let mut guest = Guest::up(Config { tasks: 2, ..config(Policy::Batch) });
    guest.hold.set(true);
    let mut put = 0;
    while put < 5000 {
        let packet = transfer_at(put, transfer(false, 0, 0, 1), DATA);
        if !guest.put(1, &packet) {
            guest.device.on_completions(guest.now);
            if !guest.put(1, &packet) {
                break;
            }
        }
        put += 1;
    }
    assert!(put < 5000);
    assert!(put > 1024, "{put}");
    assert!(guest.run_all(1).is_empty(), "the thread sleeps although packets wait");
    guest.hold.set(false);
    let mut ended: Vec<u64> = guest.run_all(1).iter().map(|packet| packet.transaction).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..put).collect::<Vec<_>>());
    guest.check_io(1);
}

#[test]
fn requests_that_wait_for_a_task_go_on_after_an_unmap() {
    small_tables::unmap_while_requests_wait(|tasks| Guest::up(Config { tasks, ..config(Policy::Batch) }));
}

/// Completions that are reaped when a channel closes raise no event: requests of another channel wait for its task numbers.
#[test]
fn requests_that_wait_for_a_task_go_on_after_a_close() {
    for count in [1, 2, 7] {
        let mut guest = Guest::up(Config { tasks: 1, ..config(Policy::Batch) });
        sub_channels::with_sub_channels(&mut guest, 1);
        guest.hold.set(true);
        assert!(guest.put(2, &transfer_at(100, transfer(false, 0, 0, 1), DATA)));
        assert!(guest.run_all(2).is_empty());
        guest.put_reads(count);
        assert!(guest.run_all(1).is_empty());
        // The disk has completed the request, and the bus reaps it when the channel is closed.
        guest.hold.set(false);
        guest.post(&[7, 0, 2]);
        assert_eq!(guest.device.before_sleep(guest.now), Sleep::No, "{count} wait for the number");
        assert_eq!(guest.run_all(1).len() as u64, count);
        guest.post(&[11, 0, 2, 102]);
        assert_eq!(guest.answer(12)[2], 102);
    }
}

/// A request that was fetched and not completed counts as in flight, also if its channel closes.
#[test]
fn requests_of_channels_that_are_gone_are_counted() {
    let endings: [fn(&mut Guest); 3] = [
        |guest| {
            guest.post(&[7, 0, 1]);
        },
        |guest| {
            guest.post(&[14, 0, 0x5_0003, 0, 2, 0, 0, 0, 0, 0]);
        },
        |guest| guest.device.reset(guest.now),
    ];
    for (index, end) in endings.into_iter().enumerate() {
        let mut guest = Guest::up(Config { tasks: 3, ..config(Policy::Batch) });
        guest.hold.set(true);
        let before = guest.device.stats();
        guest.put_reads(8);
        assert!(guest.run_all(1).is_empty());
        assert_eq!(guest.device.stats().requests - before.requests, 8);
        assert_eq!(guest.device.stats().completions, before.completions);
        end(&mut guest);
        guest.hold.set(false);
        assert!(guest.run_all(1).is_empty());
        let stats = guest.device.stats();
        assert_eq!(stats.completions, stats.requests, "{index}");
        assert_eq!(stats.errors - before.errors, 8, "{index}");
    }
}

#[test]
fn quiesce_ends_what_was_taken() {
    let mut guest = Guest::up(Config { tasks: 3, ..config(Policy::OioIops) });
    guest.hold.set(true);
    guest.put_reads(20);
    assert!(guest.run_all(1).is_empty());
    guest.flags(0);
    guest.device.quiesce(guest.now);
    assert_eq!(guest.flags(0), 2, "what was held back is signalled");
    assert_eq!(guest.take(1).len(), 20);
}
