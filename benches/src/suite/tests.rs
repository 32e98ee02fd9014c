//! Suites on model guests with chosen costs, so that the right report is known.

use std::collections::HashSet;

use facts::host::{CyclesSource, Kvm};
use facts::names::{Adapter, Coalescing};
use facts::tsc::to_ticks;
use guest_driver::{Report as Ran, Workload};
use guest_tests::rig::{CpuSplit, Measurement, Rig, RigError};

use super::*;
use crate::axes::Engine;
use crate::compare::Comparison;
use crate::html;
use crate::matrix::Candidate;
use crate::meter::tests::{host, round, subject};
use crate::progress::Silent;
use crate::svg::tests::well_formed;

/// The cost of an access.
struct Cost {
    latency: Duration,
    cycles: u64,
    /// Interrupts for 1000 accesses.
    interrupts: u64,
}

/// Cost by adapter, policy, disk and job; `None`: the guest does not start.
type Model = fn(Adapter, Coalescing, &str, &Workload) -> Option<Cost>;

struct Models {
    engine: Engine,
    model: Model,
}

struct Guest {
    adapter: Adapter,
    coalescing: Coalescing,
    disk: String,
    model: Model,
}

impl Rigs for Models {
    fn engine(&self) -> Engine {
        self.engine
    }

    fn rig(
        &mut self,
        adapter: Adapter,
        coalescing: Coalescing,
        subject: &OpenDisk,
    ) -> Result<Box<dyn Rig>, RigError> {
        Ok(Box::new(Guest { adapter, coalescing, disk: subject.facts().name(), model: self.model }))
    }
}

impl Rig for Guest {
    fn run(&mut self, workload: &Workload) -> Result<Measurement, RigError> {
        let cost = (self.model)(self.adapter, self.coalescing, &self.disk, workload)
            .ok_or_else(|| RigError::Guest("no driver".into()))?;
        // The machine is slower in each round, so only pairs can be compared.
        let slowness = round(workload) + 1;
        let (latency, cycles) = (cost.latency * slowness, cost.cycles * u64::from(slowness));
        let ios = 1000;
        let wall = latency * ios / (workload.queue_depth * workload.workers);
        let ios = u64::from(ios);
        let mut report =
            Ran { ios, bytes: ios * u64::from(workload.block_size), ticks: to_ticks(wall), ..Ran::EMPTY };
        (0..ios).for_each(|_| report.latency.record(to_ticks(latency)));
        let cpu = CpuSplit { total: cycles * ios, device: cycles * ios, ..CpuSplit::default() };
        Ok(Measurement { report, cpu, exits: 0, interrupts: cost.interrupts, doorbells: 0, wall })
    }
}

fn full() -> Wanted<'static> {
    Wanted { form: Form::Full, adapters: &[Adapter::Pvscsi], duration: None, runs: None }
}

fn run(suite: Suite, subjects: &[OpenDisk], model: Model) -> Outcome {
    let plan = suite.plan(subjects.len(), &Wanted { runs: Some(3), ..full() });
    let engine = |engine| -> Box<dyn Rigs> { Box::new(Models { engine, model }) };
    let engines = &mut [engine(Engine::Kvm), engine(Engine::Harness)];
    suite.run(&plan, subjects, engines, &host(), &mut Silent, &mut Journal::none())
}

fn disk(format: &'static str, option: &str) -> OpenDisk {
    OpenDisk { options: vec![option.to_owned()], ..subject(format, 100 << 20) }
}

/// Lines of a table: after the rule under this heading, up to an empty line.
fn rows<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let lines =
        text.lines().skip_while(|line| !line.contains(heading)).skip_while(|line| !line.starts_with("---"));
    let cells = |line: &'a str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    lines.skip(1).take_while(|line| !line.is_empty()).map(cells).collect()
}

/// PVSCSI has 1.25 of LSI Logic's throughput for 0.8 of its cycles.
fn adapters(adapter: Adapter, _: Coalescing, _: &str, job: &Workload) -> Option<Cost> {
    let kib = u64::from(job.block_size >> 10);
    let (latency, cycles) =
        if adapter == Adapter::Lsi { (500 * kib, 10_000 * kib) } else { (400 * kib, 8000 * kib) };
    Some(Cost { latency: Duration::from_micros(latency), cycles, interrupts: 50 })
}

fn without_lsi(adapter: Adapter, coalescing: Coalescing, disk: &str, job: &Workload) -> Option<Cost> {
    adapters(adapter, coalescing, disk, job).filter(|_| adapter == Adapter::Pvscsi)
}

#[test]
fn both_adapters_stand_beside_the_published_figures_for_every_engine() {
    let suite = Suite::PvscsiVsLsi;
    let outcome = run(suite, &[disk("passthrough", "cached")], adapters);
    assert!(!outcome.failed && outcome.notes.is_empty(), "{:?}", outcome.notes);
    assert_eq!(outcome.document.results.len(), 2 * 10 * 2 * 2);
    let labels: HashSet<String> = outcome.document.results.iter().map(|result| result.label()).collect();
    assert_eq!(labels.len(), outcome.document.results.len());
    let text = suite.text(&outcome.document, &["a note".into()]);
    for engine in ["engine kvm", "engine harness"] {
        let rows = rows(&text, engine);
        assert_eq!(rows.len(), 20);
        // 32 in flight, each taking 400 us, three times that in the middle of the rounds that count (2, 3 and 4).
        assert_eq!(
            rows[0],
            [
                "1K",
                "1",
                "26,667",
                "21,333",
                "27",
                "22",
                "1.25 (1.25-1.25) [1.25-1.25] faster",
                "1.18",
                "24,000",
                "30,000",
                "0.80 (0.80-0.80) [0.80-0.80] faster",
                "0.70-0.90",
                "0.75-0.99"
            ]
        );
        let published: Vec<&str> = rows[..4].iter().map(|row| row[7]).collect();
        assert_eq!(published, ["1.18", "1.13", "1.07", "-"]);
        assert_eq!((rows[9][0], rows[10][0], rows[10][1], rows[19][0]), ("512K", "1K", "2", "512K"));
    }
    assert!(text.contains("Published: VMware") && text.ends_with("\na note\n"), "{text}");
}

#[test]
fn an_adapter_that_does_not_run_leaves_dashes_and_empty_plots() {
    let suite = Suite::PvscsiVsLsi;
    let outcome = run(suite, &[disk("passthrough", "cached")], without_lsi);
    assert!(outcome.failed);
    assert!(outcome.notes.iter().any(|note| note.starts_with("harness: FAILED: lsi")), "{:?}", outcome.notes);
    let row = rows(&suite.text(&outcome.document, &[]), "engine kvm")[0].join("|");
    assert!(row.starts_with("1K|1|26,667|-|27|-|-|1.18|24,000|-|-|"), "{row}");
    let plots = suite.plots(&outcome.document);
    let cpio = &plots.iter().find(|(name, _)| name == "cpio-kvm.svg").unwrap().1;
    assert_eq!(cpio.matches("not measured").count(), 2);
}

#[test]
fn plots_of_both_suites_are_well_formed_and_show_what_was_published() {
    for (suite, expected) in [
        (Suite::PvscsiVsLsi, ["throughput", "throughput-ratio", "cpio"]),
        (Suite::Coalescing, ["cpio", "interrupts", "latency"]),
    ] {
        let outcome = run(suite, &[disk("passthrough", "cached")], adapters);
        let plots = suite.plots(&outcome.document);
        let names: Vec<String> = plots.iter().map(|(name, _)| name.clone()).collect();
        let expected = ["kvm", "harness"].map(|engine| expected.map(|name| format!("{name}-{engine}.svg")));
        assert_eq!(names, expected.concat());
        for (name, svg) in &plots {
            well_formed(svg);
            assert!(svg.contains("class=\"line") && svg.len() < 64 << 10, "{name}: {}", svg.len());
            assert_eq!(
                svg.contains("published"),
                suite == Suite::PvscsiVsLsi
                    && !name.starts_with("throughput-k")
                    && !name.starts_with("throughput-h")
            );
        }
        let page = html::render(&[("a page".into(), outcome.document.clone())]);
        assert_eq!(page.matches("<figure>").count(), 6);
        assert!(!page.contains("http:") && page.contains("<h3>"));
        // Results that are read from a file make the same page.
        let text = serde_json::to_string(&outcome.document).unwrap();
        let read: Document = serde_json::from_str(&text).unwrap();
        assert_eq!(html::render(&[("a page".into(), read)]), page);
    }
}

const STORAGE: [(&str, &str); 2] = [("passthrough", "cached"), ("null", "delay=5ms")];

/// 100 us on fast storage, 5 ms on slow; interrupts and cycles by policy.
fn policies(_: Adapter, coalescing: Coalescing, disk: &str, _: &Workload) -> Option<Cost> {
    let latency = Duration::from_micros(if disk.contains("5ms") { 5000 } else { 100 });
    let (cycles, interrupts) = match coalescing {
        Coalescing::Off => (10_000, 1000),
        Coalescing::Batch => (5000, 500),
        Coalescing::Oio => (4000, 200),
        Coalescing::OioIops => (2000, 100),
    };
    Some(Cost { latency, cycles, interrupts })
}

/// `oio` holds completions back on slow storage from 4 outstanding on.
fn flawed(adapter: Adapter, coalescing: Coalescing, disk: &str, job: &Workload) -> Option<Cost> {
    let mut cost = policies(adapter, coalescing, disk, job)?;
    if disk.contains("5ms") && coalescing == Coalescing::Oio && job.queue_depth >= 4 {
        cost.latency = cost.latency * 105 / 100;
    }
    Some(cost)
}

/// The same on fast storage only, which is not the flaw.
fn slower_where_fast(adapter: Adapter, coalescing: Coalescing, disk: &str, job: &Workload) -> Option<Cost> {
    let mut cost = policies(adapter, coalescing, disk, job)?;
    if !disk.contains("5ms") && coalescing == Coalescing::Oio {
        cost.latency *= 2;
    }
    Some(cost)
}

/// Both policies hold completions back.
fn both_flawed(adapter: Adapter, coalescing: Coalescing, disk: &str, job: &Workload) -> Option<Cost> {
    let policy = if coalescing == Coalescing::OioIops { Coalescing::Oio } else { coalescing };
    flawed(adapter, policy, disk, job)
}

fn storage() -> Vec<OpenDisk> {
    STORAGE.map(|(format, option)| disk(format, option)).into()
}

#[test]
fn policies_stand_beside_off_and_batch_for_every_disk_and_depth() {
    let suite = Suite::Coalescing;
    let outcome = run(suite, &storage(), policies);
    assert!(!outcome.failed && outcome.notes.is_empty(), "{:?}", outcome.notes);
    let text = suite.text(&outcome.document, &[]);
    for heading in
        ["engine kvm, passthrough cached", "engine kvm, null delay=5ms", "engine harness, null delay=5ms"]
    {
        let rows = rows(&text, heading);
        assert_eq!(rows.len(), 9 * 4);
        assert_eq!((rows[0][0], rows[0][1], rows[35][0], rows[35][1]), ("1", "off", "256", "oio-iops"));
        assert_eq!(rows[0][7..], ["-"; 6]);
        let one = "1.00 (1.00-1.00)";
        assert_eq!(rows[1][7..], [one, "0.50 (0.50-0.50)", one, "0.500", "-", "-"]);
        assert_eq!(rows[3][7..], [one, "0.20 (0.20-0.20)", one, "0.100", one, "0.40 (0.40-0.40)"]);
    }
    let ratios = &outcome.document.ratios;
    // 2 engines, 2 disks, 9 depths: 3 policies by 6 values against off, 2 by 4 against batch.
    assert_eq!(ratios.len(), 2 * 2 * 9 * (3 * 6 + 2 * 4));
    assert!(ratios.iter().any(|ratio| ratio.name == "pvscsi: oio-iops against batch, null delay=5ms"));
}

#[test]
fn the_finding_follows_the_numbers() {
    let finding = |model| {
        let outcome = run(Suite::Coalescing, &storage(), model);
        let text = Suite::Coalescing.text(&outcome.document, &[]);
        text.lines().find(|line| line.starts_with("kvm: ")).unwrap().to_owned()
    };
    let text = finding(flawed);
    assert!(
        text.contains("oio shows it: mean latency at most 1.050 (1.050-1.050) of off's (null delay=5ms"),
        "{text}"
    );
    assert!(text.contains("oio-iops does not show it: mean latency at most 1.000"), "{text}");
    let text = finding(both_flawed);
    assert!(text.contains("oio shows it") && text.contains("oio-iops shows it"), "{text}");
    for model in [policies, slower_where_fast] {
        let text = finding(model);
        assert!(text.contains("oio does not show it") && text.contains("oio-iops does not"), "{text}");
    }
    // Fast storage alone shows nothing.
    let outcome = run(Suite::Coalescing, &[disk("passthrough", "cached")], flawed);
    let text = Suite::Coalescing.text(&outcome.document, &[]);
    assert!(text.contains("nothing to say about the published flaw"), "{text}");
}

/// IDE takes twice as long as the synthetic controller, and four times the cycles.
fn hyperv(adapter: Adapter, _: Coalescing, _: &str, _: &Workload) -> Option<Cost> {
    let times = if adapter == Adapter::Ide { 2 } else { 1 };
    let latency = Duration::from_micros(10 * times);
    Some(Cost { latency, cycles: 1000 * times * times, interrupts: 500 })
}

#[test]
fn hyper_v_s_adapters_stand_beside_each_other_and_the_statements() {
    let suite = Suite::HypervAnalysis;
    let disks = [disk("passthrough", "cached"), disk("vhd", "a"), disk("vhd", "b"), disk("vhd", "c")];
    let outcome = run(suite, &disks, hyperv);
    let text = suite.text(&outcome.document, &[]);
    let rows = rows(&text, "engine kvm");
    // Four loads, four disks (of which one is not written to), two adapters; rows without an adapter are of the engine `native`.
    assert_eq!(rows.len(), (4 * 4 - 2) * 2);
    assert_eq!(rows[0][..3], ["512 B sequential read", "passthrough cached", "storvsc"]);
    assert_eq!((rows[1][2], *rows[1].last().unwrap()), ("ide", "0.50"));
    assert!(text.contains("below the synthetic controller's in 14 of 14 rows (0.50 to 0.50)"), "{text}");
}

/// An adapter's cost by its place among all.
fn by_place(adapter: Adapter, _: Coalescing, _: &str, job: &Workload) -> Option<Cost> {
    let place = Adapter::ALL.iter().position(|other| *other == adapter)? as u64 + 1;
    let cycles = place * 1000 / u64::from(job.queue_depth);
    Some(Cost { latency: Duration::from_micros(10), cycles, interrupts: 250 })
}

#[test]
fn each_adapter_stands_beside_pvscsi_at_each_depth() {
    let suite = Suite::Adapters;
    let outcome = run(suite, &[disk("null", "")], by_place);
    assert!(!outcome.failed && outcome.notes.is_empty(), "{:?}", outcome.notes);
    let text = suite.text(&outcome.document, &[]);
    let rows = rows(&text, "engine kvm");
    // All but IDE in native mode.
    let count = Adapter::ALL.len() - 1;
    assert_eq!(rows.len(), 3 * count);
    let named = |index: usize| (rows[index][0], rows[index][1]);
    assert_eq!((named(0), named(count), named(3 * count - 1).1), (("pvscsi", "1"), ("pvscsi", "8"), "32"));
    let lsi = &rows[1];
    // In the middle of three rounds, the machine is three times as slow.
    assert_eq!((lsi[0], lsi[4], lsi[7]), ("lsi", "6,000", "6,000"), "all of it is the device's");
    assert_eq!(lsi[9..], ["2.00 (2.00-2.00) [2.00-2.00] slower", "0.000", "0.250"]);
    assert_eq!(rows[0][9], "-");
}

#[test]
fn instructions_are_not_called_cycles() {
    let suites = [
        (Suite::Adapters, by_place as Model),
        (Suite::HypervAnalysis, hyperv),
        (Suite::PvscsiVsLsi, adapters),
    ];
    for (suite, model) in suites {
        let mut document = run(suite, &[disk("passthrough", ""), disk("vhd", "fixed")], model).document;
        document.host.cycles_source = CyclesSource::Instructions;
        let text = suite.text(&document, &[]);
        assert!(text.contains("instructions") && !text.contains("cycles"), "{text}");
        // KVM's samples are not meaningful there; the harness reads the counter.
        let kvm = text.split("engine harness").next().unwrap();
        assert!(!kvm.contains(" device  kernel "), "{kvm}");
        assert_eq!(text.contains(" device  kernel "), suite == Suite::Adapters, "{text}");
        assert!(suite.plots(&document).iter().all(|(_, plot)| !plot.contains("cycles")), "{suite}");
    }
}

#[test]
fn a_suite_is_as_long_as_is_asked_for() {
    let usual = Suite::Coalescing.plan(4, &full());
    assert_eq!((usual.runs, usual.duration, usual.lead_in), (3, DURATION, LEAD_IN));
    let short = Duration::from_millis(5);
    let plan = Suite::PvscsiVsLsi.plan(1, &Wanted { duration: Some(short), runs: Some(2), ..full() });
    assert_eq!((plan.runs, plan.duration, plan.lead_in), (2, short, short));
    assert_eq!(plan.matrix.combinations().len(), 10 * 2 * 2);
    // A policy's epoch fits into the lead-in.
    assert!(LEAD_IN > paradisk_devices::Coalescing::default().epoch);
}

/// Claims of a suite's results: engine, standing and text.
fn claims(suite: Suite, document: &Document) -> Vec<(String, Standing, String)> {
    let claims = suite.claims(document).into_iter();
    claims.map(|claim| (claim.engine, claim.standing, claim.statement + " " + &claim.measured)).collect()
}

#[test]
fn claims_on_adapters_are_decided_by_kvm_on_hardware_alone() {
    let disks = [disk("passthrough", "cached")];
    let mut document = run(Suite::PvscsiVsLsi, &disks, adapters).document;
    document.host.kvm = Kvm::Hardware;
    let found = claims(Suite::PvscsiVsLsi, &document);
    // 1.25 of the throughput and 0.8 of the cycles: both claims hold on KVM, and the harness cannot decide.
    let standings: Vec<_> = found.iter().map(|(engine, standing, _)| (engine.as_str(), *standing)).collect();
    let (holds, open) = (Standing::Holds, Standing::NotDecided);
    assert_eq!(standings, [("kvm", holds), ("kvm", holds), ("harness", open), ("harness", open)]);
    assert!(found[0].2.contains("1.25 to 1.25") && found[1].2.contains("0.80 to 0.80"), "{found:?}");
    document.host.kvm = Kvm::Nested;
    assert!(claims(Suite::PvscsiVsLsi, &document).iter().all(|(_, standing, _)| *standing == open));
    // Counted instructions decide the claim on CPU cost, not the one on throughput.
    document.host.cycles_source = CyclesSource::Instructions;
    let counted: Vec<_> = claims(Suite::PvscsiVsLsi, &document).iter().map(|each| each.1).collect();
    assert_eq!(counted, [open, holds, open, open]);
    document.host.cycles_source = CyclesSource::CpuTimeXTsc;
    // Too little is saved.
    document.host.kvm = Kvm::Hardware;
    let [first, ..] = &mut document.ratios[..] else { panic!() };
    assert_eq!(first.metric, "iops");
    first.confidence.as_mut().unwrap().verdict = crate::confidence::Verdict::Equal;
    let cycles = document.ratios.iter_mut().find(|ratio| ratio.metric == "cycles_per_io.total").unwrap();
    cycles.confidence.as_mut().unwrap().low = 0.95;
    cycles.confidence.as_mut().unwrap().high = 0.97;
    let standings: Vec<_> = claims(Suite::PvscsiVsLsi, &document).iter().map(|each| each.1).collect();
    assert_eq!(standings[..2], [Standing::DoesNotHold; 2]);
    // The page says so.
    let page = html::render(&[("d".into(), document)]);
    assert_eq!(page.matches("Does not hold</p>").count(), 2);
    // An engine that does not decide the claim is on the same card.
    assert_eq!(page.matches("<b>? Not decided here</b>").count(), 2);
    assert_eq!(page.matches("<article").count(), 2);
    assert!(
        page.contains("<b>\u{2717} 2</b> do not hold") && page.contains("<b>? 0</b> are not decided here")
    );
}

#[test]
fn the_claim_on_coalescing_follows_the_latencies() {
    for (model, expected) in [
        (flawed as Model, Standing::Holds),
        (both_flawed, Standing::DoesNotHold),
        (policies, Standing::DoesNotHold),
    ] {
        let found = claims(Suite::Coalescing, &run(Suite::Coalescing, &storage(), model).document);
        let standings: Vec<_> = found.iter().map(|each| each.1).collect();
        assert_eq!(standings, [expected; 2], "{found:?}");
    }
    // A rise whose interval includes 1 decides nothing.
    let mut noisy = run(Suite::Coalescing, &storage(), flawed).document;
    let means = noisy.ratios.iter_mut().filter(|ratio| ratio.metric == "latency_us.mean");
    means.for_each(|ratio| ratio.confidence.as_mut().unwrap().low = 0.9);
    let found = claims(Suite::Coalescing, &noisy);
    assert!(found.iter().all(|each| each.1 == Standing::NotDecided), "{found:?}");
    let fast = run(Suite::Coalescing, &[disk("passthrough", "cached")], flawed);
    assert!(claims(Suite::Coalescing, &fast.document).is_empty());
}

#[test]
fn the_claim_on_ide_follows_the_throughputs() {
    let disks = [disk("passthrough", "cached"), disk("vhd", "a"), disk("vhd", "b"), disk("vhd", "c")];
    let mut document = run(Suite::HypervAnalysis, &disks, hyperv).document;
    document.host.kvm = Kvm::Hardware;
    let found = claims(Suite::HypervAnalysis, &document);
    let ide = found.iter().find(|(engine, _, text)| engine == "kvm" && text.contains("IDE")).unwrap();
    assert_eq!(ide.1, Standing::Holds);
    assert!(ide.2.contains("0.50 to 0.50"), "{ide:?}");
}

#[test]
fn a_naive_walk_stands_beside_the_flat_map_of_the_same_chain() {
    let suite = Suite::Chain;
    let plan = suite.plan(suite.disks(), &full());
    let rows = plan.matrix.combinations();
    // Two formats of five lengths and one spread: flat with no adapter and with one, naive with none.
    assert_eq!((suite.disks(), rows.len()), (24, 12 * 2 + 12));
    let [lengths, naive] = &plan.comparisons[..] else { panic!("{:?}", plan.comparisons) };
    let baselines = |comparison: &Comparison| -> Vec<_> {
        let disk = |row| comparison.baseline.of(row).map(|baseline| (row.load.disk, baseline.load.disk));
        rows.iter().filter(|row| row.candidate == Candidate::Native).filter_map(disk).collect()
    };
    assert_eq!(baselines(lengths)[..5], [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)]);
    assert_eq!((baselines(lengths).len(), baselines(lengths)[5]), (10, (7, 6)));
    assert_eq!(baselines(naive), (12..24).map(|disk| (disk, disk - 12)).collect::<Vec<_>>());
}
