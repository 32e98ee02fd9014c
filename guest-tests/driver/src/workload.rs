//! The job of the load generator, and its report: plain structures, because host and guest share them in memory.

/// What the accesses are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Load only: buffers are not looked at. Ends by ticks or by number.
    Measure = 0,
    /// Write every block of the span once with its address, generation and seed.
    Fill = 1,
    /// Read every block of the span once and check what [`Fill`](Self::Fill) wrote with the same generation and seed.
    Check = 2,
    /// Random reads and writes over a span that [`Fill`](Self::Fill) wrote with the same generation and seed. Each write
    /// raises its block's generation by one, each read block is checked against the generation last written to it, and
    /// so is the whole span at the end. Ends by ticks or by number. Four bytes of DMA memory a block bound the span.
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
    /// Random offsets among 100 accesses, the others follow the access before them. 100: random; 0: sequential.
    pub random_percent: u32,
    /// Reads among 100 accesses.
    pub read_percent: u32,
    /// Bytes of an access; whole sectors, 512 to 1 MiB.
    pub block_size: u32,
    /// Accesses in flight of each worker, 1 to 256.
    pub queue_depth: u32,
    /// Independent streams, each with its own depth and offsets, 1 to 16. Fill, Check and Churn share the span.
    pub workers: u32,
    /// Seed of the offsets and of the read-write choice; stamped into blocks by the verifying modes.
    pub seed: u32,
    /// Generation stamped into blocks by the verifying modes.
    pub generation: u64,
    /// First byte of the span accessed; whole blocks.
    pub start: u64,
    /// Bytes of the span; whole blocks; 0: to the end of the disk, as many blocks as fit.
    pub span: u64,
    /// Ticks to run; 0: no limit by time.
    pub ticks: u64,
    /// Accesses to make; 0: no limit by number (Fill and Check end with the span).
    pub ios: u64,
    /// Where accesses begin, and pauses; the verifying modes take [`Shape::PLAIN`] alone.
    pub shape: Shape,
}

impl Workload {
    /// Fill the disk at target 0 in blocks of 4 KiB, 32 in flight: a job to vary.
    pub const FILL: Self = Self {
        mode: Mode::Fill,
        target: 0,
        random_percent: 100,
        read_percent: 50,
        block_size: 4096,
        queue_depth: 32,
        workers: 1,
        seed: 3,
        generation: 1,
        start: 0,
        span: 0,
        ticks: 0,
        ios: 0,
        shape: Shape::PLAIN,
    };
}

/// What an application's accesses have beside mix and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shape {
    /// Offsets are multiples of this from the span's start, in bytes; whole sectors. 0: multiples of the block size.
    pub align: u32,
    /// Accesses until a pause: all of them complete before it begins. 0: no pauses.
    pub burst: u32,
    /// Ticks of a pause.
    pub think: u64,
    /// Popularity of ranks: entry k is the share, in 2^32, of random accesses with a rank below 2^(k+1). All zero: all
    /// offsets are equally popular. Ranks of one power of two are equally popular; ranks are scattered over the span.
    pub skew: [u32; SKEW_CLASSES],
}

/// Entries of [`Shape::skew`].
pub const SKEW_CLASSES: usize = 32;

impl Shape {
    /// Whole blocks, no pauses, all offsets equally popular.
    pub const PLAIN: Self = Self { align: 0, burst: 0, think: 0, skew: [0; SKEW_CLASSES] };

    /// Whether it is [`PLAIN`](Self::PLAIN). Field by field: the bare-metal guest has no `bcmp`, which a comparison of arrays calls.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.align == 0 && self.burst == 0 && self.think == 0 && self.skew.iter().all(|share| *share == 0)
    }
}

/// Which field of a [`Workload`] makes no sense: [`Fault::found`] with [`Fault::BAD_WORKLOAD`].
pub mod field {
    /// [`Workload::block_size`](super::Workload::block_size).
    pub const BLOCK_SIZE: u64 = 1;
    /// [`Workload::queue_depth`](super::Workload::queue_depth).
    pub const QUEUE_DEPTH: u64 = 2;
    /// [`Workload::workers`](super::Workload::workers).
    pub const WORKERS: u64 = 3;
    /// [`Workload::read_percent`](super::Workload::read_percent).
    pub const READ_PERCENT: u64 = 4;
    /// [`Workload::start`](super::Workload::start).
    pub const START: u64 = 5;
    /// [`Workload::span`](super::Workload::span).
    pub const SPAN: u64 = 6;
    /// Neither [`Workload::ticks`](super::Workload::ticks) nor [`Workload::ios`](super::Workload::ios) ends it.
    pub const END: u64 = 7;
    /// There is too little DMA memory for depth, block size and span together.
    pub const MEMORY: u64 = 8;
    /// [`Workload::random_percent`](super::Workload::random_percent).
    pub const RANDOM_PERCENT: u64 = 9;
    /// [`Workload::shape`](super::Workload::shape).
    pub const SHAPE: u64 = 10;
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

    /// Largest latency in ticks of the bucket in which the fraction `q` (0 to 1) of the latencies has been passed; 0
    /// without latencies.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = ((self.count as f64 * q) as u64).min(self.count.saturating_sub(1));
        let mut passed = 0;
        for (index, count) in self.counts.iter().enumerate() {
            passed += count;
            if passed > rank {
                return Self::upper_edge(index);
            }
        }
        0
    }

    /// As [`quantile`](Self::quantile), but taken between the edges of the bucket as if its latencies were spread evenly
    /// there: close values of `q` or of two histograms can be told apart within a bucket.
    #[must_use]
    pub fn quantile_within(&self, q: f64) -> f64 {
        let rank = (self.count as f64 * q).min(self.count as f64);
        let mut passed = 0;
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if (passed + count) as f64 >= rank {
                let lower = if index == 0 { 0.0 } else { Self::upper_edge(index - 1) as f64 };
                let share = (rank - passed as f64) / *count as f64;
                return lower + (Self::upper_edge(index) as f64 - lower) * share;
            }
            passed += count;
        }
        0.0
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
            return bucket as u64 * 2 + 1;
        }
        let power = bucket / 16 + 4;
        // The last bucket's edge is 2^64: the shift drops it, and one less is the largest value.
        ((16 + (bucket % 16) as u64 + 1) << (power - 4)).wrapping_sub(1)
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
    /// Accesses kept in flight: workers times depth, or what the adapter's ring and the span allow.
    pub in_flight: u32,
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
        in_flight: 0,
        fault: Fault::EMPTY,
        latency: Histogram::EMPTY,
    };

    /// Count something that went wrong, and keep it if it is the first.
    pub fn note(&mut self, fault: Fault) {
        self.errors += 1;
        if self.fault.kind == Fault::NONE {
            self.fault = fault;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_all_latencies() {
        let mut start = 0u64;
        for bucket in 0..BUCKETS {
            let end = Histogram::upper_edge(bucket);
            assert_eq!(Histogram::bucket(start), bucket, "first value {start}");
            assert_eq!(Histogram::bucket(end), bucket, "last value {end}");
            assert!(end - start <= start / 16 + 1, "bucket {bucket} is too wide: {start} to {end}");
            start = end.wrapping_add(1);
        }
        assert_eq!(start, 0, "the last bucket ends with the largest value");
    }

    #[test]
    fn quantiles_and_mean() {
        let mut histogram = Histogram::EMPTY;
        assert_eq!((histogram.quantile(0.5), histogram.mean()), (0, 0));
        for ticks in 1..=1000 {
            histogram.record(ticks);
        }
        let within = |value: u64, wanted: u64| value >= wanted && value <= wanted + wanted / 16 + 1;
        assert!(within(histogram.quantile(0.5), 500), "{}", histogram.quantile(0.5));
        assert!(within(histogram.quantile(0.99), 990), "{}", histogram.quantile(0.99));
        assert!(within(histogram.quantile(1.0), 1000), "{}", histogram.quantile(1.0));
        assert_eq!(histogram.mean(), 500);
    }

    #[test]
    fn quantiles_within_a_bucket_are_told_apart() {
        let mut histogram = Histogram::EMPTY;
        assert_eq!(histogram.quantile_within(0.5), 0.0);
        for ticks in 1..=100_000 {
            histogram.record(ticks);
        }
        // Evenly spread latencies are found where they are.
        for q in [0.0, 0.001, 0.5, 0.501, 0.99, 1.0] {
            let (found, wanted) = (histogram.quantile_within(q), q * 100_000.0);
            assert!((found - wanted).abs() <= wanted * 0.05 + 2.0, "{q}: {found}");
        }
        let (low, high) = (histogram.quantile_within(0.5), histogram.quantile_within(0.501));
        assert_eq!(histogram.quantile(0.5), histogram.quantile(0.501));
        assert!((high - low - 100.0).abs() < 1.0, "{low} {high}");
    }
}
