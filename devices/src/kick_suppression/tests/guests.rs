//! Guests with batches of requests, and how often they kick.

use std::time::Duration;

use crate::kick_suppression::{Batches, MAX_POLL_IDLE, MIN_REQUESTS, POLL_IDLE};
use crate::testing::Random;
use crate::time::Time;

/// Nanoseconds of a step.
const STEP: u64 = 100;

/// A guest that puts in a batch, waits until all of it has completed, and puts in the next; and a device whose disk completes at once.
#[derive(Clone, Copy, Debug)]
struct Guest {
    /// Requests of a batch, or the bounds of their number.
    batch: (u32, u32),
    /// Number of single requests before the first batch.
    singles: u32,
    /// Nanoseconds from one request to the next, to read a completion, and from the last completion to the next batch.
    put: u64,
    read: u64,
    think: u64,
    /// Nanoseconds from an interrupt to its handler.
    interrupt: u64,
    /// Nanoseconds from a kick until the device serves the ring, and that the device takes for each request.
    wake: u64,
    serve: u64,
}

#[derive(Debug, Default)]
struct Counts {
    batches: u32,
    kicks: u32,
    polls: u32,
    /// The longest time in nanoseconds that a request has waited while the device slept.
    waited: u64,
    /// Nanoseconds that the guest has waited for polls after its last request.
    delay: u64,
}

#[derive(Debug)]
enum Device {
    Asleep { suppressed: u32, woken: Option<u64> },
    Busy { until: u64 },
}

/// Run a guest. Returns the counts of the batches after the first `skip`.
fn run(guest: &Guest, batches: u32, skip: u32, random: &mut Random) -> Counts {
    let mut rule = Batches::new();
    let mut counts = Counts::default();
    // Indices of the rings.
    let (mut put, mut taken, mut posted, mut read) = (0u32, 0u32, 0u32, 0u32);
    let mut left = if guest.singles > 0 { 1 } else { guest.batch.0 };
    let mut next_put = 0;
    let mut handler: Option<u64> = None;
    let mut device = Device::Asleep { suppressed: 0, woken: None };
    let (mut poll_at, mut oldest, mut newest): (Option<u64>, Option<u64>, u64) = (None, None, 0);
    let (mut lowered_from, mut since, mut after_lowering, mut has_taken) = (0, 0, false, false);
    for now in (0..).map(|step| step * STEP) {
        // The guest's turn: its interrupt handler goes first.
        match handler {
            Some(at) if now >= at && read != posted => {
                read += 1;
                handler = Some(now + guest.read);
                if read == put && left == 0 {
                    counts.batches += 1;
                    if counts.batches == skip {
                        counts = Counts { batches: skip, ..Counts::default() };
                    }
                    if counts.batches == skip + batches {
                        return counts;
                    }
                    let (least, most) = if counts.batches < guest.singles { (1, 1) } else { guest.batch };
                    left = least + random.below(u64::from(most - least) + 1) as u32;
                    next_put = now + guest.think;
                }
            }
            Some(at) if now >= at => handler = None,
            _ if left > 0 && now >= next_put && handler.is_none_or(|at| now < at) => {
                (put, left, next_put) = (put + 1, left - 1, now + guest.put);
                oldest.get_or_insert(now);
                newest = now;
                if let Device::Asleep { suppressed, woken: woken @ None } = &mut device
                    && put - taken > *suppressed
                {
                    counts.kicks += 1;
                    *woken = Some(now + guest.wake);
                }
            }
            _ => {}
        }
        let late = poll_at.is_some_and(|at| now >= at);
        let mut slept = None;
        match device {
            Device::Asleep { woken, suppressed } if woken.is_some_and(|at| now >= at) || late => {
                counts.polls += u32::from(woken.is_none_or(|at| now < at));
                slept = Some((late, suppressed));
            }
            Device::Busy { until } if now >= until => {
                handler = handler.or(Some(now + guest.interrupt));
                posted = taken;
                rule.suppression.ended(0, Time(now));
                slept = Some((late, u32::MAX));
            }
            _ => {}
        }
        let Some((late, before)) = slept else { continue };
        let waiting = put - taken;
        if waiting > 0 {
            if before != u32::MAX && before > 0 {
                rule.polled(waiting, before, Duration::from_nanos(now - since), Time(now));
            }
            rule.suppression.started(0);
            rule.taken(waiting, put - read, Time(now));
            taken = put;
            if let Some(since) = oldest.take() {
                counts.waited = counts.waited.max(now - since);
                counts.delay += if late { now - newest } else { 0 };
            }
            device = Device::Busy { until: now + 2000 + u64::from(waiting) * guest.serve };
            (lowered_from, has_taken) = (u32::MAX, true);
            continue;
        }
        let ends_batch = late && !(after_lowering && has_taken);
        let suppressed = rule.before_sleep(0, ends_batch);
        has_taken = false;
        let lowered = suppressed.kicks < before.max(std::mem::take(&mut lowered_from));
        if suppressed.kicks > 0 {
            poll_at = Some(now + suppressed.poll_after.as_nanos() as u64);
            after_lowering = false;
        } else if lowered {
            poll_at = Some(now + POLL_IDLE.as_nanos() as u64);
            after_lowering = true;
        } else if late {
            poll_at = None;
        }
        since = now;
        device = Device::Asleep { suppressed: suppressed.kicks, woken: None };
    }
    counts
}

/// A guest with random times. So it is random how many completions it has read when the device sleeps, and whether it reads while it puts
/// requests in.
fn guest(random: &mut Random, batch: (u32, u32)) -> Guest {
    let mut between = |least: u64, most: u64| least + random.below(most - least + 1);
    Guest {
        batch,
        singles: 0,
        put: between(300, 8000),
        read: between(100, 2000),
        think: between(1000, 50_000),
        interrupt: between(0, 5000),
        wake: between(0, 10_000),
        serve: between(200, 1000),
    }
}

#[test]
fn one_kick_a_batch_whatever_the_pace() {
    let mut random = Random::new(0x0dd5_eed5);
    let (guests_tried, mut all, mut more) = (100, 0, 0);
    for _ in 0..guests_tried {
        let batch = 8 + random.below(41) as u32;
        let guest = guest(&mut random, (batch, batch));
        let counts = run(&Guest { put: guest.put.min(3500), ..guest }, 100, 300, &mut random);
        all += counts.kicks;
        more += u32::from(counts.kicks > 105 || counts.polls > 5);
    }
    // The exceptions are guests of whose requests a trial finds few.
    assert!(more <= guests_tried / 10, "{more} guests of {guests_tried} kick more often, or wait for polls");
    assert!(all <= guests_tried * 130, "{all} kicks for {} batches", guests_tried * 100);
}

/// The device is faster than such a guest, and does not know the size of its batches.
#[test]
fn slow_guests_kick_more_and_wait_for_few_polls() {
    let mut random = Random::new(0x0dd5_eed5);
    for _ in 0..100 {
        let batch = 8 + random.below(41) as u32;
        let guest = guest(&mut random, (batch, batch));
        let counts = run(&Guest { put: guest.put.max(3500), ..guest }, 100, 300, &mut random);
        assert!(counts.polls <= 70, "{guest:?}: {counts:?}");
        assert!(counts.waited <= MAX_POLL_IDLE.as_nanos() as u64 + STEP, "{guest:?}: {counts:?}");
    }
}

#[test]
fn a_batch_after_single_requests_is_soon_found() {
    let mut random = Random::new(0x0dd5_eed5);
    let mut kicks = Vec::new();
    for _ in 0..100 {
        let single = Guest { singles: 3200, ..guest(&mut random, (32, 32)) };
        kicks.push(run(&single, 20, 3200, &mut random).kicks);
    }
    kicks.sort_unstable();
    assert!(kicks[50] <= 64 && kicks[90] <= 160, "kicks for 640 requests: {kicks:?}");
}

#[test]
fn guests_with_few_requests_seldom_wait() {
    let mut random = Random::new(0x5ee1_d0e5);
    for depth in 1..MIN_REQUESTS {
        let guest = guest(&mut random, (depth, depth));
        let counts = run(&guest, 5000, 1, &mut random);
        assert!(counts.delay <= 4000 * 5000, "{guest:?}: {counts:?}");
        assert!(counts.waited <= MAX_POLL_IDLE.as_nanos() as u64 + STEP, "{guest:?}: {counts:?}");
    }
}

#[test]
fn guests_whose_batches_vary_seldom_wait_and_never_long() {
    let mut random = Random::new(0x1bad_5eed);
    let mut delay = 0;
    for _ in 0..100 {
        let batch = (1 + random.below(8) as u32, 9 + random.below(40) as u32);
        let guest = guest(&mut random, batch);
        let counts = run(&guest, 300, 1, &mut random);
        delay += counts.delay;
        assert!(counts.waited <= MAX_POLL_IDLE.as_nanos() as u64 + STEP, "{guest:?}: {counts:?}");
        assert!(counts.polls <= 120, "{guest:?}: {counts:?}");
    }
    assert!(delay <= 40_000 * 100 * 300, "{} ns a batch", delay / (100 * 300));
}
