mod guests;

use super::*;

#[test]
fn only_the_last_of_many_requests_is_kicked_for() {
    let mut suppression = KickSuppression::new();
    for expected in [8, 32, 100, 256] {
        let Suppressed { kicks, poll_after } = suppression.before_sleep(0, expected, false);
        assert_eq!(kicks, expected - 1);
        assert_eq!(poll_after, POLL_IDLE);
    }
    for expected in 0..8 {
        assert_eq!(suppression.before_sleep(0, expected, false), Suppressed::default(), "{expected}");
    }
    // With requests in flight, by their number; with a few, by what may come beside them.
    let beside = Suppressed { kicks: 9, poll_after: POLL_BUSY };
    assert_eq!(suppression.before_sleep(20, 12, false), beside);
    assert_eq!(suppression.before_sleep(7, 25, false).kicks, 24);
    assert_eq!(suppression.before_sleep(0, 32, true), Suppressed::default(), "the time of the poll has come");
}

/// A request of this number is found after it has waited so long, and takes so long.
fn found(suppression: &mut KickSuppression, waiting: u32, waited: Duration, takes: Duration) {
    let now = Time(1 << 40);
    suppression.polled(waiting, 29, waited, now);
    suppression.started(5);
    suppression.started(6);
    suppression.ended(6, now);
    suppression.ended(5, now.after(takes));
}

/// Sleeps without suppression.
fn backoff(suppression: &mut KickSuppression) -> u32 {
    (0..).find(|_| suppression.before_sleep(0, 32, false) != Suppressed::default()).unwrap_or(0)
}

#[test]
fn each_late_request_doubles_the_backoff() {
    let mut suppression = KickSuppression::new();
    for expected in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
        found(&mut suppression, 3, POLL_IDLE, POLL_IDLE / 3);
        assert_eq!(backoff(&mut suppression), expected);
    }
    for _ in 0..10 {
        suppression.polled(30, 29, POLL_IDLE, Time(0));
    }
    found(&mut suppression, 29, POLL_IDLE, POLL_IDLE / 3);
    assert_eq!(backoff(&mut suppression), 64);
}

#[test]
fn the_poll_comes_after_what_the_guest_takes_for_a_batch() {
    let mut batches = Batches::new();
    let mut poll_after = |waiting, waited: u64| {
        batches.taken(0, 32, Time(0));
        let suppressed = batches.before_sleep(0, false);
        batches.polled(waiting, suppressed.kicks, Duration::from_micros(waited), Time(0));
        batches.before_sleep(0, false).poll_after.as_micros()
    };
    assert_eq!(poll_after(32, 200), 300);
    // Fewer were there when the poll came.
    assert_eq!(poll_after(20, 300), 600);
    assert!((0..30).map(|_| poll_after(32, 10)).is_sorted_by(|before, after| before >= after));
    assert_eq!(poll_after(32, 10), 100);
}

#[test]
fn a_trial_goes_on_only_after_a_poll_that_found_enough() {
    let mut batches = Batches::new();
    let before = |batches: &mut Batches| {
        (0..100u8)
            .find(|_| {
                batches.taken(1, 1, Time(0));
                batches.before_sleep(0, false).kicks > 0
            })
            .unwrap_or(u8::MAX)
    };
    assert!((40..BEFORE_TRIAL).contains(&before(&mut batches)));
    let poll = |batches: &mut Batches, waiting, waited| {
        batches.polled(waiting, 1000, Duration::from_micros(waited), Time(0));
        let after = batches.before_sleep(0, true);
        (after.kicks > 0).then_some(after.poll_after.as_micros())
    };
    assert_eq!(poll(&mut batches, 2, 40), Some(80));
    assert_eq!(batches.before_sleep(0, true).kicks, 0, "nobody has polled");
    before(&mut batches);
    assert_eq!(poll(&mut batches, 3, 40), Some(80));
    assert_eq!(poll(&mut batches, 1, 20), Some(80), "another event");
    assert_eq!(poll(&mut batches, 9, 80), Some(160));
    assert_eq!(poll(&mut batches, 9, 160), None);
    assert_eq!(batches.suppression.next_backoff, MIN_BACKOFF);
    // A guest whose requests come slowly is not tried, nor one that sleeps.
    let slow = |n: u64| {
        batches.taken(1, 1, Time(n * 50_000));
        batches.before_sleep(0, false).kicks > 0
    };
    assert!(!(1..1000).any(slow));
    assert!((0..1000).all(|_| batches.before_sleep(0, false).kicks == 0));
}

#[test]
fn a_wait_shorter_than_the_request_causes_no_backoff() {
    let mut suppression = KickSuppression::new();
    for (waiting, waited, takes) in [
        (3, POLL_IDLE / 2, Duration::ZERO),
        (0, POLL_IDLE, Duration::ZERO),
        (3, POLL_IDLE, POLL_IDLE),
        (3, 5 * POLL_IDLE, 4 * POLL_IDLE),
    ] {
        found(&mut suppression, waiting, waited, takes);
        assert_eq!(backoff(&mut suppression), 0, "{waiting} waited {waited:?} and take {takes:?}");
    }
}
