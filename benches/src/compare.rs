//! What is compared with what: candidates with a baseline of the same load, by one value of their runs.

use crate::axes::Coalescing;
use crate::matrix::Candidate;
use crate::result::DEVICE_AND_KERNEL;

/// A value that every run gives.
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
    /// What [`Ratio::metric`](crate::result::Ratio::metric) says: the place of the value in the results.
    #[must_use]
    pub const fn word(self) -> &'static str {
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
}

/// Rows against other rows of the same load.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// What a candidate is compared with; `None`: nothing.
    pub baseline: fn(Candidate) -> Option<Candidate>,
    /// By which values.
    pub metrics: &'static [Metric],
}

impl Comparison {
    /// Every adapter with the disk that has none.
    pub const AGAINST_NATIVE: Self = Self {
        baseline: |candidate| (candidate != Candidate::Native).then_some(Candidate::Native),
        metrics: &[Metric::DeviceAndKernel],
    };
}

/// `pvscsi against native`, or where only the policies differ, `oio against off`.
#[must_use]
pub fn name(candidate: Candidate, baseline: Candidate) -> String {
    let adapter = |candidate| match candidate {
        Candidate::Native => "native",
        Candidate::Adapter(adapter, _) => adapter.word(),
    };
    let policy = |candidate| match candidate {
        Candidate::Native => None,
        Candidate::Adapter(_, coalescing) => Some(Coalescing::word(coalescing)),
    };
    match (adapter(candidate), adapter(baseline), policy(candidate), policy(baseline)) {
        (one, other, Some(policy), Some(base)) if one == other => format!("{one}: {policy} against {base}"),
        (one, other, ..) => format!("{one} against {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axes::Adapter;

    #[test]
    fn names_say_what_differs() {
        let pvscsi = |coalescing| Candidate::Adapter(Adapter::Pvscsi, coalescing);
        let lsi = Candidate::Adapter(Adapter::Lsi, Coalescing::Oio);
        assert_eq!(name(pvscsi(Coalescing::Oio), pvscsi(Coalescing::Off)), "pvscsi: oio against off");
        assert_eq!(name(pvscsi(Coalescing::Oio), lsi), "pvscsi against lsi");
        assert_eq!(name(lsi, Candidate::Native), "lsi against native");
        let baseline = Comparison::AGAINST_NATIVE.baseline;
        assert_eq!((baseline(lsi), baseline(Candidate::Native)), (Some(Candidate::Native), None));
    }
}
