//! Statistics as OpenMetrics text (OpenMetrics 1.0.0).

use std::fmt;
use std::time::Duration;

use paradisk_disk_formats::{Histogram, KindMetrics, QueueMetrics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::document::policy;
use super::{AdapterSnapshot, DiskSnapshot, Snapshot};

/// The content type of the text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bounds of the latencies: powers of two of nanoseconds, which are bounds of [`Histogram`], from 2^10 (1 us) to 2^34 (17 s).
const LATENCY_BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;

/// Labels of a sample.
type Labels = Vec<(&'static str, String)>;

/// The text.
pub(super) fn encode(snapshot: Snapshot) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exposition(snapshot)));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Exposition(Snapshot);

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        let info = [(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], ())];
        families.info("paradisk_build", "The version of paradisk", &info)?;
        self.disks(&mut families)?;
        self.queues(&mut families)?;
        self.adapters(&mut families)
    }
}

impl Exposition {
    fn disks(&self, families: &mut Families<'_>) -> fmt::Result {
        let labels = |disk: &DiskSnapshot| vec![("disk", disk.id.clone()), ("adapter", disk.adapter.clone())];
        let all = self.0.disks.iter();
        let info =
            all.clone().map(|disk| ([labels(disk), vec![("format", disk.format.clone())]].concat(), ()));
        families.info("paradisk_disk", "A disk and its format", &info.collect::<Vec<_>>())?;
        let capacities: Vec<_> = all.clone().map(|disk| (labels(disk), disk.capacity)).collect();
        families.gauge("paradisk_disk_capacity", "Size of the disk", Some(&Unit::Bytes), &capacities)?;
        let maps: Vec<_> = all.filter_map(|disk| Some((labels(disk), disk.map_memory?))).collect();
        let of = |value: fn(&facts::disk::MapMemory) -> u64| -> Vec<_> {
            maps.iter().map(|(labels, map)| (labels.clone(), value(map))).collect()
        };
        let bytes = Some(&Unit::Bytes);
        families.gauge("paradisk_disk_map", "Memory of the block map", bytes, &of(|map| map.bytes))?;
        families.gauge(
            "paradisk_disk_map_peak",
            "The most memory of the block map",
            bytes,
            &of(|map| map.peak),
        )?;
        families.gauge("paradisk_disk_map_budget", "Limit of that memory", bytes, &of(|map| map.budget))?;
        let help = "Parts of the block map that were evicted for others";
        families.counter("paradisk_disk_map_evictions", help, None, &of(|map| map.evictions))
    }

    /// Samples of each queue.
    fn of_queues<V>(&self, value: impl Fn(&QueueMetrics) -> V) -> Vec<(Labels, V)> {
        let of = |disk: &DiskSnapshot| {
            let sample = |(number, queue): (usize, &QueueMetrics)| (queue_labels(disk, number), value(queue));
            disk.queues.iter().enumerate().map(sample).collect::<Vec<_>>()
        };
        self.0.disks.iter().flat_map(of).collect()
    }

    /// Samples of each queue and each kind of its requests.
    fn of_kinds<V>(&self, value: impl Fn(&KindMetrics) -> V) -> Vec<(Labels, V)> {
        let of = |(labels, kinds): (Labels, [(&'static str, KindMetrics); 5])| {
            kinds.map(|(name, kind)| ([&labels[..], &[("kind", name.to_owned())]].concat(), value(&kind)))
        };
        self.of_queues(kinds).into_iter().flat_map(of).collect()
    }

    fn queues(&self, families: &mut Families<'_>) -> fmt::Result {
        type Value = fn(&QueueMetrics) -> u64;
        let bytes = Some(&Unit::Bytes);
        let counters: [(&str, &str, Option<&Unit>, Value); 12] = [
            ("paradisk_disk_reads", "Reads completed", None, |queue| queue.read.completed),
            ("paradisk_disk_writes", "Writes completed", None, |queue| queue.write.completed),
            ("paradisk_disk_flushes", "Flushes completed", None, |queue| queue.flush.completed),
            ("paradisk_disk_discards", "Discards completed", None, |queue| queue.discard.completed),
            ("paradisk_disk_write_zeroes", "Writes of zeros completed", None, |queue| {
                queue.write_zeroes.completed
            }),
            ("paradisk_disk_read", "Bytes read", bytes, |queue| queue.read.bytes),
            ("paradisk_disk_write", "Bytes written", bytes, |queue| queue.write.bytes),
            ("paradisk_disk_discard", "Bytes discarded", bytes, |queue| queue.discard.bytes),
            ("paradisk_disk_write_zeroes", "Bytes zeroed", bytes, |queue| queue.write_zeroes.bytes),
            ("paradisk_disk_submits", "System calls to submit requests or wait", None, |queue| queue.submits),
            ("paradisk_disk_bounced_requests", "Requests that needed a bounce buffer", None, |queue| {
                queue.bounced
            }),
            (
                "paradisk_disk_slow_requests",
                "Jobs of helper threads: preparations, flushes, discards, zeroing",
                None,
                |queue| queue.slow,
            ),
        ];
        for (name, help, unit, value) in counters {
            families.counter(name, help, unit, &self.of_queues(value))?;
        }
        families.counter(
            "paradisk_disk_errors",
            "Requests failed",
            None,
            &self.of_kinds(|kind| kind.errors),
        )?;
        let in_flight = self.of_queues(|queue| queue.in_flight);
        families.gauge("paradisk_disk_in_flight", "Requests in flight", None, &in_flight)?;
        let most = self.of_queues(|queue| queue.max_in_flight);
        families.gauge("paradisk_disk_in_flight_max", "The most requests in flight so far", None, &most)?;
        // Kinds without requests have no samples: a guest may never use them.
        let measured = |(labels, latency): (Labels, Histogram)| {
            (latency.count() > 0).then(|| (labels, Buckets::of_latencies(&latency)))
        };
        let latencies = self.of_kinds(|kind| kind.latency.clone()).into_iter().filter_map(measured);
        let latencies: Vec<_> = latencies.collect();
        let help = "Latency of requests, from the disk's queue and back";
        families.histogram("paradisk_disk_request", help, Some(&Unit::Seconds), &latencies)?;
        let batches = self.of_queues(Buckets::of_batches);
        families.histogram("paradisk_disk_batch_requests", "Requests submitted together", None, &batches)
    }

    fn adapters(&self, families: &mut Families<'_>) -> fmt::Result {
        type Value = fn(&AdapterSnapshot) -> u64;
        let counters: [(&str, &str, Value); 6] = [
            ("paradisk_adapter_requests", "Requests fetched from the guest", |adapter| {
                adapter.stats.requests
            }),
            ("paradisk_adapter_completions", "Requests ended", |adapter| adapter.stats.completions),
            ("paradisk_adapter_errors", "Completions whose status was not good", |adapter| {
                adapter.stats.errors
            }),
            ("paradisk_adapter_interrupts", "Interrupts sent to the guest", |adapter| {
                adapter.stats.interrupts
            }),
            ("paradisk_adapter_doorbells", "Doorbell events taken", |adapter| adapter.stats.doorbells),
            ("paradisk_adapter_submits", "System calls of its disks' queues", |adapter| {
                adapter.stats.submits
            }),
        ];
        for (name, help, value) in counters {
            let samples: Vec<_> = self
                .0
                .adapters
                .iter()
                .map(|adapter| (vec![("adapter", adapter.name.clone())], value(adapter)))
                .collect();
            families.counter(name, help, None, &samples)?;
        }
        let of = |adapter: &AdapterSnapshot| {
            let vector = |(number, state)| {
                let labels = vec![("adapter", adapter.name.clone()), ("vector", usize::to_string(&number))];
                (labels, state)
            };
            adapter.moderation.clone().into_iter().enumerate().map(vector).collect::<Vec<_>>()
        };
        let vectors: Vec<(Labels, _)> = self.0.adapters.iter().flat_map(of).collect();
        let info: Vec<_> = vectors
            .iter()
            .map(|(labels, state)| ([&labels[..], &[("policy", policy(state).to_owned())]].concat(), ()))
            .collect();
        families.info("paradisk_adapter_moderation", "How interrupts are moderated", &info)?;
        let ratios: Vec<_> = vectors
            .iter()
            .map(|(labels, state)| {
                (labels.clone(), f64::from(state.signals) / f64::from(state.completions.max(1)))
            })
            .collect();
        let help = "Share of completions that interrupt while enough commands are in flight";
        families.gauge("paradisk_adapter_moderation_ratio", help, None, &ratios)?;
        let held: Vec<_> =
            vectors.iter().map(|(labels, state)| (labels.clone(), u64::from(state.held_back))).collect();
        families.gauge(
            "paradisk_adapter_moderation_held_back",
            "1 while a completion waits for its interrupt",
            None,
            &held,
        )
    }
}

fn queue_labels(disk: &DiskSnapshot, number: usize) -> Labels {
    vec![("disk", disk.id.clone()), ("adapter", disk.adapter.clone()), ("queue", number.to_string())]
}

fn kinds(queue: &QueueMetrics) -> [(&'static str, KindMetrics); 5] {
    [
        ("read", queue.read.clone()),
        ("write", queue.write.clone()),
        ("flush", queue.flush.clone()),
        ("discard", queue.discard.clone()),
        ("write_zeroes", queue.write_zeroes.clone()),
    ]
}

/// A histogram: upper bounds, with the count of each bucket.
struct Buckets {
    sum: f64,
    counts: Vec<(f64, u64)>,
}

impl Buckets {
    fn of_latencies(latency: &Histogram) -> Self {
        let mut counts: Vec<_> = LATENCY_BOUNDS
            .map(|power| Duration::from_nanos(1 << power))
            .chain([Duration::MAX])
            .map(|bound| (bound, 0))
            .collect();
        for (bound, count) in latency.buckets() {
            if let Some((_, sum)) = counts.iter_mut().find(|(most, _)| bound <= *most) {
                *sum += count;
            }
        }
        let seconds =
            |bound: Duration| if bound == Duration::MAX { f64::INFINITY } else { bound.as_secs_f64() };
        Self {
            sum: latency.sum().as_secs_f64(),
            counts: counts.into_iter().map(|(bound, count)| (seconds(bound), count)).collect(),
        }
    }

    fn of_batches(queue: &QueueMetrics) -> Self {
        let counts = queue.batches.iter().map(|(most, count)| (*most as f64, *count));
        // The sum and the buckets are read one after the other, so they may differ by batches that were submitted in between.
        Self { sum: queue.batched as f64, counts: counts.chain([(f64::INFINITY, 0)]).collect() }
    }
}

/// Writes families of metrics. A family without samples is left out.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn family<V>(
        &mut self,
        (name, help, unit, kind): (&str, &str, Option<&Unit>, MetricType),
        samples: &[(Labels, V)],
        sample: impl Fn(MetricEncoder<'_>, &V) -> fmt::Result,
    ) -> fmt::Result {
        if samples.is_empty() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, unit, kind)?;
        samples.iter().try_for_each(|(labels, value)| sample(family.encode_family(labels)?, value))
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        samples: &[(Labels, u64)],
    ) -> fmt::Result {
        let write = |mut encoder: MetricEncoder<'_>, value: &u64| {
            encoder.encode_counter::<NoLabelSet, _, u64>(value, None)
        };
        self.family((name, help, unit, MetricType::Counter), samples, write)
    }

    fn gauge<V: prometheus_client::encoding::EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        samples: &[(Labels, V)],
    ) -> fmt::Result {
        let write = |mut encoder: MetricEncoder<'_>, value: &V| encoder.encode_gauge(value);
        self.family((name, help, unit, MetricType::Gauge), samples, write)
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        samples: &[(Labels, Buckets)],
    ) -> fmt::Result {
        let write = |mut encoder: MetricEncoder<'_>, buckets: &Buckets| {
            // The count must agree with the buckets: a counter read before or after them may not.
            let count = buckets.counts.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(buckets.sum, count, &buckets.counts, None)
        };
        self.family((name, help, unit, MetricType::Histogram), samples, write)
    }

    fn info(&mut self, name: &str, help: &str, samples: &[(Labels, ())]) -> fmt::Result {
        if samples.is_empty() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        samples.iter().try_for_each(|(labels, ())| family.encode_info(labels))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use facts::disk::MapMemory;
    use paradisk_devices::Stats;
    use paradisk_disk_formats::{Disk, Layered, NullDisk, Op, QueueConfig, Request, SectorSize};

    use super::*;

    /// A disk of this id after so many flushes and a failed discard, whose latencies are measured.
    fn disk(id: &str, flushes: u64) -> DiskSnapshot {
        let null = Arc::new(NullDisk::new(1 << 20, SectorSize::B512).unwrap());
        let metered = Layered::new(null).metered(facts::tsc::tsc_hz());
        let metrics = metered.metrics().unwrap();
        metrics.time_requests(true);
        let mut queue = metered.queue(&QueueConfig { depth: 16, ..QueueConfig::default() }).unwrap();
        let flush = Request { tag: 0, op: Op::Flush, offset: 0, len: 0, bufs: &[] };
        (0..flushes).for_each(|_| queue.push(&flush).unwrap());
        queue.push(&Request { op: Op::Discard, offset: 2 << 20, len: 512, ..flush }).unwrap();
        queue.submit();
        queue.reap(&mut Vec::new());
        let map_memory = MapMemory { bytes: 1, peak: 2, budget: 3, evictions: 4 };
        DiskSnapshot {
            id: id.to_owned(),
            adapter: "pvscsi0".to_owned(),
            format: "vhdx dynamic".to_owned(),
            capacity: 1 << 20,
            map_memory: Some(map_memory),
            queues: metrics.queues(),
        }
    }

    fn snapshot(id: &str) -> Snapshot {
        let stats =
            Stats { requests: 7, completions: 6, errors: 1, interrupts: 2, doorbells: 3, ..Stats::default() };
        let adapter = AdapterSnapshot { name: "pvscsi0".to_owned(), stats, moderation: Vec::new() };
        Snapshot { disks: vec![disk(id, 3), disk("pvscsi0:1", 0)], adapters: vec![adapter] }
    }

    /// The value of the sample with this name and these labels.
    #[track_caller]
    fn value<'a>(text: &'a str, sample: &str) -> &'a str {
        let found = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {sample} in:\n{text}"))
    }

    #[test]
    fn counters_have_their_suffix_type_help_and_unit() {
        let text = encode(snapshot("pvscsi0:0"));
        let labels = r#"{disk="pvscsi0:0",adapter="pvscsi0",queue="0"}"#;
        assert_eq!(value(&text, &format!("paradisk_disk_flushes_total{labels}")), "3");
        assert_eq!(value(&text, &format!("paradisk_disk_in_flight_max{labels}")), "4");
        let kind = r#"{disk="pvscsi0:0",adapter="pvscsi0",queue="0",kind="discard"}"#;
        assert_eq!(value(&text, &format!("paradisk_disk_errors_total{kind}")), "1");
        assert_eq!(value(&text, r#"paradisk_disk_map_bytes{disk="pvscsi0:1",adapter="pvscsi0"}"#), "1");
        assert_eq!(value(&text, r#"paradisk_adapter_interrupts_total{adapter="pvscsi0"}"#), "2");
        for line in [
            "# TYPE paradisk_disk_read_bytes counter",
            "# UNIT paradisk_disk_read_bytes bytes",
            "# HELP paradisk_disk_read_bytes Bytes read",
            "# TYPE paradisk_disk_request_seconds histogram",
            "# UNIT paradisk_disk_request_seconds seconds",
            "# TYPE paradisk_disk_in_flight gauge",
        ] {
            assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}:\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1);
        // Without disks and adapters, too.
        assert!(encode(Snapshot::default()).ends_with("\n# EOF\n"));
    }

    #[test]
    fn the_samples_of_a_family_follow_its_head() {
        let text = encode(snapshot("a"));
        let mut family = "";
        let mut seen = Vec::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            match line.strip_prefix("# HELP ") {
                Some(help) => {
                    family = help.split(' ').next().unwrap();
                    assert!(!seen.contains(&family), "{family} twice");
                    seen.push(family);
                }
                None if line.starts_with('#') => assert_eq!(line.split(' ').nth(2), Some(family)),
                None => assert!(line.starts_with(family), "{line} in {family}"),
            }
        }
        assert!(seen.len() > 20);
    }

    #[test]
    fn label_values_are_escaped() {
        let text = encode(snapshot("a\"b\\c\nd"));
        let escaped = r#"paradisk_disk_flushes_total{disk="a\"b\\c\nd",adapter="pvscsi0",queue="0"}"#;
        assert_eq!(value(&text, escaped), "3");
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_the_count() {
        let text = encode(snapshot("a"));
        for (name, labels, count) in [
            ("paradisk_disk_request_seconds", r#"disk="a",adapter="pvscsi0",queue="0",kind="flush""#, 3),
            ("paradisk_disk_batch_requests", r#"disk="a",adapter="pvscsi0",queue="0""#, 1),
        ] {
            let prefix = format!("{name}_bucket{{");
            let buckets: Vec<(f64, u64)> = text
                .lines()
                .filter(|line| {
                    line.starts_with(&prefix) && line.contains(labels) && !line.contains("discard")
                })
                .map(|line| {
                    let bound = line.split("le=\"").nth(1).unwrap().split('"').next().unwrap();
                    (
                        bound.replace("+Inf", "inf").parse().unwrap(),
                        line.rsplit(' ').next().unwrap().parse().unwrap(),
                    )
                })
                .collect();
            assert!(
                buckets.len() > 10 && buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
                "{buckets:?}"
            );
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)));
            assert_eq!(value(&text, &format!("{name}_count{{{labels}}}")), count.to_string());
            assert!(value(&text, &format!("{name}_sum{{{labels}}}")).parse::<f64>().unwrap() > 0.0);
        }
        // The three flushes and the discard went together: more than 2, up to 4.
        let batch = |bound: &str| {
            value(&text, &format!(r#"paradisk_disk_batch_requests_bucket{{le="{bound}",disk="a",adapter="pvscsi0",queue="0"}}"#)).to_owned()
        };
        assert_eq!((batch("2.0"), batch("4.0")), ("0".to_owned(), "1".to_owned()));
    }
}
