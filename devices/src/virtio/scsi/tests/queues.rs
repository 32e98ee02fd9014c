//! Queues, interrupts and resets.

use super::*;
use crate::moderation::Coalescing;

#[test]
fn the_configuration_says_what_there_is() {
    for (asked, queues, size) in [(0, 1, 4), (3, 3, 128), (62, 62, 1024), (0xffff, 62, 1024)] {
        let config = Config {
            queues: asked,
            queue_size: if asked == 3 { 100 } else { asked.saturating_mul(100) },
            targets: asked,
            tasks: 32,
            ..Config::default()
        };
        let bus = Bus::new(config.tasks);
        let mut driver = Guest::over(0, config.tasks, Hold::default(), |memory, sink| {
            Device::new(memory, bus, sink, config).unwrap()
        });
        let features = ScsiFeatures::from_bits_truncate(driver.offered());
        assert_eq!(features, ScsiFeatures::HOTPLUG | ScsiFeatures::CHANGE);
        let fields = [0, 4, 8, 12, 16, 20, 24, 28, 32].map(|at| driver.read(DEVICE_CFG + at, 4));
        let max_target = u64::from(asked.clamp(1, 256) - 1);
        assert_eq!(fields, [queues, size - 2, 0xffff, 32, 16, 96, 32, max_target << 16, 0x3fff]);
        assert_eq!(driver.read(DEVICE_CFG + 36, 8), 0);
        assert_eq!((driver.read(NUM_QUEUES, 2), driver.read(QUEUE_SIZE, 2)), (queues + 2, size));
        assert_eq!(driver.device.doorbells().len() as u64, queues + 2);
        let mut id = [0; 4];
        driver.device.config_read(0, &mut id);
        assert_eq!(id, [0xf4, 0x1a, 0x48, 0x10]);
        // All fields other than the two sizes are read-only.
        for at in (0..20).chain(28..64) {
            driver.write(DEVICE_CFG + at, 4, 1);
        }
        assert_eq!([0, 4, 8, 12, 16].map(|at| driver.read(DEVICE_CFG + at, 4))[..], fields[..5]);
    }
}

#[test]
fn every_queue_has_its_vector() {
    let mut guest = Guest::with(Features::VERSION_1.bits(), Config { queues: 2, ..batch() });
    guest.enable_msix();
    guest.counts.vectors();
    guest.start(FIRST, 1, HERE, false);
    assert_eq!(guest.counts.vectors(), [3]);
    guest.start(FIRST + 1, 2, HERE, true);
    assert_eq!(guest.counts.vectors(), [4]);
    guest.manage(tmf::QUERY_TASK_SET, lun::lun(HERE), 0);
    assert_eq!(guest.counts.vectors(), [1]);
}

#[test]
fn moderation_holds_back_nothing_that_is_waited_for() {
    let coalescing = Coalescing::policy(Policy::Oio);
    let mut guest = Guest::with(Features::VERSION_1.bits(), Config { coalescing, ..batch() });
    guest.enable_msix();
    for queue in [CONTROL, EVENTS] {
        guest.write(QUEUE_SELECT, 2, queue.into());
        guest.write(QUEUE_MSIX_VECTOR, 2, 3);
    }
    // Buffers for events do not count as outstanding requests.
    for n in 0..60 {
        guest.put(EVENTS, &[writes(DATA + 16 * n, 16)]);
    }
    guest.kick(EVENTS);
    // Each for longer than an epoch.
    for round in 0..400 {
        guest.now.0 += 1_000_000;
        guest.counts.vectors();
        guest.start(FIRST, 1, HERE, false);
        assert_eq!(guest.counts.vectors(), [3], "round {round}");
        guest.completions(FIRST);
    }
    let mut signals = 0;
    for _ in 0..400 {
        guest.now.0 += 1_000_000;
        guest.hold.set(true);
        for n in 1..=20 {
            guest.start(FIRST, n, HERE, false);
        }
        guest.hold.set(false);
        guest.device.on_completions(guest.now);
        signals += guest.counts.vectors().len();
        assert_eq!(guest.completions(FIRST).len(), 20);
    }
    assert!(signals < 1000, "{signals} signals for 8,000 completions: nothing is held back");
    // Task management beside many requests.
    guest.hold.set(true);
    for n in 1..=20 {
        guest.start(FIRST, n, HERE, false);
    }
    guest.counts.vectors();
    for round in 0..20 {
        guest.manage(tmf::QUERY_TASK, lun::lun(HERE), 5);
        assert_eq!(guest.counts.vectors(), [3], "round {round}");
    }
}

#[test]
fn a_reset_with_requests_in_flight_leaves_nothing_behind() {
    for config_space in [false, true] {
        let mut guest = Guest::new();
        guest.hold.set(true);
        for n in 1..=8 {
            guest.start(FIRST, n, if n % 2 == 0 { HERE } else { THERE }, n % 3 == 0);
        }
        guest.manage(tmf::ABORT_TASK, lun::lun(HERE), 2);
        assert_eq!(guest.in_flight(), 8);
        if config_space {
            guest.device.reset(guest.now);
            guest.device.config_write(4, &6u16.to_le_bytes());
        } else {
            guest.write(DEVICE_STATUS, 1, 0);
            // The reset completes when the disks have completed the requests.
            assert!(!guest.status().is_empty());
            assert_eq!((guest.in_flight(), guest.hold.waits()), (8, 0));
            guest.hold.set(false);
            guest.device.on_completions(guest.now);
            assert!(guest.status().is_empty());
        }
        assert_eq!(guest.in_flight(), 0);
        let before = guest.bytes(0, 2 * MIB as usize);
        guest.hold.set(false);
        guest.device.on_completions(guest.now);
        assert!(guest.bytes(0, 2 * MIB as usize) == before, "memory was written after the reset");
        let stats = guest.device.stats();
        assert_eq!(stats.requests, stats.completions, "dropped requests are over");
        guest.bring_up(ALL, 32);
        guest.clear_unit_attention();
        guest.check_io();
    }
}

#[test]
fn a_queue_is_reset_by_itself() {
    let mut guest = Guest::with(ALL, Config { queues: 2, ..batch() });
    guest.completions(FIRST);
    guest.hold.set(true);
    guest.start(FIRST, 1, HERE, false);
    guest.start(FIRST + 1, 2, HERE, false);
    guest.manage(tmf::ABORT_TASK, lun::lun(HERE), 1);
    guest.write(QUEUE_SELECT, 2, FIRST.into());
    guest.write(QUEUE_RESET, 2, 1);
    assert_eq!((guest.read(QUEUE_RESET, 2), guest.in_flight(), guest.hold.waits()), (1, 2, 0));
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.read(QUEUE_RESET, 2), 0);
    assert_eq!((guest.in_flight(), guest.bytes(guest.answer(1).address, 12)), (0, vec![0xff; 12]));
    assert_eq!((guest.completions(FIRST + 1).len(), guest.managed()), (1, Some(0)));
    let stats = guest.device.stats();
    assert_eq!(stats.requests, stats.completions, "dropped requests are over");
    guest.set_up_queue(FIRST, 16);
    guest.check_io();

    // Reset of the control queue: functions that wait are dropped.
    guest.hold.set(true);
    guest.start(FIRST + 1, 3, HERE, false);
    guest.manage(tmf::ABORT_TASK, lun::lun(HERE), 3);
    guest.write(QUEUE_SELECT, 2, CONTROL.into());
    guest.write(QUEUE_RESET, 2, 1);
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    guest.set_up_queue(CONTROL, 16);
    assert_eq!(guest.completions(FIRST + 1).len(), 1);
    assert_eq!(guest.managed(), None);
    guest.manage(tmf::LOGICAL_UNIT_RESET, lun::lun(HERE), 0);
    assert_eq!(guest.managed(), Some(0));
}

#[test]
fn queues_take_turns_where_there_is_not_room_for_all() {
    let mut guest = Guest::with(ALL, Config { queues: 3, tasks: 2, ..batch() });
    guest.completions(FIRST);
    let mut done = [0; 3];
    for n in 0..45 {
        let pieces = guest.pieces(n, HERE, &transfer10(false, 0, 1), &[writes(DATA, 512)]);
        guest.put_indirect(FIRST + (n % 3) as u16, &pieces);
        if n % 3 == 2 {
            guest.kick(FIRST);
            for (queue, done) in (FIRST..).zip(&mut done) {
                *done += guest.completions(queue).len();
            }
        }
    }
    assert_eq!(done, [15; 3]);
}

/// The guest looks for the completions of a function's requests when it sees the response.
#[test]
fn the_response_of_a_function_is_signalled_after_the_completions_of_its_requests() {
    let mut guest = Guest::with(Features::VERSION_1.bits(), Config { queues: 2, ..batch() });
    guest.enable_msix();
    guest.hold.set(true);
    guest.start(FIRST + 1, 1, HERE, true);
    guest.manage(tmf::ABORT_TASK, lun::lun(HERE), 1);
    guest.counts.vectors();
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.counts.vectors(), [4, 1]);
}

#[test]
fn a_change_of_the_moderation_leaves_no_request_behind() {
    let mut guest = Guest::with(ALL, Config { tasks: 1, ..batch() });
    guest.completions(FIRST);
    guest.hold.set(true);
    guest.start(FIRST, 1, HERE, false);
    guest.start(FIRST, 2, THERE, false);
    guest.hold.set(false);
    guest.device.set_coalescing(Coalescing::policy(Policy::Batch));
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions(FIRST).len(), 2);
}
