//! The results document: JSON schema 1. Scripts read it, so names of fields keep their meaning.

mod read;
mod timing;

use facts::disk::{DiskFacts, MapMemory};
use facts::host::Host;
use serde::{Deserialize, Serialize};

pub use read::ReadError;
pub use timing::Timing;

use crate::confidence::Confidence;
use crate::stat::Stat;

/// [`RunResult::adapter`] and [`RunResult::engine`] of a row without an adapter.
pub(crate) const NATIVE: &str = "native";

/// The results of one invocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`facts::SCHEMA`].
    pub schema: u32,
    /// The suite that was run, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// The host of the measurement.
    pub host: Host,
    /// One for each combination that ran.
    pub results: Vec<RunResult>,
    /// Comparisons pair by pair.
    pub ratios: Vec<Ratio>,
    /// Times of whole operations on image files (suite `creation`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timings: Vec<Timing>,
    /// The command of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Notes for readers: skipped and failed parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Document {
    /// A document without results.
    #[must_use]
    pub fn empty(suite: Option<String>, host: Host) -> Self {
        Self {
            schema: facts::SCHEMA,
            suite,
            host,
            results: Vec::new(),
            ratios: Vec::new(),
            timings: Vec::new(),
            command: None,
            notes: Vec::new(),
        }
    }

    /// Add the rows and ratios of another document.
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        self.results.extend(other.results);
        self.ratios.extend(other.ratios);
        self.timings.extend(other.timings);
        self
    }
}

/// The results of one combination over all its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Adapter, or `native`: the disk without an adapter.
    pub adapter: String,
    /// The disk.
    pub disk: DiskFacts,
    /// `kvm`, `harness`, or `native`.
    pub engine: String,
    /// `randread`, `randwrite`, `read`, `write`, `randrw`, `mix`.
    pub rw: String,
    /// Name of an application's load ([`Mix::name`](crate::mix::Mix::name)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Percentage of reads.
    pub read_percent: u32,
    /// Percentage of random offsets, for `mix`; the others continue the previous access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_percent: Option<u32>,
    /// Bytes of an access.
    pub block_size: u32,
    /// Accesses in flight of each worker.
    pub queue_depth: u32,
    /// Independent streams.
    pub workers: u32,
    /// Coalescing policy; none for `native`, which has no interrupts.
    pub coalescing: Option<String>,
    /// Number of counted runs.
    pub runs: u32,
    /// Completed accesses over all runs; 0 in old documents.
    #[serde(default)]
    pub accesses: u64,
    /// Accesses per second.
    pub iops: Stat,
    /// Million bytes per second.
    pub mb_per_s: Stat,
    /// Latencies over all runs.
    pub latency_us: Latency,
    /// CPU cycles for each access.
    pub cycles_per_io: Cycles,
    /// Interrupts that the adapter signalled, median.
    pub interrupts_per_io: f64,
    /// Exits of the virtual CPUs, median.
    pub exits_per_io: f64,
    /// Doorbell events that the adapter took, median.
    pub doorbells_per_io: f64,
    /// Accesses that failed, over all runs.
    pub errors: u64,
    /// The disk's block map, if it has one, after all combinations have run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map_memory: Option<MapMemory>,
    /// Values of each run; none in old documents.
    #[serde(default, skip_serializing_if = "RunValues::is_empty")]
    pub values: RunValues,
}

/// Values of each run, in the order of the rounds, for comparison with other documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunValues {
    /// Accesses per second.
    pub iops: Vec<f64>,
    /// Total CPU cycles for each access.
    pub cycles_per_io: Vec<f64>,
    /// 99th percentile of the latencies in microseconds.
    pub latency_p99_us: Vec<f64>,
}

impl RunValues {
    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iops.is_empty() && self.cycles_per_io.is_empty() && self.latency_p99_us.is_empty()
    }
}

/// Latency from submission until the completion is seen, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Half of the accesses took no longer.
    pub p50: f64,
    /// 90% of the accesses took no longer. None in old documents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// 99% of the accesses took no longer.
    pub p99: f64,
    /// 99.9% of the accesses took no longer.
    pub p999: f64,
    /// 99.99% of the accesses took no longer. None in old documents. With fewer than 10,000 accesses it is the longest
    /// latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p9999: Option<f64>,
}

/// CPU cycles for each access, by component.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cycles {
    /// Total.
    pub total: Stat,
    /// Driver and load generator.
    pub guest: Stat,
    /// Exits and entries of the guest.
    pub exit: Stat,
    /// Adapter, SCSI target, format, queue; user mode.
    pub device: Stat,
    /// Kernel, on behalf of the device.
    pub kernel: Stat,
}

/// A comparison: candidate over baseline, in pairs of the same round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Name of the comparison.
    pub name: String,
    /// [`RunResult::label`] of the divisor.
    pub baseline: String,
    /// [`RunResult::label`] of the dividend.
    pub candidate: String,
    /// The metric.
    pub metric: String,
    /// Median over the pairs.
    pub median: f64,
    /// Smallest of the pairs.
    pub min: f64,
    /// Largest of the pairs.
    pub max: f64,
    /// Interval and verdict. None in old documents, and if a pair's ratio is zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
}

impl Ratio {
    /// The spread of the pairs.
    #[must_use]
    pub const fn stat(&self) -> Stat {
        Stat { median: self.median, min: self.min, max: self.max }
    }

    /// `1.25 (1.12-1.50) [1.13-1.45] slower`: median, spread, interval and verdict.
    #[must_use]
    pub fn text(&self, decimals: usize) -> String {
        let spread = self.spread(decimals);
        self.judged(decimals).map_or_else(|| spread.clone(), |judged| format!("{spread} {judged}"))
    }

    /// `1.25 [1.13-1.45] slower`: without the spread, for wide tables.
    #[must_use]
    pub fn short_text(&self, decimals: usize) -> String {
        let judged = self.judged(decimals).map(|judged| format!("{:.decimals$} {judged}", self.median));
        judged.unwrap_or_else(|| self.spread(decimals))
    }

    fn spread(&self, decimals: usize) -> String {
        let Self { median, min, max, .. } = self;
        format!("{median:.decimals$} ({min:.decimals$}-{max:.decimals$})")
    }

    fn judged(&self, decimals: usize) -> Option<String> {
        let Confidence { low, high, verdict, .. } = self.confidence?;
        Some(format!("[{low:.decimals$}-{high:.decimals$}] {}", verdict.as_str()))
    }
}

/// [`Ratio::metric`] of device and kernel cycles for each access.
pub const DEVICE_AND_KERNEL: &str = "device+kernel cycles_per_io";

impl RunResult {
    /// A name that is unique in the document.
    #[must_use]
    pub fn label(&self) -> String {
        let mut label =
            format!("{}/{}/{} of {}", self.engine, self.adapter, self.disk.name(), self.disk.capacity);
        if let Some(path) = &self.disk.path {
            label += &format!(" {path}");
        }
        match &self.workload {
            Some(name) => label += &format!("/{name} ({})", self.rw),
            None => label += &format!("/{}", self.rw),
        }
        if self.rw == "randrw" || self.rw == "mix" {
            label += &format!(" {}%", self.read_percent);
        }
        if let Some(percent) = self.random_percent {
            label += &format!(" {percent}% random");
        }
        label += &format!("/bs {}/qd {}/workers {}", self.block_size, self.queue_depth, self.workers);
        if let Some(coalescing) = &self.coalescing {
            label += &format!("/{coalescing}");
        }
        label
    }

    /// The [`label`](Self::label) without the path of the disk, because paths of temporary disks change.
    #[must_use]
    pub fn label_without_path(&self) -> String {
        let disk = DiskFacts { path: None, ..self.disk.clone() };
        Self { disk, ..self.clone() }.label()
    }
}

#[cfg(test)]
pub(crate) mod tests {

    use facts::SCHEMA;
    use facts::host::{CyclesSource, Kvm};

    use super::*;
    use crate::confidence::Verdict;

    pub(crate) fn sample() -> Document {
        let stat = |median| Stat { median, min: median - 1.0, max: median + 1.0 };
        let result = RunResult {
            adapter: "pvscsi".into(),
            disk: DiskFacts {
                format: "vhd".into(),
                subformat: Some("fixed".into()),
                path: Some("/tmp/a, <b>.vhd".into()),
                capacity: 1 << 27,
                options: Vec::new(),
            },
            engine: "kvm".into(),
            rw: "randread".into(),
            workload: None,
            read_percent: 100,
            random_percent: None,
            block_size: 4096,
            queue_depth: 32,
            workers: 1,
            coalescing: Some("batch".into()),
            runs: 5,
            accesses: 2_500_000,
            iops: stat(250_000.0),
            mb_per_s: stat(1024.0),
            latency_us: Latency {
                mean: 80.0,
                p50: 75.0,
                p90: Some(120.0),
                p99: 150.0,
                p999: 300.0,
                p9999: Some(500.0),
            },
            cycles_per_io: Cycles {
                total: stat(9000.0),
                guest: stat(3000.0),
                exit: stat(1000.0),
                device: stat(900.0),
                kernel: stat(4100.0),
            },
            interrupts_per_io: 0.05,
            exits_per_io: 0.1,
            doorbells_per_io: 0.04,
            errors: 0,
            map_memory: None,
            values: RunValues {
                iops: vec![250_000.0; 5],
                cycles_per_io: vec![9000.0, 8999.0, 9001.0, 9000.0, 9000.0],
                latency_p99_us: vec![150.0; 5],
            },
        };
        let mut native = result.clone();
        native.adapter = "native".into();
        native.engine = "native".into();
        native.coalescing = None;
        let ratio = Ratio {
            name: "pvscsi over native".into(),
            baseline: native.label(),
            candidate: result.label(),
            metric: DEVICE_AND_KERNEL.into(),
            median: 1.25,
            min: 1.125,
            max: 1.5,
            confidence: Some(Confidence {
                low: 1.125,
                high: 1.5,
                margin: 0.02,
                verdict: Verdict::Slower,
                runs_to_decide: None,
            }),
        };
        Document {
            schema: SCHEMA,
            suite: None,
            host: Host {
                cpu: "Some CPU".into(),
                cores: 2,
                tsc_hz: 2_600_000_000,
                kernel: "6.18".into(),
                kvm: Kvm::Nested,
                cycles_source: CyclesSource::CpuTimeXTsc,
            },
            results: vec![native, result],
            ratios: vec![ratio],
            timings: Vec::new(),
            command: None,
            notes: Vec::new(),
        }
    }

    fn keys(value: &serde_json::Value) -> Vec<&str> {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn field_names_are_those_of_the_contract() {
        let value = serde_json::to_value(sample()).unwrap();
        assert_eq!(keys(&value), ["host", "ratios", "results", "schema"]);
        assert_eq!(value["schema"], 1);
        assert_eq!(keys(&value["host"]), ["cores", "cpu", "cycles_source", "kernel", "kvm", "tsc_hz"]);
        assert_eq!(value["host"]["kvm"], "nested");
        assert_eq!(value["host"]["cycles_source"], "cpu_time_x_tsc");
        let result = &value["results"][1];
        assert_eq!(
            keys(result),
            [
                "accesses",
                "adapter",
                "block_size",
                "coalescing",
                "cycles_per_io",
                "disk",
                "doorbells_per_io",
                "engine",
                "errors",
                "exits_per_io",
                "interrupts_per_io",
                "iops",
                "latency_us",
                "mb_per_s",
                "queue_depth",
                "read_percent",
                "runs",
                "rw",
                "values",
                "workers"
            ]
        );
        assert_eq!(keys(&result["disk"]), ["capacity", "format", "options", "path", "subformat"]);
        assert_eq!(keys(&result["iops"]), ["max", "median", "min"]);
        assert_eq!(keys(&result["latency_us"]), ["mean", "p50", "p90", "p99", "p999", "p9999"]);
        assert_eq!(keys(&result["cycles_per_io"]), ["device", "exit", "guest", "kernel", "total"]);
        assert_eq!(
            keys(&value["ratios"][0]),
            ["baseline", "candidate", "confidence", "max", "median", "metric", "min", "name"]
        );
        assert_eq!(keys(&result["values"]), ["cycles_per_io", "iops", "latency_p99_us"]);
        let confidence = &value["ratios"][0]["confidence"];
        assert_eq!(keys(confidence), ["high", "low", "margin", "verdict"]);
        assert_eq!(confidence["verdict"], "slower");
    }

    #[test]
    fn a_document_survives_the_round_trip() {
        let text = serde_json::to_string_pretty(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), sample());
    }

    #[test]
    fn documents_of_before_there_were_intervals_are_read() {
        let mut value = serde_json::to_value(sample()).unwrap();
        value["results"][0].as_object_mut().unwrap().remove("values");
        value["ratios"][0].as_object_mut().unwrap().remove("confidence");
        for percentile in ["p90", "p9999"] {
            value["results"][0]["latency_us"].as_object_mut().unwrap().remove(percentile);
        }
        let document: Document = serde_json::from_value(value).unwrap();
        assert!(document.results[0].values.is_empty());
        assert_eq!(document.results[0].latency_us.p9999, None);
        assert_eq!(document.ratios[0].text(2), "1.25 (1.12-1.50)");
        assert_eq!(document.ratios[0].short_text(2), "1.25 (1.12-1.50)");
        assert_eq!(sample().ratios[0].text(2), "1.25 (1.12-1.50) [1.12-1.50] slower");
    }

    #[test]
    fn labels_tell_results_apart() {
        let document = sample();
        assert_ne!(document.results[0].label(), document.results[1].label());
        for change in [
            |result: &mut RunResult| result.workers = 2,
            |result: &mut RunResult| result.disk.capacity += 512,
            |result: &mut RunResult| result.disk.options.push("direct".into()),
            |result: &mut RunResult| result.workload = Some("OLTP".into()),
            |result: &mut RunResult| result.random_percent = Some(20),
        ] {
            let mut other = document.results[1].clone();
            change(&mut other);
            assert_ne!(other.label(), document.results[1].label());
        }
    }
}
