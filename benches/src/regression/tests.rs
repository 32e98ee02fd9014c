//! Documents that differ in known ways.

use facts::host::CyclesSource;
use fastrand::Rng;
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

use super::*;
use crate::result::tests::sample;
use crate::table::render_regression;

/// Rows of one adapter at depths that are powers of two, each of 5 runs with a spread of 1%.
fn document(seed: u64, rows: u32) -> Document {
    let mut rng = Rng::with_seed(seed);
    let mut document = sample();
    let row = document.results.remove(1);
    document.ratios.clear();
    document.results = (0..rows)
        .map(|index| {
            let mut row = RunResult { queue_depth: 1 << index, ..row.clone() };
            let mut about = |value: f64| (0..5).map(|_| value * (0.995 + 0.01 * rng.f64())).collect();
            row.values = RunValues {
                iops: about(250_000.0 * f64::from(index + 1)),
                cycles_per_io: about(9000.0 / f64::from(index + 1)),
                latency_p99_us: about(150.0),
            };
            row
        })
        .collect();
    document
}

fn scale(values: &mut [f64], factor: f64) {
    values.iter_mut().for_each(|value| *value *= factor);
}

fn named<'a>(name: &'a str, document: &'a Document) -> Named<'a> {
    Named { name, document }
}

fn between<'a>(baseline: &'a Document, candidate: &'a Document) -> Regression<'a> {
    compare(named("a.json", baseline), named("b.json", candidate), Margins::default()).unwrap()
}

fn text(baseline: &Document, candidate: &Document) -> String {
    render_regression(&between(baseline, candidate), named("a.json", baseline), named("b.json", candidate))
}

/// Row, metric and verdict of the comparisons that are not equal.
fn changes(regression: &Regression<'_>) -> Vec<(String, &'static str, Verdict)> {
    let all = regression
        .comparisons
        .iter()
        .map(|each| (each.row.clone(), each.metric, each.confidence.unwrap().verdict));
    all.filter(|(_, _, verdict)| *verdict != Verdict::Equal).collect()
}

#[test]
fn two_measurements_of_the_same_are_equal() {
    let (one, other) = (document(1, 4), document(2, 4));
    let regression = between(&one, &other);
    assert_eq!(regression.comparisons.len(), 4 * METRICS.len());
    assert_eq!(changes(&regression), []);
    assert!(regression.notes.is_empty() && regression.only_in_baseline.is_empty(), "{regression:?}");
    let text = text(&one, &other);
    assert!(text.contains("equal: within 5%, p99 within 10%; "), "{text}");
    assert!(text.ends_with("\n12 comparisons: 12 equal, 0 faster, 0 slower, 0 not decided\n"), "{text}");
}

#[test]
fn what_got_slower_is_named_with_its_metric() {
    let (one, mut other) = (document(1, 3), document(2, 3));
    scale(&mut other.results[1].values.iops, 0.8);
    scale(&mut other.results[2].values.cycles_per_io, 0.8);
    scale(&mut other.results[0].values.latency_p99_us, 1.3);
    // Inside the margin.
    scale(&mut other.results[0].values.iops, 0.98);
    let regression = between(&one, &other);
    let [first, second, third] = [0, 1, 2].map(|row: usize| other.results[row].label());
    assert_eq!(
        changes(&regression),
        [
            (first.clone(), "latency_us.p99", Verdict::Slower),
            (second.clone(), "iops", Verdict::Slower),
            (third, "cycles_per_io.total", Verdict::Faster),
        ]
    );
    let text = text(&one, &other);
    assert!(text.contains(&format!("\nSLOWER: {second}: iops 0.")), "{text}");
    assert!(text.contains(&format!("\nSLOWER: {first}: latency_us.p99 1.")), "{text}");
    assert!(text.contains("9 comparisons: 6 equal, 1 faster, 2 slower, 0 not decided"), "{text}");
    let line = text.lines().find(|line| line.starts_with("pvscsi") && line.ends_with("faster")).unwrap();
    assert!(line.contains("cycles per I/O"), "{line}");
}

#[test]
fn noise_is_not_called_slower() {
    let (one, mut other) = (document(1, 1), document(2, 1));
    other.results[0].values.iops = vec![180_000.0, 260_000.0, 230_000.0, 255_000.0, 200_000.0];
    let regression = between(&one, &other);
    let [(_, "iops", Verdict::NotDecided)] = changes(&regression)[..] else { panic!("{regression:?}") };
    let [note] = &regression.notes[..] else { panic!("{:?}", regression.notes) };
    assert!(
        note.starts_with("not decided at 95%: 1 of 3 ratios, because the machine is too noisy; about "),
        "{note}"
    );
}

#[test]
fn rows_of_one_document_are_named() {
    let (one, other) = (document(1, 3), document(2, 4));
    let regression = between(&one, &other);
    assert_eq!(regression.only_in_candidate, [other.results[3].label()]);
    assert_eq!(between(&other, &one).only_in_baseline, [other.results[3].label()]);
    assert!(text(&one, &other).contains(&format!("\nonly in B: {}\n", other.results[3].label())));
    let empty = Document { results: vec![], ..one.clone() };
    let refused = compare(named("a", &one), named("b", &empty), Margins::default());
    assert_eq!(refused.unwrap_err().to_string(), "a and b have no row in common");
}

#[test]
fn temporary_disks_match_without_their_paths() {
    let (mut one, mut other) = (document(1, 2), document(2, 2));
    let set = |document: &mut Document, path: &str| {
        document.results.iter_mut().for_each(|row| row.disk.path = Some(path.to_owned()));
    };
    set(&mut one, "/tmp/.tmpAAA/fixed.vhd");
    set(&mut other, "/tmp/.tmpBBB/fixed.vhd");
    let regression = between(&one, &other);
    assert_eq!((regression.comparisons.len(), changes(&regression).len()), (6, 0));
    assert_eq!(regression.notes, ["2 rows were matched although the paths of their disks differ"]);
    // Rows with equal paths match first; the others are ambiguous.
    let mut both = other.clone();
    both.results.extend(one.results.clone());
    let regression = between(&one, &both);
    assert_eq!((regression.comparisons.len(), regression.only_in_candidate.len()), (6, 2));
    let mut ambiguous = other.clone();
    set(&mut ambiguous, "/tmp/.tmpCCC/fixed.vhd");
    ambiguous.results.extend(other.results.clone());
    let refused = compare(named("a", &one), named("b", &ambiguous), Margins::default()).unwrap_err();
    assert!(matches!(refused, Refusal::NothingInCommon { .. }), "{refused:?}");
}

#[test]
fn a_row_that_was_measured_twice_has_the_runs_of_both() {
    let (one, mut other) = (document(1, 1), document(2, 1));
    let mut again = other.results[0].clone();
    scale(&mut again.values.iops, 0.5);
    other.results.push(again);
    let regression = between(&one, &other);
    assert_eq!(regression.comparisons.len(), 3);
    let iops = &regression.comparisons[1];
    assert!(iops.confidence.unwrap().low < 0.6 && iops.confidence.unwrap().high > 0.9, "{iops:?}");
    let values = &mut other.results[0].values.iops;
    values.resize(MOST_VALUES, 1.0);
    let refused = compare(named("a", &one), named("b", &other), Margins::default()).unwrap_err().to_string();
    assert!(refused.starts_with("b: 2005 runs in this row, expected at most 2000: kvm/pvscsi/"), "{refused}");
}

#[test]
fn what_cannot_be_judged_is_said() {
    let (mut one, other) = (document(1, 3), document(2, 3));
    one.results[0].values = RunValues::default();
    one.results[1].errors = 3;
    one.results[2].values.iops = vec![0.0; 5];
    let regression = between(&one, &other);
    assert_eq!(regression.failed, [one.results[1].label()]);
    assert_eq!(regression.comparisons.len(), 6);
    // Without runs, the row's own figures make the ratio.
    let first = &regression.comparisons[1];
    assert_eq!((first.baseline, first.ratio.is_some(), first.confidence), (250_000.0, true, None));
    let zero = &regression.comparisons[4];
    assert_eq!((zero.baseline, zero.ratio, zero.confidence), (0.0, None, None));
    assert!(regression.notes[0].starts_with("no verdict: 4 of 6 comparisons"), "{:?}", regression.notes);
    assert!(!regression.is_blind());
    one.results.iter_mut().for_each(|row| row.values = RunValues::default());
    assert!(between(&one, &other).is_blind());
    assert!(
        text(&one, &other).contains("FAILED accesses, not compared: kvm/pvscsi"),
        "{}",
        text(&one, &other)
    );
}

#[test]
fn machines_that_differ_are_said_and_instructions_are_not_cycles() {
    let (one, mut other) = (document(1, 1), document(1, 1));
    other.host.kernel = "7.0".into();
    other.host.cycles_source = CyclesSource::Instructions;
    let regression = between(&one, &other);
    let metrics: Vec<_> = regression.comparisons.iter().map(|each| each.metric).collect();
    assert_eq!(metrics, ["iops", "latency_us.p99"]);
    assert_eq!(regression.notes[0], "the machines differ, kernel: 6.18; 7.0");
    assert!(regression.notes[1].contains("cycles") && regression.notes[1].contains("instructions"));
}

#[test]
fn the_json_document_has_these_fields() {
    let (one, other) = (document(1, 1), document(2, 1));
    let value = serde_json::to_value(between(&one, &other)).unwrap();
    let keys = |value: &serde_json::Value| {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(
        keys(&value),
        [
            "baseline",
            "candidate",
            "comparisons",
            "failed",
            "notes",
            "only_in_baseline",
            "only_in_candidate",
            "schema"
        ]
    );
    let first = &value["comparisons"][0];
    assert_eq!(keys(first), ["baseline", "candidate", "confidence", "metric", "ratio", "row"]);
    assert_eq!(first["confidence"]["verdict"], "equal");
    assert_eq!(first["confidence"]["margin"], 0.05);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_order_of_rows_does_not_matter(seed in any::<u64>(), slower in 0..4_usize) {
        let (one, mut other) = (document(1, 4), document(2, 4));
        scale(&mut other.results[slower].values.cycles_per_io, 1.5);
        let (mut shuffled_one, mut shuffled_other) = (one.clone(), other.clone());
        let mut rng = Rng::with_seed(seed);
        for document in [&mut shuffled_one, &mut shuffled_other] {
            rng.shuffle(&mut document.results);
            document.results.iter_mut().for_each(|row| rng.shuffle(&mut row.values.iops));
        }
        let sorted = |mut regression: Regression<'_>| {
            regression.comparisons.sort_by(|a, b| (&a.row, a.metric).cmp(&(&b.row, b.metric)));
            serde_json::to_value(regression).unwrap()
        };
        prop_assert_eq!(changes(&between(&one, &other)), [(other.results[slower].label(), "cycles_per_io.total", Verdict::Slower)]);
        prop_assert_eq!(sorted(between(&one, &other)), sorted(between(&shuffled_one, &shuffled_other)));
    }

    #[test]
    fn a_document_is_equal_to_itself(seed in any::<u64>(), rows in 1..5_u32, noise in 0.1..10.0_f64) {
        let mut document = document(seed, rows);
        let mut rng = Rng::with_seed(seed);
        for row in &mut document.results {
            row.values.iops.iter_mut().for_each(|value| *value *= 1.0 + noise * rng.f64());
        }
        let regression = between(&document, &document);
        prop_assert_eq!(regression.count(Verdict::Equal), regression.comparisons.len());
    }
}
