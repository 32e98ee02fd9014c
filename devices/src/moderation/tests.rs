//! The table of ratios, and the invariants of moderation over random schedules.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

/// A moderator whose ratio is that of `cif` at a high rate, at the start of a period.
fn settled(policy: Policy, cif: u32) -> (Moderator, Time) {
    let mut moderator = Moderator::new(Coalescing::policy(policy));
    let mut now = Time(0);
    for _ in 0..30_000 {
        now.0 += MS / 100;
        let _ = moderator.completed(cif, now);
        let _ = moderator.end_batch(now);
    }
    // Few commands in flight: delivered, and the period starts anew. The ratio stays until the epoch is over.
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
fn the_threshold_is_compared_after_the_completion() {
    // A guest that keeps exactly four commands out leaves three behind each completion.
    let (mut moderator, now) = settled(Policy::OioIops, 3);
    assert!(!sequence(&mut moderator, now, 3, 100).contains('s'));
    let (mut moderator, now) = settled(Policy::OioIops, 4);
    assert!(sequence(&mut moderator, now, 4, 100).contains('s'));
}

#[test]
fn a_low_rate_is_never_coalesced_but_by_oio() {
    for (policy, coalesced) in [(Policy::OioIops, false), (Policy::Oio, true)] {
        let mut moderator = Moderator::new(Coalescing::policy(policy));
        // 1,000 IOPS with 64 commands out.
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

/// A step of a schedule.
#[derive(Clone, Copy, Debug)]
enum Step {
    Submit(u8),
    Complete(u8),
    Sleep(u32),
    Change(Policy),
}

fn step() -> impl Strategy<Value = Step> {
    let policy = prop::sample::select(vec![Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops]);
    prop_oneof![
        8 => (1u8..=40).prop_map(Step::Submit),
        16 => (1u8..=8).prop_map(Step::Complete),
        8 => (0u32..3_000_000).prop_map(Step::Sleep),
        1 => policy.prop_map(Step::Change),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// I1 nothing is held back with nothing in flight; I2 and I5 below the threshold every batch signals; I6 and I7
    /// nothing waits longer than the backstop or more than a period; I8 every completion is covered by a signal, whatever
    /// the policy changes to; I9 no more signals than completions.
    #[test]
    fn invariants_hold(steps in prop::collection::vec(step(), 1..400)) {
        let mut moderator = Moderator::new(Coalescing::default());
        let (mut now, mut cif, mut largest_cif) = (Time(0), 0u32, 0u32);
        // Completions, signals, and completions since the last signal, that is, not yet seen by the guest.
        let (mut completions, mut signals, mut unseen) = (0u64, 0u64, 0u64);
        let mut unseen_since = now;
        for step in steps {
            match step {
                Step::Submit(n) => cif += u32::from(n),
                Step::Sleep(nanoseconds) => {
                    // The thread wakes for the deadline, as `before_sleep` asks it to.
                    let end = Time(now.0 + u64::from(nanoseconds));
                    if let Some(deadline) = moderator.deadline().filter(|&deadline| deadline <= end) {
                        prop_assert!(moderator.end_batch(deadline));
                        signals += 1;
                        unseen = 0;
                    }
                    now = end;
                }
                Step::Change(policy) => {
                    if moderator.set_options(Coalescing::policy(policy)) {
                        signals += 1;
                        unseen = 0;
                    }
                    prop_assert_eq!(unseen, 0);
                }
                Step::Complete(n) => {
                    largest_cif = largest_cif.max(cif);
                    let n = u32::from(n).min(cif);
                    for _ in 0..n {
                        cif -= 1;
                        completions += 1;
                        if unseen == 0 {
                            unseen_since = now;
                        }
                        unseen += 1;
                        if moderator.completed(cif, now) {
                            signals += 1;
                            unseen = 0;
                        }
                    }
                    if moderator.end_batch(now) {
                        signals += 1;
                        unseen = 0;
                    }
                    if n > 0 && cif < 4 {
                        prop_assert_eq!(unseen, 0);
                    }
                }
            }
            if cif == 0 {
                prop_assert_eq!(unseen, 0);
                prop_assert_eq!(moderator.deadline(), None);
            }
            prop_assert_eq!(unseen > 0, moderator.deadline().is_some());
            if unseen > 0 {
                prop_assert!(now.since(unseen_since) <= moderator.options().backstop);
                prop_assert!(unseen < u64::from((largest_cif / 8).max(2)));
            }
            prop_assert!(signals <= completions);
        }
    }

    /// I3: at a steady rate and depth, the signals of whole periods are those of the table, give or take one.
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
