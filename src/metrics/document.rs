//! Statistics as JSON.

use std::time::Duration;

use facts::names::Coalescing;
use paradisk_devices::{ModerationState, Stats};
use paradisk_disk_formats::{Histogram, KindMetrics, QueueMetrics};
use serde::Serialize;

use super::{AdapterSnapshot, DiskSnapshot, suppressed};

/// A queue of a disk.
#[derive(Debug, Serialize)]
pub(crate) struct QueueDocument {
    /// The id of the disk, as in the list of disks.
    disk: String,
    adapter: String,
    queue: usize,
    /// The queue exists. The counters of a dropped queue are continued by the next one.
    active: bool,
    read: KindDocument,
    write: KindDocument,
    flush: KindDocument,
    discard: KindDocument,
    write_zeroes: KindDocument,
    in_flight: u64,
    in_flight_max: u64,
    batches: BatchDocument,
    /// System calls that submitted requests or waited for them.
    submits: u64,
    /// Requests that needed a bounce buffer.
    bounced: u64,
    /// Jobs of helper threads: preparations (tables are read, blocks are allocated), flushes, discards and zeroing.
    slow: u64,
}

/// Requests of a kind.
#[derive(Debug, Serialize)]
struct KindDocument {
    count: u64,
    bytes: u64,
    errors: u64,
    /// `None`: not measured.
    latency_us: Option<LatencyDocument>,
}

/// Latencies in microseconds.
#[derive(Debug, Serialize)]
struct LatencyDocument {
    count: u64,
    mean: f64,
    p50: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
    max: Option<f64>,
    /// Buckets that are not empty: inclusive upper bound (`None`: above all bounds), and count.
    buckets: Vec<(Option<f64>, u64)>,
}

/// Requests that were submitted together.
#[derive(Debug, Serialize)]
struct BatchDocument {
    count: u64,
    /// Requests in all batches.
    requests: u64,
    mean: Option<f64>,
    /// For each bucket that is not empty: the maximum size of its batches, and their number.
    sizes: Vec<(u64, u64)>,
}

/// The moderation of an interrupt vector.
#[derive(Debug, Serialize)]
struct ModerationDocument {
    policy: &'static str,
    /// While enough commands are in flight, `signals` of this many completions signal.
    completions: u32,
    /// See `completions`.
    signals: u32,
    held_back: bool,
}

/// An adapter. The statistics of `paradisk run` add its cycles and rates.
#[derive(Debug, Serialize)]
pub(crate) struct AdapterDocument {
    name: String,
    requests: u64,
    pub(crate) completions: u64,
    errors: u64,
    interrupts: u64,
    interrupts_suppressed: u64,
    doorbells: u64,
    submits: u64,
    moderation: Vec<ModerationDocument>,
}

impl AdapterDocument {
    pub(crate) fn new(adapter: &AdapterSnapshot) -> Self {
        let Stats { requests, completions, errors, interrupts, doorbells, submits, .. } = adapter.stats;
        Self {
            name: adapter.name.clone(),
            requests,
            completions,
            errors,
            interrupts,
            interrupts_suppressed: suppressed(&adapter.stats),
            doorbells,
            submits,
            moderation: moderation(&adapter.moderation),
        }
    }
}

/// The moderation of all vectors.
fn moderation(states: &[ModerationState]) -> Vec<ModerationDocument> {
    states.iter().map(ModerationDocument::from).collect()
}

impl From<&ModerationState> for ModerationDocument {
    fn from(state: &ModerationState) -> Self {
        Self {
            policy: policy(state),
            completions: state.completions,
            signals: state.signals,
            held_back: state.held_back,
        }
    }
}

/// The name of a policy.
pub(super) fn policy(state: &ModerationState) -> &'static str {
    let named = Coalescing::ALL.iter().find(|name| paradisk_devices::Policy::from(**name) == state.policy);
    named.map_or("other", |name| name.as_str())
}

/// The queues of all disks.
pub(crate) fn queues(disks: &[DiskSnapshot]) -> Vec<QueueDocument> {
    let of = |disk: &DiskSnapshot| {
        let queues = disk.queues.iter().enumerate();
        queues.map(|(number, queue)| QueueDocument::new(disk, number, queue)).collect::<Vec<_>>()
    };
    disks.iter().flat_map(of).collect()
}

impl QueueDocument {
    fn new(disk: &DiskSnapshot, number: usize, queue: &QueueMetrics) -> Self {
        let batches: u64 = queue.batches.iter().map(|(_, count)| count).sum();
        Self {
            disk: disk.id.clone(),
            adapter: disk.adapter.clone(),
            queue: number,
            active: queue.active,
            read: KindDocument::new(&queue.read),
            write: KindDocument::new(&queue.write),
            flush: KindDocument::new(&queue.flush),
            discard: KindDocument::new(&queue.discard),
            write_zeroes: KindDocument::new(&queue.write_zeroes),
            in_flight: queue.in_flight,
            in_flight_max: queue.max_in_flight,
            batches: BatchDocument {
                count: batches,
                requests: queue.batched,
                mean: (batches > 0).then(|| queue.batched as f64 / batches as f64),
                sizes: queue.batches.iter().copied().filter(|(_, count)| *count > 0).collect(),
            },
            submits: queue.submits,
            bounced: queue.bounced,
            slow: queue.slow,
        }
    }
}

impl KindDocument {
    fn new(kind: &KindMetrics) -> Self {
        Self {
            count: kind.completed,
            bytes: kind.bytes,
            errors: kind.errors,
            latency_us: LatencyDocument::new(&kind.latency),
        }
    }
}

impl LatencyDocument {
    fn new(latency: &Histogram) -> Option<Self> {
        let count = latency.count();
        let micros = |bound: Duration| (bound != Duration::MAX).then(|| bound.as_nanos() as f64 / 1000.0);
        let quantile = |share| latency.quantile(share).and_then(micros);
        (count > 0).then(|| Self {
            count,
            mean: latency.sum().as_nanos() as f64 / 1000.0 / count as f64,
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: quantile(1.0),
            buckets: latency.buckets().map(|(bound, count)| (micros(bound), count)).collect(),
        })
    }
}
