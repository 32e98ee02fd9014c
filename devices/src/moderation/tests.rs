//! The table of ratios, completion by completion.

use proptest::prelude::*;

use super::*;

mod schedules;

const MS: u64 = 1_000_000;

/// A moderator whose ratio is the published one of `cif` at a high rate, at the start of a period.
fn settled(policy: Policy, cif: u32) -> (Moderator, Time) {
    at_rate(Coalescing { longest_hold: Duration::MAX, ..Coalescing::policy(policy) }, cif, 100_000)
}

/// A moderator whose ratio is that of `cif` at a rate, at the start of a period.
fn at_rate(options: Coalescing, cif: u32, iops: u64) -> (Moderator, Time) {
    let mut moderator = Moderator::new(options);
    let mut now = Time(0);
    for _ in 0..iops / 3 {
        now.0 += 1000 * MS / iops;
        let _ = moderator.completed(cif, now);
        let _ = moderator.end_batch(now);
    }
    // Few commands in flight: delivered, and the period restarts. The ratio stays until the epoch ends.
    let _ = moderator.completed(0, now);
    assert!(moderator.end_batch(now));
    (moderator, now)
}

fn sequence(moderator: &mut Moderator, now: Time, cif: u32, len: usize) -> String {
    (0..len)
        .map(|_| {
            let at_once = moderator.completed(cif, now);
            if at_once | moderator.end_batch(now) { 'D' } else { 's' }
        })
        .collect()
}

#[test]
fn the_state_is_the_ratio_and_what_is_held_back() {
    let (mut moderator, now) = settled(Policy::OioIops, 32);
    let state = |moderator: &Moderator| {
        let ModerationState { policy, signals, completions, held_back } = moderator.state();
        (policy, signals, completions, held_back)
    };
    assert_eq!(state(&moderator), (Policy::OioIops, 1, 4, false));
    assert_eq!(sequence(&mut moderator, now, 32, 1), "s");
    assert_eq!(state(&moderator), (Policy::OioIops, 1, 4, true));
    assert_eq!(sequence(&mut moderator, now, 32, 3), "ssD");
    assert_eq!(state(&moderator), (Policy::OioIops, 1, 4, false));
    let _ = moderator.set_options(Coalescing::policy(Policy::Batch));
    assert_eq!(state(&moderator), (Policy::Batch, 1, 1, false));
    assert_eq!(state(&settled(Policy::OioIops, 8).0), (Policy::OioIops, 3, 4, false));
}

#[test]
fn ratios_are_those_of_the_table() {
    for (cif, expected) in [
        (0, "DDDDDDDDDD"),
        (3, "DDDDDDDDDD"),
        (4, "DDDsDDDDsD"),
        (7, "DDDsDDDDsD"),
        (8, "DDsDDDsD"),
        (11, "DDsDDDsD"),
        (12, "DsDDsD"),
        (15, "DsDDsD"),
        (16, "sDsD"),
        (24, "ssDssD"),
        (32, "sssDsssD"),
        (64, "sssssssD"),
        (256, "sssssssssssssssssssssssssssssssD"),
    ] {
        let (mut moderator, now) = settled(Policy::OioIops, cif);
        assert_eq!(sequence(&mut moderator, now, cif, expected.len()), expected, "cif {cif}");
    }
}

#[test]
fn nothing_is_held_back_for_what_takes_long_to_come() {
    let options = Coalescing::policy(Policy::OioIops);
    assert_eq!(options.longest_hold, Duration::from_micros(50));
    for (cif, iops, expected) in [
        // Twenty, four, one and no completions in 50 us.
        (64, 400_000, "sssssssDsssssssD"),
        (64, 80_000, "ssssDssssD"),
        (64, 25_000, "sDsDsD"),
        (64, 18_000, "DDDDDD"),
        (5, 25_000, "DDDsDDDDsD"),
        (5, 18_000, "DDDDDDDDDD"),
    ] {
        let (mut moderator, now) = at_rate(options, cif, iops);
        assert_eq!(sequence(&mut moderator, now, cif, expected.len()), expected, "cif {cif}, {iops} IOPS");
    }
}

#[test]
fn the_threshold_is_compared_after_the_completion() {
    // A guest with exactly four commands in flight has three after each completion.
    let (mut moderator, now) = settled(Policy::OioIops, 3);
    assert!(!sequence(&mut moderator, now, 3, 100).contains('s'));
    let (mut moderator, now) = settled(Policy::OioIops, 4);
    assert!(sequence(&mut moderator, now, 4, 100).contains('s'));
}

#[test]
fn a_low_rate_is_never_coalesced_but_by_oio() {
    for (policy, coalesced) in [(Policy::OioIops, false), (Policy::Oio, true)] {
        let mut moderator = Moderator::new(Coalescing::policy(policy));
        // 1,000 IOPS with 64 commands in flight.
        let skipped = (0..2000)
            .filter(|&n| {
                let now = Time(n * MS);
                let _ = moderator.completed(64, now);
                !moderator.end_batch(now)
            })
            .count();
        assert_eq!(skipped > 0, coalesced, "{policy:?}");
    }
}

#[test]
fn a_batch_signals_once_and_off_signals_each() {
    let mut batch = Moderator::new(Coalescing::policy(Policy::Batch));
    assert!(!batch.completed(9, Time(0)) && !batch.completed(8, Time(0)));
    assert!(batch.end_batch(Time(0)));
    assert!(!batch.end_batch(Time(0)));
    let mut off = Moderator::new(Coalescing::policy(Policy::Off));
    assert!(off.completed(9, Time(0)) && off.completed(8, Time(0)));
    assert!(!off.end_batch(Time(0)));
}

#[test]
fn what_is_held_back_has_a_deadline() {
    let (mut moderator, now) = settled(Policy::OioIops, 64);
    assert_eq!(moderator.deadline(), None);
    assert_eq!(sequence(&mut moderator, now, 64, 1), "s");
    let deadline = now.after(Duration::from_millis(1));
    assert_eq!(moderator.deadline(), Some(deadline));
    assert!(!moderator.end_batch(Time(deadline.0 - 1)));
    assert!(moderator.end_batch(deadline));
    assert_eq!(moderator.deadline(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// At a constant rate and depth, the number of signals in whole periods is that of the table, plus or minus one.
    #[test]
    fn steady_ratio(cif in 4u32..300, completions in 1000usize..3000) {
        let (mut moderator, now) = settled(Policy::OioIops, cif);
        let delivered = sequence(&mut moderator, now, cif, completions).matches('D').count() as f64;
        let ratio = match cif {
            4..=7 => 0.8,
            8..=11 => 0.75,
            12..=15 => 2.0 / 3.0,
            _ => 1.0 / f64::from(cif / 8),
        };
        prop_assert!((delivered - ratio * completions as f64).abs() <= 1.0);
    }
}
