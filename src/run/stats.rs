//! Counters of a machine and their cost in CPU cycles: the document of `--stats`.

use std::time::{Duration, Instant};

use facts::SCHEMA;
use facts::host::{Host, host};
use facts::tsc::to_ticks;
use paradisk_devices::Stats;
use paradisk_vmm::{CpuClocks, CpuSplit, Exits, Machine};
use serde::Serialize;

use super::storage::{Listed, Storage};
use crate::metrics::{self, AdapterDocument, QueueDocument};

/// The document.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    schema: u32,
    host: Host,
    /// Seconds since the guest's first instruction.
    seconds: f64,
    /// Requests that all adapters have completed.
    completions: u64,
    /// CPU cycles of all threads, by where they were spent.
    cycles: Cycles,
    /// The same for each completion.
    cycles_per_io: Option<Rates>,
    exits: ExitCounts,
    adapters: Vec<AdapterStats>,
    disks: Vec<Listed>,
    queues: Vec<QueueDocument>,
}

#[derive(Debug, Serialize)]
struct Cycles {
    total: u64,
    guest: u64,
    exit: u64,
    device: u64,
    kernel: u64,
}

#[derive(Debug, Serialize)]
struct Rates {
    total: f64,
    guest: f64,
    exit: f64,
    device: f64,
    kernel: f64,
}

#[derive(Debug, Serialize)]
struct ExitCounts {
    mmio: u64,
    pio: u64,
    other: u64,
    /// All exits that KVM counted, those that it handled itself included.
    kvm: Option<u64>,
}

#[derive(Debug, Serialize)]
struct AdapterStats {
    #[serde(flatten)]
    counters: AdapterDocument,
    /// CPU cycles of its thread, system calls included.
    cycles: u64,
    interrupts_per_io: Option<f64>,
    doorbells_per_io: Option<f64>,
    cycles_per_io: Option<f64>,
}

/// Counts from the machine's start.
pub(super) struct Meter {
    start: Instant,
    clocks: CpuClocks,
}

impl Meter {
    /// Start counting. CPU times that the kernel does not report count as 0.
    pub(super) fn start(machine: &Machine, storage: &Storage) -> Self {
        Self { start: Instant::now(), clocks: clocks(machine, storage) }
    }

    /// The counters so far.
    pub(super) fn read(&self, machine: &Machine, storage: &Storage) -> Document {
        let adapters = adapters(machine, storage);
        let completions = adapters.iter().map(|adapter| adapter.counters.completions).sum();
        // In the first moments, before the kernel has samples of 10 ms, all time counts as that of the guest and the devices.
        let spent = clocks(machine, storage).since(&self.clocks).split(0, to_ticks);
        let per_io = |cycles: u64| per(cycles, completions).unwrap_or_default();
        let CpuSplit { total, guest, exit, device, kernel } = spent;
        let exits = machine.exits().into_iter().fold(Exits::default(), |sum, exits| Exits {
            mmio: sum.mmio + exits.mmio,
            pio: sum.pio + exits.pio,
            other: sum.other + exits.other,
            kvm: exits.kvm.map(|kvm| kvm + sum.kvm.unwrap_or_default()),
        });
        Document {
            schema: SCHEMA,
            host: host(),
            seconds: self.start.elapsed().as_secs_f64(),
            completions,
            cycles: Cycles { total, guest, exit, device, kernel },
            cycles_per_io: (completions > 0).then(|| Rates {
                total: per_io(total),
                guest: per_io(guest),
                exit: per_io(exit),
                device: per_io(device),
                kernel: per_io(kernel),
            }),
            exits: ExitCounts { mmio: exits.mmio, pio: exits.pio, other: exits.other, kvm: exits.kvm },
            adapters,
            disks: storage.list(),
            queues: metrics::queues(&storage.disks()),
        }
    }
}

fn clocks(machine: &Machine, storage: &Storage) -> CpuClocks {
    let devices: Vec<_> = storage.controllers().iter().map(|controller| controller.device).collect();
    CpuClocks::now(machine, &devices).unwrap_or_default()
}

fn adapters(machine: &Machine, storage: &Storage) -> Vec<AdapterStats> {
    let of = |controller: &super::storage::Controller| {
        let adapter = controller.snapshot();
        let Stats { interrupts, doorbells, completions, .. } = adapter.stats;
        let time = machine.io_thread_time(controller.device);
        let cycles = to_ticks(time.map_or(Duration::ZERO, |time| time.on_cpu));
        AdapterStats {
            counters: AdapterDocument::new(&adapter),
            cycles,
            interrupts_per_io: per(interrupts, completions),
            doorbells_per_io: per(doorbells, completions),
            cycles_per_io: per(cycles, completions),
        }
    };
    storage.controllers().iter().map(of).collect()
}

/// `count` for each completion; `None` without any.
fn per(count: u64, completions: u64) -> Option<f64> {
    (completions > 0).then(|| count as f64 / completions as f64)
}
