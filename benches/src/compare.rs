//! Comparisons: a candidate with a baseline of the same load, by one metric.

use facts::names::Coalescing;

use crate::confidence::{Better, Criterion};
use crate::matrix::{Candidate, Combination, Load};
use crate::result::DEVICE_AND_KERNEL;

/// A metric of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Accesses a second.
    Iops,
    /// CPU cycles for each access.
    Cycles,
    /// CPU cycles for each access that adapter, disk and kernel took.
    DeviceAndKernel,
    /// Mean latency of the run.
    LatencyMean,
    /// Median latency of the run.
    LatencyP50,
    /// 99th percentile of the run's latencies.
    LatencyP99,
    /// Interrupts for each access.
    Interrupts,
}

impl Metric {
    /// The text of [`Ratio::metric`](crate::result::Ratio::metric): the path of the value in the results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::Cycles => "cycles_per_io.total",
            Self::DeviceAndKernel => DEVICE_AND_KERNEL,
            Self::LatencyMean => "latency_us.mean",
            Self::LatencyP50 => "latency_us.p50",
            Self::LatencyP99 => "latency_us.p99",
            Self::Interrupts => "interrupts_per_io",
        }
    }

    /// Which ratios of two rows of one document are equal: within 2%, or 10% of percentiles, as the buckets of a histogram of latencies
    /// are 6% wide.
    #[must_use]
    pub const fn criterion(self) -> Criterion {
        let margin = if self.is_percentile() { 0.10 } else { 0.02 };
        Criterion { margin, better: self.better() }
    }

    /// Which values are better.
    #[must_use]
    pub const fn better(self) -> Better {
        match self {
            Self::Iops => Better::Higher,
            Self::Cycles
            | Self::DeviceAndKernel
            | Self::LatencyMean
            | Self::LatencyP50
            | Self::LatencyP99
            | Self::Interrupts => Better::Lower,
        }
    }

    /// Whether it is a percentile of a histogram.
    #[must_use]
    pub const fn is_percentile(self) -> bool {
        matches!(self, Self::LatencyP50 | Self::LatencyP99)
    }
}

/// The baseline of a row; `None`: not compared.
#[derive(Clone, Debug)]
pub enum Baseline {
    /// Another candidate over the same disk.
    Candidate(fn(Candidate) -> Option<Candidate>),
    /// The same candidate over another disk: its index, by the index of the row's disk.
    Disk(Vec<Option<usize>>),
}

impl Baseline {
    /// The row that this one is compared with.
    #[must_use]
    pub fn of(&self, row: &Combination) -> Option<Combination> {
        let Combination { candidate, load } = *row;
        match self {
            Self::Candidate(baseline) => Some(Combination { candidate: baseline(candidate)?, load }),
            Self::Disk(baselines) => {
                let disk = (*baselines.get(load.disk)?)?;
                Some(Combination { candidate, load: Load { disk, ..load } })
            }
        }
    }
}

/// A comparison of rows with other rows of the same accesses.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The baseline of each row.
    pub baseline: Baseline,
    /// The metrics that are compared.
    pub metrics: &'static [Metric],
}

impl Comparison {
    /// Every adapter with the row `native` of the same disk.
    pub const AGAINST_NATIVE: Self = Self {
        baseline: Baseline::Candidate(|candidate| {
            (candidate != Candidate::Native).then_some(Candidate::Native)
        }),
        metrics: &[Metric::DeviceAndKernel],
    };
}

/// `pvscsi against native`, or where only the policies differ, `oio against off`.
#[must_use]
pub fn name(candidate: Candidate, baseline: Candidate) -> String {
    let adapter = |candidate| match candidate {
        Candidate::Native => "native",
        Candidate::Adapter(adapter, _) => adapter.as_str(),
    };
    let policy = |candidate| match candidate {
        Candidate::Native => None,
        Candidate::Adapter(_, coalescing) => Some(Coalescing::as_str(coalescing)),
    };
    match (adapter(candidate), adapter(baseline), policy(candidate), policy(baseline)) {
        (one, other, Some(policy), Some(base)) if one == other => format!("{one}: {policy} against {base}"),
        (one, other, ..) => format!("{one} against {other}"),
    }
}

#[cfg(test)]
mod tests {

    use facts::names::Adapter;

    use super::*;
    use crate::axes::Access;

    #[test]
    fn names_say_what_differs() {
        let pvscsi = |coalescing| Candidate::Adapter(Adapter::Pvscsi, coalescing);
        let lsi = Candidate::Adapter(Adapter::Lsi, Coalescing::Oio);
        assert_eq!(name(pvscsi(Coalescing::Oio), pvscsi(Coalescing::Off)), "pvscsi: oio against off");
        assert_eq!(name(pvscsi(Coalescing::Oio), lsi), "pvscsi against lsi");
        assert_eq!(name(lsi, Candidate::Native), "lsi against native");
    }

    #[test]
    fn a_baseline_has_the_same_load_but_for_the_disk() {
        let load = Load {
            disk: 1,
            access: Access::RandRead,
            read_percent: 100,
            random_percent: 100,
            mix: None,
            block_size: 4096,
            queue_depth: 32,
            workers: 1,
        };
        let native = Combination { candidate: Candidate::Native, load };
        let lsi = Combination { candidate: Candidate::Adapter(Adapter::Lsi, Coalescing::Oio), load };
        let against_native = Comparison::AGAINST_NATIVE.baseline;
        assert_eq!((against_native.of(&lsi), against_native.of(&native)), (Some(native), None));
        let against_first = Baseline::Disk(vec![None, Some(0)]);
        let first = Combination { load: Load { disk: 0, ..load }, ..lsi };
        assert_eq!((against_first.of(&lsi), against_first.of(&first)), (Some(first), None));
        assert_eq!(against_first.of(&Combination { load: Load { disk: 2, ..load }, ..lsi }), None);
    }
}
