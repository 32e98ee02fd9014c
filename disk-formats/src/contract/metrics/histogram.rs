//! Histograms of latencies with fixed buckets, logarithmic and linear: each power of two of nanoseconds has eight buckets of equal width.
//! So a quantile from 128 ns to 69 s is at most 1/8 too large.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Base-2 logarithm of the number of buckets for each power of two.
const PARTS_BITS: u32 = 3;
const PARTS: usize = 1 << PARTS_BITS;
/// The first bucket has all latencies up to 2^7 ns = 128 ns.
const FIRST: u32 = 7;
/// The last bucket has all latencies above 2^36 ns = 69 s.
const LAST: u32 = 36;
/// Number of buckets.
const BUCKETS: usize = (LAST - FIRST) as usize * PARTS + 2;

/// The bucket of a latency. A bucket includes its upper bound.
fn bucket(nanoseconds: u64) -> usize {
    let below = nanoseconds.saturating_sub(1);
    let power = below.checked_ilog2().unwrap_or_default();
    match power {
        LAST.. => BUCKETS - 1,
        FIRST.. => {
            let part = (below >> (power - PARTS_BITS)) as usize % PARTS;
            1 + (power - FIRST) as usize * PARTS + part
        }
        _ => 0,
    }
}

/// The upper bound of a bucket in nanoseconds; `None`: it has none.
fn bound(bucket: usize) -> Option<u64> {
    if bucket >= BUCKETS - 1 {
        return None;
    }
    let Some(above) = bucket.checked_sub(1) else { return Some(1 << FIRST) };
    let power = FIRST + (above / PARTS) as u32;
    Some(((PARTS + above % PARTS + 1) as u64) << (power - PARTS_BITS))
}

/// A histogram that one thread at a time fills and others read.
pub(super) struct Filling {
    buckets: Box<[Counter]>,
    /// Of all latencies, in nanoseconds.
    sum: Counter,
}

impl Default for Filling {
    fn default() -> Self {
        Self {
            buckets: std::iter::repeat_with(Counter::default).take(BUCKETS).collect(),
            sum: Counter::default(),
        }
    }
}

impl Filling {
    #[inline]
    pub(super) fn add(&self, nanoseconds: u64) {
        if let Some(counter) = self.buckets.get(bucket(nanoseconds)) {
            counter.add(1);
        }
        self.sum.add(nanoseconds);
    }

    pub(super) fn read(&self) -> Histogram {
        let counts = self.buckets.iter().map(Counter::get).collect();
        Histogram { counts, sum: Duration::from_nanos(self.sum.get()) }
    }
}

/// A histogram of latencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// By bucket; may be shorter than [`BUCKETS`].
    counts: Vec<u64>,
    sum: Duration,
}

impl Histogram {
    /// Number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the latencies.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    /// The quantile `share` (0 to 1, for example 0.99), rounded up to the upper bound of its bucket: this share of the latencies does not
    /// exceed it. [`Duration::MAX`] above 69 s; `None` without latencies.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((share.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut below = 0;
        self.buckets().find_map(|(bound, count)| {
            below += count;
            (below >= rank).then_some(bound)
        })
    }

    /// The buckets that are not empty: the inclusive upper bound ([`Duration::MAX`] for the last bucket, above 69 s) and the number of
    /// latencies.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (bound(bucket).map_or(Duration::MAX, Duration::from_nanos), *count))
    }

    /// Add the latencies of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(to, count)| *to += count);
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// A number with one writer at a time, so that a change needs no locked instruction. A new writer synchronizes with the previous one.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    #[inline]
    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_is_in_the_bucket_with_the_next_bound() {
        let bounds: Vec<u64> = (0..BUCKETS).map_while(bound).collect();
        assert_eq!((bounds.len(), bounds[0], bounds[BUCKETS - 2]), (BUCKETS - 1, 128, 1 << 36));
        assert!(bounds.is_sorted_by(|low, high| low < high && (high - low) * 8 <= *low.max(&128)));
        for power in FIRST..=LAST {
            assert!(bounds.contains(&(1 << power)), "powers of two are bounds");
        }
        for (index, &bound) in bounds.iter().enumerate() {
            assert_eq!((bucket(bound), bucket(bound + 1)), (index, index + 1));
            let lowest = index.checked_sub(1).map_or(0, |below| bounds[below] + 1);
            assert_eq!(bucket(lowest), index);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_bounds_of_the_latencies() {
        let filling = Filling::default();
        assert_eq!(filling.read().quantile(0.5), None);
        // 1 to 1,000 us.
        (1..=1000).for_each(|micros| filling.add(micros * 1000));
        let histogram = filling.read();
        assert_eq!((histogram.count(), histogram.sum()), (1000, Duration::from_micros(500_500)));
        for (share, micros) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let bound = histogram.quantile(share).unwrap();
            let exact = Duration::from_micros(micros);
            assert!(exact <= bound && bound <= exact * 9 / 8, "{share}: {bound:?}");
        }
        let mut both = Histogram::default();
        both.merge(&histogram);
        filling.add(u64::MAX);
        both.merge(&filling.read());
        assert_eq!((both.count(), both.quantile(1.0)), (2001, Some(Duration::MAX)));
        assert_eq!(both.buckets().map(|(_, count)| count).sum::<u64>(), 2001);
    }
}
