//! A run as it was measured.

use std::time::Duration;

use guest_driver::workload::{BUCKETS, Fault};
use guest_driver::{Histogram, Report};
use guest_tests::rig::{CpuSplit, Measurement};
use serde::{Deserialize, Serialize};

use crate::axes::Engine;

/// Upper limit of numbers of a run, so that sums of a thousand runs do not overflow.
const MOST: u64 = 1 << 50;

/// A run of a row: the recorded part of a [`Measurement`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(super) engine: String,
    /// From 1.
    pub(crate) round: u32,
    /// Index of the row among the rows of its engine.
    pub(crate) row: usize,
    ios: u64,
    bytes: u64,
    errors: u64,
    ticks: u64,
    /// A fault: kind, status, offset, expected and found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fault: Option<(u32, u32, u64, u64, u64)>,
    /// Indices and counts of the buckets that are not empty.
    latency: Vec<(usize, u64)>,
    /// Ticks.
    latency_sum: u64,
    /// Total, guest, exit, device, kernel; ticks.
    cpu: [u64; 5],
    exits: u64,
    interrupts: u64,
    doorbells: u64,
    wall_ns: u64,
}

impl Run {
    pub(crate) fn new(engine: Engine, round: u32, row: usize, measurement: &Measurement) -> Self {
        let Measurement { report, cpu, exits, interrupts, doorbells, wall } = measurement;
        let Fault { kind, status, offset, expected, found } = report.fault;
        let buckets = report.latency.counts.iter().copied().enumerate();
        Self {
            engine: engine.as_str().to_owned(),
            round,
            row,
            ios: report.ios,
            bytes: report.bytes,
            errors: report.errors,
            ticks: report.ticks,
            fault: (kind != Fault::NONE).then_some((kind, status, offset, expected, found)),
            latency: buckets.filter(|(_, count)| *count > 0).collect(),
            latency_sum: report.latency.sum,
            cpu: [cpu.total, cpu.guest, cpu.exit, cpu.device, cpu.kernel],
            exits: *exits,
            interrupts: *interrupts,
            doorbells: *doorbells,
            wall_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Whether the numbers are possible for a run.
    pub(super) fn is_sane(&self) -> bool {
        let numbers = [self.ios, self.bytes, self.errors, self.ticks, self.wall_ns];
        let counts = self.latency.iter().try_fold(0u64, |sum, (_, count)| sum.checked_add(*count));
        self.latency.iter().all(|(bucket, _)| *bucket < BUCKETS)
            && counts.is_some_and(|sum| sum < MOST)
            && numbers.iter().chain(&self.cpu).all(|number| *number < MOST)
    }

    pub(crate) fn measurement(&self) -> Measurement {
        let mut latency = Histogram { sum: self.latency_sum, ..Histogram::EMPTY };
        for (bucket, count) in &self.latency {
            if let Some(sum) = latency.counts.get_mut(*bucket) {
                *sum += count;
                latency.count += count;
            }
        }
        let fault = self.fault.map_or(Fault::EMPTY, |(kind, status, offset, expected, found)| Fault {
            kind,
            status,
            offset,
            expected,
            found,
        });
        let Self { ios, bytes, errors, ticks, .. } = *self;
        let [total, guest, exit, device, kernel] = self.cpu;
        Measurement {
            report: Report { ios, bytes, errors, ticks, fault, latency, ..Report::EMPTY },
            cpu: CpuSplit { total, guest, exit, device, kernel },
            exits: self.exits,
            interrupts: self.interrupts,
            doorbells: self.doorbells,
            wall: Duration::from_nanos(self.wall_ns),
        }
    }
}
