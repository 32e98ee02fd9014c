//! Suppressed kicks, kicks that overtake a command, and polls for requests without a kick.

use std::time::Duration;

use super::*;
use crate::Sleep;

#[test]
fn unread_completions_announce_requests_that_need_not_kick_each() {
    let mut guest = Guest::new();
    assert_eq!(guest.command(command::SETUP_REQCALLTHRESHOLD, &1u32.to_le_bytes()), 1);
    let threshold = |guest: &Guest| guest.state(offset_of!(RingsState, req_call_threshold));
    for n in 0..32 {
        let request = guest.transfer(false, n, 1);
        guest.put(&request);
    }
    guest.kick();
    // All requests have completed, and the guest has read no completion: it will put in about as many requests again.
    let Sleep::Until(poll) = guest.device.before_sleep(guest.now) else { panic!("no late poll") };
    assert_eq!(threshold(&guest), 30);
    assert_eq!(guest.completions().len(), 32);
    // The guest puts in fewer, and does not kick. The poll finds them.
    for n in 0..3 {
        let request = guest.transfer(false, n, 1);
        guest.put(&request);
    }
    guest.now = poll;
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions().len(), 3);
    // With so few requests, the guest kicks for each from now on.
    assert!(matches!(guest.device.before_sleep(guest.now), Sleep::Until(_)));
    assert_eq!(threshold(&guest), 0);
    // For a guest that puts in no more requests, the device polls a bounded number of times.
    for n in 0..32 {
        let request = guest.transfer(false, n, 1);
        guest.put(&request);
    }
    guest.kick();
    for poll in 0.. {
        match guest.device.before_sleep(guest.now) {
            Sleep::Until(time) => guest.now = time,
            Sleep::Forever => break,
            Sleep::No => panic!("there is nothing to do"),
        }
        assert!(poll < 4, "polls for ever");
        guest.device.on_completions(guest.now);
    }
    assert_eq!(threshold(&guest), 0);
}

#[test]
fn a_threshold_that_rises_in_sleep_has_its_late_look() {
    let mut guest = Guest::new();
    assert_eq!(guest.command(command::SETUP_REQCALLTHRESHOLD, &1u32.to_le_bytes()), 1);
    let settle = |guest: &mut Guest| {
        for _ in 0..4 {
            match guest.device.before_sleep(guest.now) {
                Sleep::Until(time) => guest.now = time,
                Sleep::Forever => return,
                Sleep::No => {}
            }
            guest.device.on_completions(guest.now);
        }
        panic!("does not settle");
    };
    // Four completions that the guest does not read, then five requests that the disk holds.
    for (count, held) in [(4, false), (5, true)] {
        guest.hold.set(held);
        for n in 0..count {
            let request = guest.transfer(false, n, 1);
            guest.put(&request);
        }
        guest.kick();
        settle(&mut guest);
    }
    // The requests complete, and nine completions are unread: the threshold rises although no request was taken.
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    let sleep = guest.device.before_sleep(guest.now);
    assert!(guest.state(offset_of!(RingsState, req_call_threshold)) > 1);
    let Sleep::Until(poll) = sleep else { panic!("sleeps for ever: {sleep:?}") };
    assert_eq!(guest.completions().len(), 9);
    let request = guest.transfer(false, 0, 1);
    guest.put(&request);
    guest.now = poll;
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions().len(), 1);
}

#[test]
fn an_adapter_without_rings_sleeps() {
    let mut guest = Guest::new();
    assert_eq!(guest.command(command::SETUP_REQCALLTHRESHOLD, &1u32.to_le_bytes()), 1);
    let run = |guest: &mut Guest| {
        for n in 0..2 {
            let request = guest.transfer(false, n, 1);
            guest.put(&request);
        }
        guest.kick();
        assert_eq!(guest.completions().len(), 2);
        assert!(matches!(guest.device.before_sleep(guest.now), Sleep::Until(_)), "a late poll is due");
    };
    run(&mut guest);
    guest.command(command::ADAPTER_RESET, &[]);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    guest.set_up();
    guest.clear_unit_attention(&[0]);
    run(&mut guest);
    assert_eq!(guest.command(command::SETUP_REQCALLTHRESHOLD, &0u32.to_le_bytes()), 0);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
}

#[test]
fn requests_put_in_without_a_kick_are_found() {
    let mut guest = Guest::new();
    assert_ne!(guest.command(command::SETUP_REQCALLTHRESHOLD, &[]), COMMAND_FAILED);
    assert_eq!(guest.command(command::SETUP_REQCALLTHRESHOLD, &1u32.to_le_bytes()), 1);
    let threshold = |guest: &Guest| guest.state(offset_of!(RingsState, req_call_threshold));
    assert_eq!(threshold(&guest), 0);
    guest.hold.set(true);
    for n in 0..16 {
        let request = guest.transfer(false, n, 1);
        guest.put(&request);
    }
    guest.kick();
    assert!(threshold(&guest) > 32, "no kicks while the device is awake");
    // Another request without a kick, before the device sleeps.
    let request = guest.transfer(false, 0, 1);
    guest.put(&request);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    guest.device.on_completions(guest.now);
    // The device sleeps with 17 requests in flight: a further request waits for the next completion or for the poll.
    assert!(matches!(guest.device.before_sleep(guest.now), Sleep::Until(_)));
    assert_eq!(threshold(&guest), 8);
    let request = guest.transfer(false, 0, 1);
    guest.put(&request);
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions().len(), 18);
    // Nothing is in flight and all completions are read: the guest kicks for every request. A request that the guest put in while the
    // threshold was lowered may have come without a kick: one more poll finds it, and no poll follows.
    let Sleep::Until(poll) = guest.device.before_sleep(guest.now) else { panic!("no late poll") };
    assert_eq!(threshold(&guest), 0);
    let request = guest.transfer(false, 0, 1);
    guest.put(&request);
    guest.now = poll;
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions().len(), 1, "the late request");
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    assert_eq!(threshold(&guest), 0);
    // The negotiated threshold survives a reset. New rings begin with a threshold of 0.
    guest.command(command::ADAPTER_RESET, &[]);
    guest.set_up();
    assert_eq!(threshold(&guest), 0);
    guest.clear_unit_attention(&[0]);
    guest.check_io();
    assert_eq!(guest.command(command::SETUP_REQCALLTHRESHOLD, &0u32.to_le_bytes()), 0);
    assert_eq!(threshold(&guest), 0);
}

/// The driver puts a request in, and kicks if the threshold requires it. True: it has kicked.
fn put(guest: &mut Guest, request: &RingReqDesc) -> bool {
    guest.put(request);
    let waiting = guest.req_prod.wrapping_sub(guest.state(offset_of!(RingsState, req_cons_idx)));
    let wanted = waiting >= guest.state(offset_of!(RingsState, req_call_threshold));
    if wanted {
        guest.kick();
    }
    wanted
}

/// Completions of other requests make the device poll before its deadline. A guest that waits for each of its requests must seldom wait for
/// such a poll.
#[test]
fn a_request_beside_slow_ones_seldom_waits_for_them() {
    let mut guest = Guest::new();
    assert_eq!(guest.command(command::SETUP_REQCALLTHRESHOLD, &1u32.to_le_bytes()), 1);
    let mut left = 0;
    for round in 0..400 {
        guest.hold.set(true);
        for n in 0..10 {
            let request = guest.transfer(false, n, 1);
            guest.put(&request);
        }
        guest.kick();
        while guest.device.before_sleep(guest.now) == Sleep::No {
            guest.device.on_completions(guest.now);
        }
        let request = guest.transfer(false, round, 1);
        left += u32::from(!put(&mut guest, &request));
        // One of the ten requests completes.
        guest.now.0 += 300_000;
        guest.device.on_completions(guest.now);
        guest.hold.set(false);
        guest.device.on_completions(guest.now);
        assert_eq!(guest.completions().len(), 11);
    }
    assert!((1..=20).contains(&left), "{left} of 400");
}

/// Kicks are events, and other register writes are messages on a socket: the two are not ordered.
#[test]
fn a_kick_that_overtakes_the_command_before_it_is_not_lost() {
    let mut guest = Guest::new();
    guest.command(command::ADAPTER_RESET, &[]);
    guest.memory.write_slice(&[0; 4096], GuestAddress(STATE)).unwrap();
    (guest.req_prod, guest.cmp_cons) = (0, 0);
    let request = guest.transfer(false, 0, 1);
    guest.put(&request);
    guest.kick();
    let setup = setup_rings(guest.pages);
    assert_eq!(guest.command(command::SETUP_RINGS, setup.as_bytes()), COMMAND_SUCCEEDED);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions().len(), 1);
}

/// A guest with suppressed kicks, and the device's thread beside it.
struct Beside {
    guest: Guest,
    sleep: Sleep,
}

impl Beside {
    fn new() -> Self {
        let mut guest = Guest::new();
        assert_eq!(guest.command(command::SETUP_REQCALLTHRESHOLD, &1u32.to_le_bytes()), 1);
        let mut beside = Self { guest, sleep: Sleep::Forever };
        beside.settle();
        beside
    }

    fn settle(&mut self) {
        loop {
            self.sleep = self.guest.device.before_sleep(self.guest.now);
            if self.sleep != Sleep::No {
                return;
            }
            self.guest.device.on_completions(self.guest.now);
        }
    }

    /// The guest computes for this time.
    fn pass(&mut self, time: Duration) {
        let until = self.guest.now.after(time);
        while let Sleep::Until(poll) = self.sleep
            && poll <= until
        {
            self.guest.now = self.guest.now.max(poll);
            self.guest.device.on_completions(self.guest.now);
            self.settle();
        }
        self.guest.now = until;
    }

    /// Put a request in. True: with a kick.
    fn put(&mut self) -> bool {
        let request = self.guest.transfer(false, 0, 1);
        let kicked = put(&mut self.guest, &request);
        if kicked {
            self.settle();
        }
        kicked
    }

    /// The guest waits for `count` completions, and reads them. Returns how long it waited.
    fn wait(&mut self, mut count: usize) -> Duration {
        let start = self.guest.now;
        loop {
            count -= self.guest.completions().len();
            if count == 0 {
                return self.guest.now.since(start);
            }
            let Sleep::Until(poll) = self.sleep else { panic!("{count} requests are never found") };
            self.pass(poll.since(self.guest.now));
        }
    }
}

#[test]
fn a_batch_takes_one_kick_however_long_the_guest_takes_for_it() {
    for each in [2, 6, 10, 12] {
        let mut beside = Beside::new();
        let (mut kicks, mut waited) = (0, Duration::ZERO);
        const BATCHES: u32 = 300;
        for batch in 0..BATCHES {
            for _ in 0..32 {
                beside.pass(Duration::from_micros(each));
                kicks += if beside.put() && batch >= BATCHES / 3 { 1 } else { 0 };
            }
            waited += beside.wait(32);
        }
        let kicks = f64::from(kicks) / f64::from(BATCHES - BATCHES / 3);
        assert!(kicks <= 1.1, "{each} us a request: {kicks} kicks a batch");
        assert!(waited < Duration::from_micros(10) * BATCHES, "{each} us a request: {waited:?}");
    }
}

#[test]
fn a_guest_that_waits_for_one_request_after_a_batch_seldom_waits_longer() {
    let mut beside = Beside::new();
    let (mut late, mut longest) = (0, Duration::ZERO);
    const ROUNDS: u32 = 1000;
    for _ in 0..ROUNDS {
        for _ in 0..32 {
            beside.pass(Duration::from_micros(5));
            beside.put();
        }
        beside.wait(32);
        beside.pass(Duration::from_micros(20));
        beside.put();
        let waited = beside.wait(1);
        late += u32::from(!waited.is_zero());
        longest = longest.max(waited);
    }
    assert!(late <= ROUNDS / 2, "{late}");
    assert!(longest <= Duration::from_micros(400), "{longest:?}");
}

#[test]
fn a_guest_whose_batches_vary_seldom_waits() {
    let mut beside = Beside::new();
    let mut waited = Duration::ZERO;
    const ROUNDS: u32 = 1000;
    for round in 0..ROUNDS {
        let batch = [32, 1, 4, 16, 8, 24, 1, 16][(round * 7 / 3 % 8) as usize];
        for _ in 0..batch {
            beside.pass(Duration::from_micros(5));
            beside.put();
        }
        waited += beside.wait(batch);
    }
    assert!(waited < Duration::from_micros(20) * ROUNDS, "{waited:?}");
}

#[test]
fn a_single_request_leaves_the_threshold_and_needs_no_look() {
    let mut beside = Beside::new();
    for _ in 0..10 {
        assert!(beside.put());
        assert_eq!(beside.sleep, Sleep::Forever);
        assert_eq!(beside.wait(1), Duration::ZERO);
    }
}

/// The driver's virtual CPU waits for each kick until the device has completed the request.
#[test]
fn a_driver_that_kicks_block_is_looked_for_while_it_puts_in_several_requests() {
    let mut guest = Guest::new();
    assert_eq!(guest.command(command::SETUP_REQCALLTHRESHOLD, &1u32.to_le_bytes()), 1);
    // The number of kicks, and the longest wait of a request.
    let run = |guest: &mut Guest, rounds: u32, each: u32| {
        let (mut kicks, mut longest) = (0, 0);
        for _ in 0..rounds {
            for n in 0..each {
                let request = guest.transfer(false, n, 1);
                guest.put(&request);
                let waiting = guest.req_prod.wrapping_sub(guest.state(offset_of!(RingsState, req_cons_idx)));
                if waiting >= guest.state(offset_of!(RingsState, req_call_threshold)) {
                    guest.device.on_blocking_doorbell(0, guest.now);
                    kicks += 1;
                    while guest.device.before_sleep(guest.now) == Sleep::No {
                        guest.device.on_completions(guest.now);
                    }
                }
            }
            let since = guest.now;
            let mut done = 0;
            loop {
                let sleep = guest.device.before_sleep(guest.now);
                if sleep != Sleep::No {
                    done += guest.completions().len() as u32;
                }
                match sleep {
                    _ if done == each => break,
                    Sleep::No => {}
                    Sleep::Until(poll) => guest.now = poll,
                    Sleep::Forever => panic!("{} of {each} were not found", each - done),
                }
                guest.device.on_completions(guest.now);
            }
            longest = longest.max(guest.now.since(since).as_micros());
        }
        (kicks, longest)
    };
    let (kicks, longest) = run(&mut guest, 1000, 4);
    assert!(kicks < 10, "{kicks} of 4000 requests were kicked for");
    assert!(longest <= 100, "{longest} us");
    let (kicks, _) = run(&mut guest, 4000, 1);
    assert!((3900..4000).contains(&kicks), "{kicks} of 4000 single requests were kicked for");
    let (kicks, _) = run(&mut guest, 1000, 4);
    assert!(kicks < 300, "{kicks} of 4000 requests were kicked for");
    // When the guest stops, the device sleeps.
    for poll in 0.. {
        match guest.device.before_sleep(guest.now) {
            Sleep::Until(time) => guest.now = time,
            Sleep::Forever => break,
            Sleep::No => {}
        }
        assert!(poll < 10, "polls for ever");
        guest.device.on_completions(guest.now);
    }
    assert_eq!(guest.state(offset_of!(RingsState, req_call_threshold)), 0);
}
