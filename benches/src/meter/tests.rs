//! The meter against scripted rigs: order, ratios, failures.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use facts::host::{CyclesSource, Kvm};
use guest_driver::Report;
use guest_driver::workload::Fault;
use guest_tests::rig::{CpuSplit, Measurement};
use paradisk_disk_formats::{
    Allocation, Disk, DiskInfo, DiskQueue, IoError, Kind, OpenError, QueueConfig, SectorSize, Status,
};

use super::*;
use crate::bed;
use crate::compare::Metric;
use crate::journal::Identity;
use crate::progress::Silent;

/// A disk that no test does I/O on.
struct Shelf(DiskInfo);

impl Disk for Shelf {
    fn info(&self) -> &DiskInfo {
        &self.0
    }

    fn queue(&self, _config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        Err(OpenError::Unsupported { path: "shelf".into(), reason: "no queues here".into() })
    }

    fn status(&self, _offset: u64, limit: u64) -> Result<Allocation, IoError> {
        Ok(Allocation { len: limit, status: Status::Mapped })
    }
}

pub(crate) fn subject(format: &'static str, capacity: u64) -> OpenDisk {
    let info = DiskInfo {
        kind: Kind { format, subformat: None },
        capacity,
        logical_sector: SectorSize::B512,
        physical_sector: 512,
        read_only: false,
        volatile_cache: false,
        discard: None,
        buffer_alignment: 1,
    };
    bed::subject(Arc::new(Shelf(info)), None)
}

/// The runs: candidate, disk, workload.
type Log = Rc<RefCell<Vec<(Candidate, &'static str, Workload)>>>;

struct Scripted {
    log: Log,
    /// Cycles of device and kernel for each access of the native rows, by round; adapters use twice as many.
    native: Vec<u64>,
    /// This disk's accesses fail.
    failing: Option<&'static str>,
    /// Guests over this disk do not start.
    refused: Option<&'static str>,
}

struct Script {
    candidate: Candidate,
    disk: &'static str,
    log: Log,
    cycles: Vec<u64>,
    errors: u64,
}

/// The round of a run, by its seed.
pub(crate) const fn round(workload: &Workload) -> u32 {
    (workload.seed & 0xffff) - 1
}

impl Rig for Script {
    fn run(&mut self, workload: &Workload) -> Result<Measurement, RigError> {
        self.log.borrow_mut().push((self.candidate, self.disk, *workload));
        let mut report = Report {
            ios: 1000,
            bytes: 4_096_000,
            ticks: to_ticks(Duration::from_millis(10)),
            ..Report::EMPTY
        };
        if self.errors > 0 {
            report.note(Fault { kind: Fault::STATUS, offset: 4096, status: 2, ..Fault::EMPTY });
        }
        for latency in 1..=1000 {
            report.latency.record(to_ticks(Duration::from_micros(latency)));
        }
        let each = self.cycles[round(workload) as usize];
        let (device, kernel) = (each * 400, each * 600);
        let cpu =
            CpuSplit { total: device + kernel + 500_000, guest: 300_000, exit: 200_000, device, kernel };
        let wall = Duration::from_millis(11);
        Ok(Measurement { report, cpu, exits: 250, interrupts: 50, doorbells: 40, wall })
    }
}

impl Scripted {
    fn script(&self, candidate: Candidate, subject: &OpenDisk) -> Box<dyn Rig> {
        let disk = subject.disk.info().kind.format;
        let factor = if candidate == Candidate::Native { 1 } else { 2 };
        let cycles = self.native.iter().map(|cycles| cycles * factor).collect();
        let errors = u64::from(self.failing == Some(disk));
        Box::new(Script { candidate, disk, log: Rc::clone(&self.log), cycles, errors })
    }
}

impl Rigs for Scripted {
    fn engine(&self) -> Engine {
        Engine::Harness
    }

    fn rig(
        &mut self,
        adapter: Adapter,
        policy: Coalescing,
        subject: &OpenDisk,
    ) -> Result<Box<dyn Rig>, RigError> {
        if self.refused == Some(subject.disk.info().kind.format) {
            return Err(RigError::Guest("it will not boot".into()));
        }
        Ok(self.script(Candidate::Adapter(adapter, policy), subject))
    }

    fn native(&mut self, subject: &OpenDisk) -> Box<dyn Rig> {
        self.script(Candidate::Native, subject)
    }
}

fn plan(runs: u32, disks: usize) -> Plan {
    let matrix = Matrix {
        native: true,
        coalescing: vec![Coalescing::Batch],
        ..Matrix::random_reads(disks, &[4096], &[32])
    };
    Plan {
        matrix,
        span: None,
        duration: Duration::from_millis(10),
        lead_in: Duration::ZERO,
        native_lead_in: Duration::ZERO,
        settle: false,
        runs,
        comparisons: vec![Comparison::AGAINST_NATIVE],
    }
}

pub(crate) fn host() -> Host {
    Host {
        cpu: "CPU".into(),
        cores: 1,
        tsc_hz: 1,
        kernel: "6".into(),
        kvm: Kvm::None,
        cycles_source: CyclesSource::CpuTimeXTsc,
    }
}

fn scripted(native: &[u64]) -> Scripted {
    // The first value is the warm-up's.
    Scripted { log: Rc::default(), native: native.to_vec(), failing: None, refused: None }
}

#[test]
fn rounds_visit_every_row_once_with_offsets_of_its_own() {
    let mut rigs = scripted(&[100; 4]);
    let subjects = [subject("raw", 10_000_000), subject("ram", 1 << 20)];
    let outcome = run(&plan(3, 2), &subjects, &mut rigs, host(), &mut Silent, &mut Journal::none());
    assert!(!outcome.failed && outcome.notes.is_empty(), "{:?}", outcome.notes);
    let log = rigs.log.borrow();
    let pvscsi = Candidate::Adapter(Adapter::Pvscsi, Coalescing::Batch);
    let order = [(Candidate::Native, "raw"), (pvscsi, "raw"), (Candidate::Native, "ram"), (pvscsi, "ram")];
    assert_eq!(log.len(), 4 * 4);
    for (round, visits) in log.chunks(4).enumerate() {
        assert_eq!(visits.iter().map(|visit| (visit.0, visit.1)).collect::<Vec<_>>(), order);
        assert!(visits.iter().all(|visit| self::round(&visit.2) == round as u32));
    }
    let seeds: BTreeSet<u32> = log.iter().map(|visit| visit.2.seed).collect();
    assert_eq!(seeds.len(), log.len());
    // The span is whole blocks of the disk.
    assert_eq!(log[0].2.span, 10_000_000 / 4096 * 4096);
    assert_eq!(log[2].2.span, 1 << 20);
}

#[test]
fn results_are_per_access_and_the_warm_up_does_not_count() {
    let mut rigs = scripted(&[9999, 100, 300, 200]);
    let outcome =
        run(&plan(3, 1), &[subject("raw", 1 << 20)], &mut rigs, host(), &mut Silent, &mut Journal::none());
    let [native, pvscsi] = &outcome.document.results[..] else { panic!("two rows") };
    assert_eq!((native.adapter.as_str(), native.coalescing.as_deref()), ("native", None));
    assert_eq!((pvscsi.engine.as_str(), pvscsi.coalescing.as_deref()), ("harness", Some("batch")));
    let device = native.cycles_per_io.device;
    assert_eq!((device.median, device.min, device.max), (80.0, 40.0, 120.0));
    let total = pvscsi.cycles_per_io.total;
    assert_eq!((total.median, total.min, total.max), (900.0, 700.0, 1100.0));
    assert!((pvscsi.iops.median / 100_000.0 - 1.0).abs() < 1e-3, "{}", pvscsi.iops.median);
    assert!((pvscsi.mb_per_s.median / 409.6 - 1.0).abs() < 1e-3);
    assert!((pvscsi.latency_us.p50 / 500.0 - 1.0).abs() < 0.08, "{}", pvscsi.latency_us.p50);
    assert!((pvscsi.latency_us.p99 / 990.0 - 1.0).abs() < 0.08, "{}", pvscsi.latency_us.p99);
    assert_eq!((pvscsi.interrupts_per_io, pvscsi.exits_per_io, pvscsi.doorbells_per_io), (0.05, 0.25, 0.04));
    assert_eq!((pvscsi.runs, pvscsi.errors), (3, 0));
    let [ratio] = &outcome.document.ratios[..] else { panic!("one ratio") };
    assert_eq!((ratio.median, ratio.min, ratio.max), (2.0, 2.0, 2.0));
    assert_eq!((&ratio.baseline, &ratio.candidate), (&native.label(), &pvscsi.label()));
}

#[test]
fn a_lead_in_runs_before_each_counted_run_and_does_not_count() {
    let mut rigs = scripted(&[9999, 100, 300]);
    let lead_in = Duration::from_millis(3);
    let plan = Plan { lead_in, native_lead_in: lead_in, ..plan(2, 1) };
    let mut lengths = |plan: &Plan| -> Vec<u64> {
        rigs.log.borrow_mut().clear();
        let outcome =
            run(plan, &[subject("raw", 1 << 20)], &mut rigs, host(), &mut Silent, &mut Journal::none());
        assert_eq!(outcome.document.results[0].runs, 2);
        rigs.log.borrow().iter().map(|visit| visit.2.ticks).collect()
    };
    let (before, full) = (to_ticks(lead_in), to_ticks(plan.duration));
    // A warm-up of both rows, then twice both with their lead-in.
    assert_eq!(lengths(&plan), [full, full, before, full, before, full, before, full, before, full]);
    let plan = Plan { native_lead_in: Duration::ZERO, ..plan };
    assert_eq!(lengths(&plan), [full, full, full, before, full, full, before, full]);
}

#[test]
fn policies_are_compared_pair_by_pair_by_every_metric_asked_for() {
    let mut rigs = scripted(&[9999, 100, 300, 200]);
    let mut plan = plan(3, 1);
    plan.matrix.coalescing = vec![Coalescing::Off, Coalescing::Oio];
    plan.comparisons = vec![Comparison {
        baseline: Baseline::Candidate(|candidate| match candidate {
            Candidate::Adapter(adapter, Coalescing::Oio) => {
                Some(Candidate::Adapter(adapter, Coalescing::Off))
            }
            _ => None,
        }),
        metrics: &[Metric::Cycles, Metric::LatencyP50],
    }];
    let outcome =
        run(&plan, &[subject("raw", 1 << 20)], &mut rigs, host(), &mut Silent, &mut Journal::none());
    let [cycles, latency] = &outcome.document.ratios[..] else { panic!("{:?}", outcome.document.ratios) };
    assert_eq!(
        (cycles.name.as_str(), cycles.metric.as_str()),
        ("pvscsi: oio against off, raw", "cycles_per_io.total")
    );
    assert_eq!((cycles.min, cycles.max), (1.0, 1.0));
    assert_eq!((latency.metric.as_str(), latency.median), ("latency_us.p50", 1.0));
    assert!(cycles.baseline.ends_with("/off") && cycles.candidate.ends_with("/oio"));
}

#[test]
fn disks_are_compared_with_another_disk_within_the_span() {
    let mut rigs = scripted(&[9999, 100, 300, 200]);
    let mut plan = plan(3, 2);
    plan.matrix.adapters.clear();
    plan.span = Some(1_000_000);
    plan.comparisons = vec![Comparison {
        baseline: Baseline::Disk(vec![None, Some(0)]),
        metrics: &[Metric::Cycles, Metric::Iops],
    }];
    let subjects = [subject("raw", 1 << 20), subject("vhd", 10 << 20)];
    let outcome = run(&plan, &subjects, &mut rigs, host(), &mut Silent, &mut Journal::none());
    assert!(!outcome.failed && outcome.notes.is_empty(), "{:?}", outcome.notes);
    let [raw, vhd] = &outcome.document.results[..] else { panic!("two rows") };
    let [cycles, iops] = &outcome.document.ratios[..] else { panic!("{:?}", outcome.document.ratios) };
    for (ratio, metric) in [(cycles, "cycles_per_io.total"), (iops, "iops")] {
        assert_eq!((ratio.name.as_str(), ratio.metric.as_str()), ("vhd against raw", metric));
        assert_eq!((&ratio.baseline, &ratio.candidate), (&raw.label(), &vhd.label()));
        assert_eq!((ratio.min, ratio.max), (1.0, 1.0));
    }
    assert!(rigs.log.borrow().iter().all(|visit| visit.2.span == 1_000_000 / 4096 * 4096));
}

#[test]
fn an_interrupted_measurement_runs_what_is_missing_and_ends_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json.partial");
    let subjects = [subject("raw", 1 << 20), subject("vhd", 1 << 20)];
    let plan = plan(3, 2);
    let identity = || plan.identify(Identity::of(&host()), &subjects);
    let measure = |journal: &mut Journal| {
        let mut rigs = scripted(&[9999, 100, 300, 200]);
        let outcome = run(&plan, &subjects, &mut rigs, host(), &mut Silent, journal);
        let log = rigs.log.borrow();
        (outcome.document, log.iter().map(|visit| (visit.1, round(&visit.2))).collect::<Vec<_>>())
    };
    let (whole, all) = measure(&mut Journal::begin(&path, identity()).unwrap());
    // A warm-up and three rounds of four rows.
    assert_eq!(all.len(), 4 * 4);
    let text = std::fs::read_to_string(&path).unwrap();
    let kept = |runs: usize| text.lines().take(1 + runs).map(|line| format!("{line}\n")).collect::<String>();
    // The first round, and half of the second.
    std::fs::write(&path, kept(6)).unwrap();
    let (resumed, some) = measure(&mut Journal::resume(&path, &identity()).unwrap());
    assert_eq!(resumed, whole);
    assert_eq!(some.len(), 4 + 2 + 4, "a warm-up, half a round and a round");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    // All rows but one are complete.
    std::fs::write(&path, kept(11)).unwrap();
    let (resumed, some) = measure(&mut Journal::resume(&path, &identity()).unwrap());
    assert_eq!((resumed, some), (whole, vec![("vhd", 0), ("vhd", 3)]));
    let plan = Plan { runs: 4, ..plan.clone() };
    let other = plan.identify(Identity::of(&host()), &subjects);
    let refusal = Journal::resume(&path, &other).unwrap_err().to_string();
    assert!(refusal.ends_with("runs was 3, and is 4 here"), "{refusal}");
}

#[test]
fn one_run_makes_no_ratio() {
    let outcome = run(
        &plan(1, 1),
        &[subject("raw", 1 << 20)],
        &mut scripted(&[1, 1]),
        host(),
        &mut Silent,
        &mut Journal::none(),
    );
    assert!(outcome.document.ratios.is_empty() && !outcome.failed);
    assert_eq!(outcome.document.results.len(), 2);
    assert_eq!(outcome.notes, ["no ratios: a ratio needs at least 2 runs (--runs 1)"]);
}

#[test]
fn failed_accesses_are_counted_and_fail_the_whole() {
    let mut rigs = scripted(&[1, 1, 1]);
    rigs.failing = Some("raw");
    let subjects = [subject("raw", 1 << 20), subject("ram", 1 << 20)];
    let outcome = run(&plan(2, 2), &subjects, &mut rigs, host(), &mut Silent, &mut Journal::none());
    assert!(outcome.failed);
    let errors: Vec<_> = outcome.document.results.iter().map(|result| result.errors).collect();
    assert_eq!(errors, [2, 2, 0, 0]);
    assert!(outcome.notes[1].contains("pvscsi (batch) over raw, randread 4K"), "{:?}", outcome.notes);
    assert!(
        outcome.notes[1].contains("2 failed accesses (first: command failed at byte 4096"),
        "{:?}",
        outcome.notes
    );
}

#[test]
fn a_row_that_cannot_run_is_named_and_the_others_run() {
    let mut rigs = scripted(&[1, 1, 1]);
    rigs.refused = Some("ram");
    let subjects = [subject("raw", 1 << 20), subject("ram", 1 << 20)];
    let outcome = run(&plan(2, 2), &subjects, &mut rigs, host(), &mut Silent, &mut Journal::none());
    assert!(outcome.failed);
    assert_eq!(outcome.document.results.len(), 3);
    assert_eq!(outcome.document.ratios.len(), 1);
    assert!(outcome.notes[0].contains("over ram") && outcome.notes[0].contains("it will not boot"));
}

#[test]
fn loads_that_do_not_fit_the_disk_are_refused() {
    for (mut plan, capacity, expected) in [
        (plan(2, 1), 2048, "block size 4096 is larger than the disk (2048 bytes)"),
        (plan(2, 1), 1 << 20, "block size 768 is not whole sectors of 512 bytes"),
    ] {
        if capacity != 2048 {
            plan.matrix.block_sizes = vec![768];
        }
        let mut rigs = scripted(&[1, 1, 1]);
        let outcome =
            run(&plan, &[subject("raw", capacity)], &mut rigs, host(), &mut Silent, &mut Journal::none());
        assert!(outcome.failed && outcome.document.results.is_empty());
        assert!(outcome.notes[0].contains(expected), "{:?}", outcome.notes);
        assert!(rigs.log.borrow().is_empty());
    }
}
