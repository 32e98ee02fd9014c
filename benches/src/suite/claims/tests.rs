//! Claims on documents with chosen figures.

use facts::host::CyclesSource;

use super::super::vhd_workloads::conclude;
use super::super::vhd_workloads::study::groups;
use super::*;
use crate::result::tests::sample;
use crate::result::{Document, Ratio, RunResult, Timing};
use crate::stat::Stat;
use crate::suite::{Claim, Standing};

const HOLDS: Standing = Standing::Holds;
const FAILS: Standing = Standing::DoesNotHold;
const OPEN: Standing = Standing::NotDecided;

fn standings(claims: &[Claim]) -> Vec<Standing> {
    claims.iter().map(|claim| claim.standing).collect()
}

/// Every load on the raw file and the VHDs at two depths. `speed`: IOPS of a disk in a round.
fn study(speed: fn(&str, usize) -> f64) -> Document {
    let mut document = sample();
    let plain = document.results.remove(0);
    (document.results, document.ratios) = (Vec::new(), Vec::new());
    for mix in groups().iter().flat_map(|group| &group.mixes) {
        for disk in ["file", "fixed", "dynamic", "differencing"] {
            for (depth, part) in [(1, 0.5), (8, 1.0)] {
                let mut row = plain.clone();
                row.disk.format = if disk == "file" { "raw" } else { "vhd" }.to_owned();
                row.disk.subformat = (disk != "file").then(|| disk.to_owned());
                (row.workload, row.queue_depth) = (Some(mix.name.clone()), depth);
                row.values.iops = (0..3).map(|round| part * speed(disk, round)).collect();
                row.iops = Stat::of(row.values.iops.iter().copied()).unwrap();
                document.results.push(row);
            }
        }
    }
    conclude(&mut document);
    document
}

#[test]
fn the_order_of_vhds_follows_their_peaks() {
    // Rounds differ more than disks, so only pairs show the difference.
    let published = study(|disk, round| {
        let part = match disk {
            "file" => 1.0,
            "fixed" => 0.99,
            "dynamic" => 0.95,
            _ => 0.9,
        };
        part * (round + 1) as f64 * 1e5
    });
    let claims = vhd_workloads(&published);
    assert_eq!(standings(&claims), [HOLDS; 3]);
    assert!(claims[0].measured.contains("a raw file has 1.01 to 1.01 [1.01-1.01]"), "{}", claims[0].measured);
    assert!(claims[1].measured.contains("0.91 to 0.96"), "{}", claims[1].measured);
    assert!(claims.iter().all(|claim| claim.source.is_some()));
    let reversed = study(|disk, _| if disk == "fixed" { 2e5 } else { 1e5 });
    assert_eq!(standings(&vhd_workloads(&reversed)), [FAILS, HOLDS, FAILS]);
    let faster = study(|disk, _| if disk == "dynamic" { 2e5 } else { 1e5 });
    assert_eq!(standings(&vhd_workloads(&faster)), [HOLDS, FAILS, HOLDS]);
    let noisy = study(|disk, round| if disk == "fixed" { 1e5 } else { 1e5 * [0.6, 1.0, 1.6][round] });
    assert_eq!(standings(&vhd_workloads(&noisy)), [OPEN; 3]);
    assert!(vhd_workloads(&sample()).is_empty());
}

/// Creation of fixed VHDX files: size, file system, seconds of each run.
fn created(timings: &[(&str, u64, &str, [f64; 3])]) -> Document {
    let timing = |&(operation, size, place, values): &(&str, u64, &str, [f64; 3])| Timing {
        operation: operation.to_owned(),
        format: if operation == "create" { "vhdx" } else { "raw" }.to_owned(),
        subformat: (operation == "create").then(|| "fixed".to_owned()),
        size,
        data: 0,
        file_system: place.to_owned(),
        seconds: Stat::of(values),
        values: values.into(),
        skipped: None,
        failed: None,
    };
    let timings = timings.iter().map(timing).collect();
    Document { timings, results: Vec::new(), ratios: Vec::new(), ..sample() }
}

#[test]
fn creation_is_compared_with_the_published_second() {
    let (small, large, huge) = (1 << 30, 1 << 40, 16 << 40);
    let fast = created(&[
        ("create", small, "ext4", [0.01, 0.01, 0.01]),
        ("create", large, "ext4", [0.25, 0.26, 0.25]),
        // There is no published figure for this size.
        ("create", huge, "xfs", [5.0, 5.0, 5.0]),
        ("zero-fill", small, "ext4", [2.0, 2.1, 2.2]),
    ]);
    let claims = creation(&fast);
    assert_eq!(standings(&claims), [HOLDS]);
    assert!(claims[0].statement.ends_with("on ext4."));
    assert_eq!(
        claims[0].measured,
        "Published of ReFS. Here 10.0 ms for 1G, 250.0 ms for 1T. Writing 1G of zeros takes 2.10 s."
    );
    let published = created(&[("create", large, "ext4", [1.05, 1.06, 1.05])]);
    assert_eq!(standings(&creation(&published)), [HOLDS], "just over 1 s is what was published");
    let slow = created(&[("create", small, "ext4", [0.01; 3]), ("create", large, "ext4", [2.0, 2.1, 2.2])]);
    assert_eq!(standings(&creation(&slow)), [FAILS]);
    let two = created(&[("create", large, "ext4", [3.0, 3.1, 3.2]), ("create", large, "xfs", [0.03; 3])]);
    assert_eq!(standings(&creation(&two)), [FAILS, HOLDS], "each file system by itself");
    let noisy = created(&[("create", large, "ext4", [0.5, 1.0, 2.0])]);
    assert_eq!(standings(&creation(&noisy)), [OPEN]);
    assert!(creation(&created(&[("create", huge, "xfs", [5.0; 3])])).is_empty());
}

/// Chains of both formats: all but the single image take `cost` times its cycles.
fn chains(cost: f64) -> Document {
    let mut document = sample();
    let plain = document.results.remove(0);
    (document.results, document.ratios) = (Vec::new(), Vec::new());
    for format in ["vhd", "vhdx"] {
        let mut single: Option<RunResult> = None;
        for number in 0..6 {
            let mut row = plain.clone();
            row.disk.format = format.to_owned();
            row.disk.path = Some(format!("/chain-{number}"));
            let single = single.get_or_insert_with(|| row.clone());
            let confidence = sample().ratios[0].confidence.map(|each| crate::confidence::Confidence {
                low: cost - 0.01,
                high: cost + 0.01,
                ..each
            });
            // The last chain has its data spread, and does not count.
            let median = if number == 5 { 2.0 } else { cost };
            for metric in ["cycles_per_io.total", "iops"] {
                document.ratios.push(Ratio {
                    baseline: single.label(),
                    candidate: row.label(),
                    metric: metric.to_owned(),
                    confidence,
                    median,
                    min: median,
                    max: median,
                    ..sample().ratios[0].clone()
                });
            }
            document.results.push(row);
        }
    }
    document
}

#[test]
fn a_long_chain_is_compared_with_a_single_image() {
    for (cost, standing) in [(1.0, HOLDS), (1.05, OPEN), (1.2, FAILS)] {
        let claims = chain(&chains(cost));
        assert_eq!(standings(&claims), [standing], "{cost}");
        assert!(
            claims[0].measured.contains(&format!("take {cost:.2} to {cost:.2}")),
            "{}",
            claims[0].measured
        );
        assert_eq!(claims[0].source, None, "nothing was published of it");
    }
}

#[test]
fn the_cost_of_adapters_is_shown_without_a_verdict() {
    let mut document = sample();
    document.results.remove(0);
    let row = &mut document.results[0];
    (row.disk.format, row.queue_depth) = ("null".to_owned(), 32);
    let mut expensive = row.clone();
    expensive.adapter = "ide".to_owned();
    expensive.cycles_per_io.total = Stat::at(90_000.0);
    document.results.push(expensive);
    document.host.cycles_source = CyclesSource::Instructions;
    let [shown] = &adapters(&document)[..] else { panic!() };
    assert_eq!(shown.title, "CPU instructions per I/O by adapter, with 32 in flight");
    assert_eq!(shown.measured, "From 9,000 (pvscsi) to 90,000 (ide).");
    assert_eq!((shown.chart.panels.len(), shown.chart.keys.len()), (1, 1), "the split is not exact");
    assert!(shown.limit.is_some_and(|limit| limit.contains("Instructions")));
}
