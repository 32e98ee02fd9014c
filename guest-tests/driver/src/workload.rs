//! What the load generator is told, and what it tells: plain structures, for host and guest share them in memory.

/// What the accesses are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Load only: buffers are not looked at.
    Measure = 0,
    /// Write every block of the span once with its address and generation.
    Fill = 1,
    /// Read every block of the span once and check address and generation.
    Check = 2,
    /// Random reads and writes; each read block is checked against the generation last written to it.
    Churn = 3,
}

/// A job for the load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Workload {
    /// What for.
    pub mode: Mode,
    /// Target on the adapter's bus.
    pub target: u32,
    /// 1: random offsets; 0: sequential.
    pub random: u32,
    /// Reads among 100 accesses.
    pub read_percent: u32,
    /// Bytes of an access; whole sectors, 512 to 1 MiB.
    pub block_size: u32,
    /// Accesses in flight of each worker, 1 to 256.
    pub queue_depth: u32,
    /// Independent streams, each with its own depth and offsets, 1 to 16.
    pub workers: u32,
    /// Seed of the offsets and of the read-write choice.
    pub seed: u32,
    /// Generation stamped into blocks by the verifying modes.
    pub generation: u64,
    /// First byte of the span accessed; whole blocks.
    pub start: u64,
    /// Bytes of the span; whole blocks; 0: to the end of the disk.
    pub span: u64,
    /// Ticks to run; 0: no limit by time.
    pub ticks: u64,
    /// Accesses to make; 0: no limit by number (Fill and Check end with the span).
    pub ios: u64,
}

/// Buckets of a [`Histogram`]: 16 to each power of two.
pub const BUCKETS: usize = 60 * 16;

/// Latencies in ticks, counted in buckets of 6% width.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Histogram {
    /// Accesses by bucket.
    pub counts: [u64; BUCKETS],
    /// Sum of all latencies in ticks.
    pub sum: u64,
    /// Number of latencies.
    pub count: u64,
}

impl Histogram {
    /// No latencies.
    pub const EMPTY: Self = Self { counts: [0; BUCKETS], sum: 0, count: 0 };

    /// Count one latency.
    pub fn record(&mut self, ticks: u64) {
        self.counts[Self::bucket(ticks)] += 1;
        self.sum = self.sum.wrapping_add(ticks);
        self.count += 1;
    }

    /// Upper edge in ticks of the bucket in which the fraction `q` (0 to 1) of the latencies has been passed.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = (self.count as f64 * q) as u64;
        let mut passed = 0;
        for (index, count) in self.counts.iter().enumerate() {
            passed += count;
            if passed > rank {
                return Self::upper_edge(index);
            }
        }
        0
    }

    /// Mean in ticks; 0 without latencies.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    fn bucket(ticks: u64) -> usize {
        if ticks < 32 {
            return (ticks / 2) as usize;
        }
        // 16 buckets to a power of two: the four bits after the leading one choose among them.
        let power = 63 - ticks.leading_zeros();
        let index = (power as usize - 4) * 16 + ((ticks >> (power - 4)) & 15) as usize;
        index.min(BUCKETS - 1)
    }

    fn upper_edge(bucket: usize) -> u64 {
        if bucket < 16 {
            return bucket as u64 * 2 + 2;
        }
        let power = bucket / 16 + 4;
        ((16 + (bucket % 16) as u64 + 1) << (power - 4)).saturating_sub(1)
    }
}

/// What went wrong first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Fault {
    /// What: see the constants of [`Fault`].
    pub kind: u32,
    /// SCSI status and host status of the command, where there is one: `host << 8 | scsi`.
    pub status: u32,
    /// Byte offset on the disk.
    pub offset: u64,
    /// What was expected (address or generation).
    pub expected: u64,
    /// What was found.
    pub found: u64,
}

impl Fault {
    /// Nothing went wrong.
    pub const NONE: u32 = 0;
    /// The adapter was not found or did not come up; `found` says at which step.
    pub const BRING_UP: u32 = 1;
    /// A command failed.
    pub const STATUS: u32 = 2;
    /// A block holds another block's address.
    pub const WRONG_ADDRESS: u32 = 3;
    /// A block holds another generation.
    pub const WRONG_GENERATION: u32 = 4;
    /// A block's body does not match its header.
    pub const WRONG_BODY: u32 = 5;
    /// A completion for no request in flight.
    pub const SPURIOUS: u32 = 6;
    /// The job itself makes no sense (sizes, depth, span); `found` says which field.
    pub const BAD_WORKLOAD: u32 = 7;
    /// No completion came for a long time.
    pub const TIMEOUT: u32 = 8;
    /// No fault.
    pub const EMPTY: Self = Self { kind: Self::NONE, status: 0, offset: 0, expected: 0, found: 0 };
}

/// What the load generator tells at the end of a job.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Report {
    /// Accesses completed.
    pub ios: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Accesses that failed or held wrong data.
    pub errors: u64,
    /// Ticks from the first submission to the last completion.
    pub ticks: u64,
    /// Interrupts taken meanwhile.
    pub interrupts: u64,
    /// Doorbell registers written meanwhile.
    pub doorbells: u64,
    /// Other device registers read or written meanwhile.
    pub registers: u64,
    /// Disk's capacity in bytes as the driver read it.
    pub capacity: u64,
    /// Disk's logical sector in bytes as the driver read it.
    pub sector: u32,
    /// Padding.
    pub reserved: u32,
    /// The first fault.
    pub fault: Fault,
    /// Latencies from submission to the driver's sight of the completion.
    pub latency: Histogram,
}

impl Report {
    /// Nothing done.
    pub const EMPTY: Self = Self {
        ios: 0,
        bytes: 0,
        errors: 0,
        ticks: 0,
        interrupts: 0,
        doorbells: 0,
        registers: 0,
        capacity: 0,
        sector: 0,
        reserved: 0,
        fault: Fault::EMPTY,
        latency: Histogram::EMPTY,
    };
}
