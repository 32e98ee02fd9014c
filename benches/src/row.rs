//! A row of the results during the measurement: its runs, and their result.

use facts::disk::OpenDisk;
use facts::tsc::tsc_hz;
use guest_driver::Histogram;
use guest_driver::workload::Fault;
use guest_tests::rig::Measurement;

use crate::axes::Access;
use crate::clock;
use crate::compare::Metric;
use crate::matrix::{Candidate, Combination};
use crate::mix::Mix;
use crate::result::{Cycles, Latency, NATIVE, RunResult, RunValues};
use crate::stat::Stat;

/// The values of a run, for each access.
#[derive(Clone, Copy, Debug)]
struct Sample {
    iops: f64,
    mb_per_s: f64,
    total: f64,
    guest: f64,
    exit: f64,
    device: f64,
    kernel: f64,
    interrupts: f64,
    exits: f64,
    doorbells: f64,
    /// Microseconds.
    mean: f64,
    p50: f64,
    p99: f64,
}

/// A combination and its runs.
pub(crate) struct Row {
    pub(crate) combination: Combination,
    samples: Vec<Sample>,
    latency: Histogram,
    errors: u64,
    fault: Fault,
    /// Why the row could not be measured.
    pub(crate) failure: Option<String>,
}

impl Row {
    pub(crate) fn new(combination: Combination) -> Self {
        let (latency, fault) = (Histogram::EMPTY, Fault::EMPTY);
        Self { combination, samples: Vec::new(), latency, errors: 0, fault, failure: None }
    }

    /// Number of runs.
    pub(crate) fn rounds(&self) -> u32 {
        self.samples.len() as u32
    }

    /// Add a run.
    pub(crate) fn add(&mut self, measurement: &Measurement) {
        let report = &measurement.report;
        self.errors += report.errors;
        if self.fault.kind == Fault::NONE {
            self.fault = report.fault;
        }
        if report.ios == 0 {
            self.failure = Some(match fault_text(&report.fault) {
                Some(fault) => format!("no I/O completed: {fault}"),
                None => "no I/O completed".to_owned(),
            });
            return;
        }
        merge(&mut self.latency, &report.latency);
        let seconds = match report.ticks {
            0 => measurement.wall.as_secs_f64(),
            ticks => ticks as f64 / tsc_hz() as f64,
        };
        let each = |number: u64| number as f64 / report.ios as f64;
        let us = |q| report.latency.quantile_within(q) * clock::to_us(1);
        let cpu = &measurement.cpu;
        self.samples.push(Sample {
            iops: report.ios as f64 / seconds,
            mb_per_s: report.bytes as f64 / 1e6 / seconds,
            total: each(cpu.total),
            guest: each(cpu.guest),
            exit: each(cpu.exit),
            device: each(cpu.device),
            kernel: each(cpu.kernel),
            interrupts: each(measurement.interrupts),
            exits: each(measurement.exits),
            doorbells: each(measurement.doorbells),
            mean: clock::to_us(report.latency.sum) / report.latency.count.max(1) as f64,
            p50: us(0.5),
            p99: us(0.99),
        });
    }

    /// A metric of each run.
    pub(crate) fn values(&self, metric: Metric) -> Vec<f64> {
        let value: fn(&Sample) -> f64 = match metric {
            Metric::Iops => |sample| sample.iops,
            Metric::Cycles => |sample| sample.total,
            Metric::DeviceAndKernel => |sample| sample.device + sample.kernel,
            Metric::LatencyMean => |sample| sample.mean,
            Metric::LatencyP50 => |sample| sample.p50,
            Metric::LatencyP99 => |sample| sample.p99,
            Metric::Interrupts => |sample| sample.interrupts,
        };
        self.samples.iter().map(value).collect()
    }

    /// A text on failed accesses, if any.
    pub(crate) fn errors(&self) -> Option<String> {
        let first = fault_text(&self.fault).map(|fault| format!(" (first: {fault})")).unwrap_or_default();
        (self.errors > 0).then(|| format!("{} failed accesses{first}", self.errors))
    }

    /// The result; `None` if there are no runs.
    pub(crate) fn result(&self, subject: &OpenDisk, engine: &str, mix: Option<&Mix>) -> Option<RunResult> {
        let Combination { candidate, load } = self.combination;
        let (adapter, engine, coalescing) = match candidate {
            Candidate::Native => (NATIVE, NATIVE, None),
            Candidate::Adapter(adapter, coalescing) => (adapter.as_str(), engine, Some(coalescing.as_str())),
        };
        let stat = |value: fn(&Sample) -> f64| Stat::of(self.samples.iter().map(value));
        let us = |q| clock::to_us(self.latency.quantile(q));
        Some(RunResult {
            adapter: adapter.to_owned(),
            disk: subject.facts(),
            engine: engine.to_owned(),
            rw: load.access.as_str().to_owned(),
            workload: mix.map(|mix| mix.name.clone()),
            read_percent: load.read_percent,
            random_percent: (load.access == Access::Mix).then_some(load.random_percent),
            block_size: load.block_size,
            queue_depth: load.queue_depth,
            workers: load.workers,
            coalescing: coalescing.map(str::to_owned),
            runs: self.samples.len() as u32,
            accesses: self.latency.count,
            iops: stat(|sample| sample.iops)?,
            mb_per_s: stat(|sample| sample.mb_per_s)?,
            latency_us: Latency {
                mean: clock::to_us(self.latency.mean()),
                p50: us(0.5),
                p90: Some(us(0.9)),
                p99: us(0.99),
                p999: us(0.999),
                p9999: Some(us(0.9999)),
            },
            cycles_per_io: Cycles {
                total: stat(|sample| sample.total)?,
                guest: stat(|sample| sample.guest)?,
                exit: stat(|sample| sample.exit)?,
                device: stat(|sample| sample.device)?,
                kernel: stat(|sample| sample.kernel)?,
            },
            interrupts_per_io: stat(|sample| sample.interrupts)?.median,
            exits_per_io: stat(|sample| sample.exits)?.median,
            doorbells_per_io: stat(|sample| sample.doorbells)?.median,
            errors: self.errors,
            map_memory: subject.map_memory(),
            values: RunValues {
                iops: self.values(Metric::Iops),
                cycles_per_io: self.values(Metric::Cycles),
                latency_p99_us: self.values(Metric::LatencyP99),
            },
        })
    }
}

fn merge(into: &mut Histogram, from: &Histogram) {
    for (sum, count) in into.counts.iter_mut().zip(&from.counts) {
        *sum += count;
    }
    into.sum = into.sum.wrapping_add(from.sum);
    into.count += from.count;
}

/// The text of a fault; `None`: no fault.
pub(crate) fn fault_text(fault: &Fault) -> Option<String> {
    let at = format!("at byte {}", fault.offset);
    let mismatch = |what| format!("{what} {at}: expected {:#x}, found {:#x}", fault.expected, fault.found);
    Some(match fault.kind {
        Fault::NONE => return None,
        Fault::BRING_UP => format!("the adapter did not come up (step {})", fault.found),
        Fault::STATUS => {
            format!(
                "command failed {at}: host status {:#x}, SCSI status {:#x}",
                fault.status >> 8,
                fault.status & 255
            )
        }
        Fault::WRONG_ADDRESS => mismatch("a block with another block's address"),
        Fault::WRONG_GENERATION => mismatch("a block with another generation"),
        Fault::WRONG_BODY => mismatch("a damaged block"),
        Fault::SPURIOUS => format!("a completion for no request in flight (tag {})", fault.found),
        Fault::BAD_WORKLOAD => {
            format!("the load generator refused the job (field {}, see guest_driver::workload)", fault.found)
        }
        Fault::TIMEOUT => "no completion came for a long time".to_owned(),
        other => format!("unknown fault {other}"),
    })
}
