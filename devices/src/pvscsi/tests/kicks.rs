//! Suppressed kicks, kicks that overtake a command, and polls for requests without a kick.

use std::time::Duration;

use super::*;
use crate::Sleep;
use crate::testing::Random;

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
    // Nothing is in flight and all completions are read: as many requests are expected again. A poll finds fewer.
    let Sleep::Until(poll) = guest.device.before_sleep(guest.now) else { panic!("no poll") };
    assert_eq!(threshold(&guest), 17);
    let request = guest.transfer(false, 0, 1);
    guest.put(&request);
    guest.now = poll;
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions().len(), 1);
    // Then the guest kicks for every request. One that it put in while the threshold was lowered may have come without a kick: one more poll
    // would find it, and no poll follows.
    let Sleep::Until(poll) = guest.device.before_sleep(guest.now) else { panic!("no late poll") };
    assert_eq!(threshold(&guest), 0);
    guest.now = poll;
    guest.device.on_completions(guest.now);
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

    /// The device's threshold.
    fn threshold(&self) -> u32 {
        self.guest.state(offset_of!(RingsState, req_call_threshold))
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
fn a_batch_takes_two_kicks_at_most() {
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
        assert!(kicks <= 2.1, "{each} us a request: {kicks} kicks a batch");
        assert!(waited < Duration::from_micros(30) * BATCHES, "{each} us a request: {waited:?}");
    }
}

/// As with two neighbouring requests that the guest's kernel has merged.
#[test]
fn a_batch_with_one_request_less_costs_the_next_ones_nothing() {
    let mut beside = Beside::new();
    let batch = |beside: &mut Beside, count| {
        let kicks = (0..count).filter(|_| {
            beside.pass(Duration::from_micros(4));
            beside.put()
        });
        let kicks = kicks.count();
        (kicks, beside.wait(count))
    };
    for _ in 0..100 {
        batch(&mut beside, 32);
    }
    let (kicks, waited) = batch(&mut beside, 31);
    assert!(kicks == 0 && !waited.is_zero());
    batch(&mut beside, 32);
    for _ in 0..10 {
        assert_eq!(batch(&mut beside, 32), (1, Duration::ZERO));
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
    assert!(longest <= Duration::from_millis(1), "{longest:?}");
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

#[test]
fn a_guest_that_stops_short_kicks_for_each_request() {
    let mut beside = Beside::new();
    let batch = |beside: &mut Beside, count| {
        let kicks = (0..count).filter(|_| beside.put()).count();
        (kicks, beside.wait(count))
    };
    for _ in 0..100 {
        batch(&mut beside, 32);
    }
    assert_eq!(batch(&mut beside, 32), (1, Duration::ZERO));
    assert_eq!(beside.threshold(), 32);
    // The guest puts in fewer, and does not kick. The poll finds them.
    let (kicks, waited) = batch(&mut beside, 3);
    assert_eq!(kicks, 0);
    assert!(!waited.is_zero() && waited <= Duration::from_micros(600), "{waited:?}");
    assert_eq!(batch(&mut beside, 1), (1, Duration::ZERO));
    // For a guest that puts in no more requests, the device polls a bounded number of times.
    beside.pass(Duration::from_millis(10));
    assert_eq!((beside.sleep, beside.threshold()), (Sleep::Forever, 0));
}

/// With random loads, no request waits for longer than a millisecond.
#[test]
fn no_request_is_left() {
    for seed in 1..=10 {
        let mut random = Random::new(seed);
        let mut beside = Beside::new();
        let entries = beside.guest.device.rings.as_ref().unwrap().request_entries() as u32;
        let (mut outstanding, mut unkicked, mut polled) = (0, 0, 0);
        let mut least = 1;
        for round in 0..1000 {
            beside.guest.hold.set(random.below(8) == 0);
            if round % 100 == 0 {
                least = random.pick(&[1, 1, 9, 24]);
            }
            let count = least.max(random.pick(&[1, 2, 9, 16, 30])).min(30 - outstanding);
            let before = beside.guest.device.stats().requests;
            for _ in 0..count {
                beside.pass(Duration::from_nanos(random.below(10_000)));
                unkicked += u32::from(!beside.put());
                assert!(beside.threshold() <= entries, "seed {seed}: a full ring is kicked for");
            }
            outstanding += count;
            let (limit, all) = (beside.guest.now.after(Duration::from_millis(1)), before + count as u64);
            while beside.guest.device.stats().requests < all {
                let Sleep::Until(time) = beside.sleep else { panic!("seed {seed}: a request is left") };
                assert!(time <= limit, "seed {seed}");
                beside.pass(time.since(beside.guest.now));
                polled += 1;
            }
            if random.below(3) == 0 {
                beside.guest.hold.set(false);
                beside.guest.device.on_completions(beside.guest.now);
                beside.settle();
            }
            outstanding -= beside.guest.completions().len();
            if random.below(3) > 0 {
                beside.pass(Duration::from_nanos(random.below(100_000)));
            }
        }
        assert!(unkicked > 0 && polled > 0, "seed {seed}: {unkicked}, {polled}");
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
