//! Comparisons of a candidate with a baseline under the same load, by one metric.

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
    /// CPU cycles of adapter, disk and kernel for each access.
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
    /// The value of [`Ratio::metric`](crate::result::Ratio::metric): the path of the metric in the JSON results.
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

    /// The criterion for two rows of one document: equal within 2%. For percentiles within 10%, because the buckets of the latency
    /// histogram are 6% wide.
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

    /// Whether the metric is a percentile of the latency histogram.
    #[must_use]
    pub const fn is_percentile(self) -> bool {
        matches!(self, Self::LatencyP50 | Self::LatencyP99)
    }
}

/// How the baseline of a row is found.
#[derive(Clone, Debug)]
pub enum Baseline {
    /// Another candidate over the same disk. `None`: the row is not compared.
    Candidate(fn(Candidate) -> Option<Candidate>),
    /// The same candidate over another disk: the index of the baseline's disk, by the index of the row's disk.
    Disk(Vec<Option<usize>>),
}

impl Baseline {
    /// The row with which `row` is compared, if any.
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

/// A comparison of rows with baseline rows of the same accesses.
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

/// The name of a comparison: `pvscsi against native`, or `pvscsi: oio against off` if only the policies differ.
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
