//! Statistics of disks and adapters in operation: for `paradisk ctl SOCKET stats`, and as OpenMetrics text over HTTP (`--metrics`).
//!
//! ```text
//! queue's thread -> counters (paradisk_disk_formats::Metrics) -> Snapshot -> document: JSON
//! device's thread -> its report ------------------------------------^   `-> open_metrics: text -> server
//! ```

mod document;
mod listen;
mod open_metrics;
mod server;

use std::sync::Arc;

use facts::disk::{MapMemory, OpenDisk};
use facts::tsc::tsc_hz;
use paradisk_devices::{ModerationState, Stats};
use paradisk_disk_formats::{Layered, QueueMetrics};

pub(crate) use self::document::{AdapterDocument, QueueDocument, queues};
pub(crate) use self::listen::{Listener, Options};
pub(crate) use self::server::Server;

/// What is counted for each disk. What is not counted costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metering {
    /// Nothing.
    Off,
    /// Requests.
    Counts,
    /// Requests, and their latencies.
    Latencies,
}

impl Metering {
    /// Count the requests of a disk. With `--log trace`, each request is printed, too.
    pub(crate) fn apply(self, opened: &mut OpenDisk) {
        if self != Self::Off || tracing::enabled!(tracing::Level::TRACE) {
            let metered = Layered::new(Arc::clone(&opened.disk)).metered(tsc_hz());
            opened.disk = Arc::new(metered);
            time_requests(opened, self == Self::Latencies);
        }
    }
}

/// Measure the latencies of requests of a disk from now on, or stop measuring.
pub(crate) fn time_requests(opened: &OpenDisk, on: bool) {
    if let Some(metrics) = opened.disk.metrics() {
        metrics.time_requests(on);
    }
}

/// The statistics of all disks and adapters at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) disks: Vec<DiskSnapshot>,
    pub(crate) adapters: Vec<AdapterSnapshot>,
}

/// A disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskSnapshot {
    /// As `ctl list` names it.
    pub(crate) id: String,
    /// The adapter or the protocol in front of it, as `pvscsi0` or `nbd`.
    pub(crate) adapter: String,
    /// Format and kind, as `vhdx dynamic`.
    pub(crate) format: String,
    pub(crate) capacity: u64,
    pub(crate) map_memory: Option<MapMemory>,
    /// By the number of the queue; empty where nothing is counted.
    pub(crate) queues: Vec<QueueMetrics>,
}

/// An adapter.
#[derive(Clone, Debug)]
pub(crate) struct AdapterSnapshot {
    /// As `pvscsi0`.
    pub(crate) name: String,
    pub(crate) stats: Stats,
    /// Of each interrupt vector.
    pub(crate) moderation: Vec<ModerationState>,
}

impl DiskSnapshot {
    /// A disk as it is now.
    pub(crate) fn new(id: &str, adapter: &str, opened: &OpenDisk) -> Self {
        let facts = opened.facts();
        let kind = [Some(facts.format), facts.subformat];
        Self {
            id: id.to_owned(),
            adapter: adapter.to_owned(),
            format: kind.into_iter().flatten().collect::<Vec<_>>().join(" "),
            capacity: facts.capacity,
            map_memory: opened.map_memory(),
            queues: opened.disk.metrics().map(|metrics| metrics.queues()).unwrap_or_default(),
        }
    }
}

/// Completions without an interrupt of their own: several share one interrupt, or the guest has suppressed interrupts.
pub(crate) const fn suppressed(stats: &Stats) -> u64 {
    stats.completions.saturating_sub(stats.interrupts)
}
