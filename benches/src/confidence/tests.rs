//! Intervals and verdicts on runs whose true ratio is known.

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

use super::*;

const COST: Criterion = Criterion { margin: 0.02, better: Better::Lower };
const RATE: Criterion = Criterion { margin: 0.02, better: Better::Higher };

/// Runs around `centre`, as the sum of twelve uniform numbers is nearly normal: `spread` is the standard deviation of the logarithm.
fn runs(rng: &mut Rng, count: usize, centre: f64, spread: f64) -> Vec<f64> {
    let normal = |rng: &mut Rng| (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
    (0..count).map(|_| centre * (spread * normal(rng)).exp()).collect()
}

fn divided(baseline: &[f64], candidate: &[f64]) -> Vec<f64> {
    baseline.iter().zip(candidate).map(|(base, value)| value / base).collect()
}

fn verdict_of(low: f64, ratio: f64, high: f64, criterion: Criterion) -> Verdict {
    Interval { low, high, error: 0.1 }.confidence(ratio, 5, criterion).unwrap().verdict
}

#[test]
fn a_verdict_follows_from_interval_ratio_and_margin() {
    for (low, ratio, high, expected) in [
        (0.99, 1.0, 1.01, Verdict::Equal),
        // Not 1, but inside the margin.
        (1.005, 1.01, 1.015, Verdict::Equal),
        (1.01, 1.05, 1.2, Verdict::Slower),
        (0.8, 0.9, 0.99, Verdict::Faster),
        // Neither equal nor outside the margin.
        (1.005, 1.015, 1.03, Verdict::NotDecided),
        (0.97, 1.05, 1.2, Verdict::NotDecided),
        (0.9, 1.0, 1.1, Verdict::NotDecided),
    ] {
        assert_eq!(verdict_of(low, ratio, high, COST), expected, "{low} {ratio} {high}");
        let of_a_rate = match expected {
            Verdict::Slower => Verdict::Faster,
            Verdict::Faster => Verdict::Slower,
            other => other,
        };
        assert_eq!(verdict_of(low, ratio, high, RATE), of_a_rate, "{low} {ratio} {high}");
    }
}

#[test]
fn an_interval_covers_the_true_ratio_in_nearly_all_measurements() {
    const MEASUREMENTS: usize = 150;
    const TRUE_RATIO: f64 = 1.1;
    let mut rng = Rng::with_seed(7);
    for count in [2, 3, 5, 12] {
        let mut covered = [0; 2];
        for _ in 0..MEASUREMENTS {
            let baseline = runs(&mut rng, count, 1000.0, 0.1);
            let candidate = runs(&mut rng, count, 1000.0 * TRUE_RATIO, 0.1);
            let all = [
                paired(&divided(&baseline, &candidate), COST).unwrap(),
                unpaired(&baseline, &candidate, COST).unwrap(),
            ];
            for (covered, each) in covered.iter_mut().zip(all) {
                *covered += usize::from((each.low..=each.high).contains(&TRUE_RATIO));
            }
        }
        for covered in covered {
            let percent = covered * 100 / MEASUREMENTS;
            // The standard error of this many measurements is 2%.
            assert!(percent >= 88, "{count} runs: {percent}%");
        }
    }
}

#[test]
fn rounds_stay_paired() {
    // The machine slows down threefold in some rounds. The ratio of each pair is still 1.25; unpaired runs do not show that.
    let baseline = [100.0, 300.0, 101.0, 100.0, 310.0, 99.0, 305.0];
    let candidate = baseline.map(|value| value * 1.25);
    let ratio = paired(&divided(&baseline, &candidate), COST).unwrap();
    assert_eq!((ratio.low, ratio.high, ratio.verdict), (1.25, 1.25, Verdict::Slower));
    assert_eq!(unpaired(&baseline, &candidate, COST).unwrap().verdict, Verdict::NotDecided);
}

#[test]
fn a_few_runs_are_judged_by_student() {
    // Two runs of 1% spread distinguish 1.5 from 1, but not 1.05.
    assert_eq!(paired(&[1.49, 1.51], COST).unwrap().verdict, Verdict::Slower);
    let close = paired(&[1.045, 1.055], COST).unwrap();
    assert_eq!(close.verdict, Verdict::NotDecided);
    assert!(close.low < 1.0 && close.high > 1.1, "{close:?}");
    // One run has no interval, nor has a ratio of zero.
    for none in [&[][..], &[1.5], &[0.0, 1.0], &[1.0, f64::INFINITY], &[1e-300, 1e300]] {
        assert_eq!(paired(none, COST), None, "{none:?}");
        assert_eq!(unpaired(&[1.0, 1.1], none, COST), None, "{none:?}");
    }
}

#[test]
fn as_many_runs_as_are_said_decide() {
    let mut rng = Rng::with_seed(3);
    let (mut open, mut decided) = (0, 0);
    for _ in 0..40 {
        let measured = paired(&runs(&mut rng, 5, 1.08, 0.1), COST).unwrap();
        let Some(needed) = measured.runs_to_decide else { continue };
        assert!(measured.verdict == Verdict::NotDecided && (6..=MOST_RUNS).contains(&needed));
        open += 1;
        let again = paired(&runs(&mut rng, needed as usize, 1.08, 0.1), COST).unwrap();
        decided += usize::from(again.verdict != Verdict::NotDecided);
    }
    // An estimate from five runs: the ratio that it assumes is itself measured.
    assert!(open >= 15 && decided * 3 >= open * 2, "{decided} of {open}");
}

#[test]
fn a_note_says_how_many_runs_would_decide() {
    let confidence =
        |verdict, runs_to_decide| Confidence { low: 0.9, high: 1.2, margin: 0.02, verdict, runs_to_decide };
    let equal = confidence(Verdict::Equal, None);
    let open = |runs| confidence(Verdict::NotDecided, runs);
    assert_eq!(note([]), None);
    assert_eq!(note([&equal]), None);
    let said = |all: &[Confidence]| note(all).unwrap();
    assert_eq!(
        said(&[equal, open(Some(17))]),
        "not decided at 95%: 1 of 2 ratios, because the machine is too noisy; about 17 runs would decide (--runs)"
    );
    let many = said(&[open(Some(9)), open(Some(40)), open(Some(8))]);
    assert!(
        many.contains("3 of 3 ratios") && many.contains("about 9 runs would decide half of them, 40 all"),
        "{many}"
    );
    let some = said(&[open(None), open(Some(12))]);
    assert!(some.contains("about 12 runs would decide 1, the others need more than 1000"), "{some}");
    assert!(said(&[open(None)]).contains("more than 1000 runs would be needed"));
    assert_eq!(open(Some(8)).words(), "not decided (equal: within 2%; about 8 runs would decide)");
    assert_eq!(open(None).words(), "not decided (equal: within 2%; more than 1000 runs would be needed)");
}

#[test]
fn a_legend_names_the_margins() {
    let confidence =
        |margin| Confidence { low: 1.0, high: 1.0, margin, verdict: Verdict::Equal, runs_to_decide: None };
    assert_eq!(legend([]), None);
    let one = legend(&[confidence(0.02)]).unwrap();
    assert!(one.ends_with("equal: within 2%."), "{one}");
    let two = legend(&[confidence(0.1), confidence(0.02)]).unwrap();
    assert!(two.ends_with("equal: within 2%, percentiles within 10%."), "{two}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_interval_contains_the_median_ratio(
        baseline in vec(1.0..1e6_f64, 2..20),
        candidate in vec(1.0..1e6_f64, 2..20),
    ) {
        let ratios = divided(&baseline, &candidate);
        let median = |values: &[f64]| Stat::of(values.iter().copied()).unwrap();
        let one = paired(&ratios, COST).unwrap();
        let Stat { median: middle, min, max } = median(&ratios);
        prop_assert!(one.low <= middle && middle <= one.high);
        if ratios.len() >= FEWEST_RESAMPLED {
            prop_assert!(min <= one.low && one.high <= max, "resampled medians are inside the range");
        }
        let both = unpaired(&baseline, &candidate, COST).unwrap();
        let ratio = median(&candidate).median / median(&baseline).median;
        prop_assert!(both.low <= ratio && ratio <= both.high);
    }

    #[test]
    fn identical_runs_are_equal(values in vec(1e-3..1e9_f64, 2..20)) {
        prop_assert_eq!(unpaired(&values, &values, COST).unwrap().verdict, Verdict::Equal);
        prop_assert_eq!(paired(&divided(&values, &values), RATE).unwrap().verdict, Verdict::Equal);
    }

    #[test]
    fn a_clear_shift_is_found(
        seed in any::<u64>(), count in 3..12_usize, factor in 1.5..20.0_f64, spread in 0.0..0.02_f64,
    ) {
        let mut rng = Rng::with_seed(seed);
        let low = runs(&mut rng, count, 5000.0, spread);
        let high = runs(&mut rng, count, 5000.0 * factor, spread);
        prop_assert_eq!(unpaired(&low, &high, COST).unwrap().verdict, Verdict::Slower);
        prop_assert_eq!(unpaired(&high, &low, COST).unwrap().verdict, Verdict::Faster);
        prop_assert_eq!(unpaired(&low, &high, RATE).unwrap().verdict, Verdict::Faster);
        prop_assert_eq!(paired(&divided(&low, &high), COST).unwrap().verdict, Verdict::Slower);
        prop_assert_eq!(paired(&divided(&low, &high), RATE).unwrap().verdict, Verdict::Faster);
    }

    #[test]
    fn the_order_of_runs_does_not_matter(
        baseline in vec(1.0..1e6_f64, 2..12), candidate in vec(1.0..1e6_f64, 2..12), seed in any::<u64>(),
    ) {
        let mut rng = Rng::with_seed(seed);
        let (mut base, mut other) = (baseline.clone(), candidate.clone());
        rng.shuffle(&mut base);
        rng.shuffle(&mut other);
        let one = unpaired(&baseline, &candidate, COST).unwrap();
        let shuffled = unpaired(&base, &other, COST).unwrap();
        // Sums of a few logarithms may be rounded in another order; resampled runs are the same to the last bit.
        prop_assert_eq!(one.verdict, shuffled.verdict);
        prop_assert!((one.low / shuffled.low - 1.0).abs() < 1e-9 && (one.high / shuffled.high - 1.0).abs() < 1e-9);
    }
}
