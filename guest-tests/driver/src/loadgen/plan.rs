//! A job checked once against disk and adapter: what the load loop needs, in its units.

use crate::adapter::Geometry;
use crate::workload::{Fault, Mode, Shape, Workload, field};

use super::offsets::Offsets;

/// Requests in flight that the load generator keeps account of.
pub const MAX_SLOTS: usize = 1024;
/// Independent streams.
pub const MAX_WORKERS: usize = 16;
const MAX_DEPTH: u32 = 256;
const MAX_BLOCK: u32 = 1 << 20;

/// A job that makes sense.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) target: u32,
    pub(super) offsets: Offsets,
    /// Reads in 2^32 accesses; 2^32: all.
    pub(super) read_share: u64,
    pub(super) block_size: u32,
    /// Logical blocks of an access.
    pub(super) lbas: u32,
    pub(super) lba_shift: u32,
    /// Positions in the span: blocks, where the job has no alignment of its own.
    pub(super) blocks: u64,
    pub(super) workers: u32,
    /// Accesses in flight over all workers, at most [`MAX_SLOTS`].
    pub(super) in_flight: u32,
    pub(super) seed: u32,
    pub(super) generation: u64,
    /// Ticks to run; all ones: no limit.
    pub(super) ticks: u64,
    /// Accesses to make; all ones: no limit.
    pub(super) ios: u64,
}

impl Plan {
    pub(super) fn new(workload: &Workload, geometry: &Geometry, slots: u32) -> Result<Self, Fault> {
        let bad = |found| Err(Fault { kind: Fault::BAD_WORKLOAD, found, ..Fault::EMPTY });
        let w = workload;
        if !(512..=MAX_BLOCK).contains(&w.block_size) || !w.block_size.is_multiple_of(geometry.block_size) {
            return bad(field::BLOCK_SIZE);
        }
        if !(1..=MAX_DEPTH).contains(&w.queue_depth) {
            return bad(field::QUEUE_DEPTH);
        }
        if !(1..=MAX_WORKERS as u32).contains(&w.workers) || w.workers > slots {
            return bad(field::WORKERS);
        }
        if w.read_percent > 100 {
            return bad(field::READ_PERCENT);
        }
        if w.random_percent > 100 {
            return bad(field::RANDOM_PERCENT);
        }
        let Shape { align, burst, think, .. } = w.shape;
        if !align.is_multiple_of(geometry.block_size)
            || (burst == 0 && think != 0)
            || (w.mode != Mode::Measure && !w.shape.is_plain())
        {
            return bad(field::SHAPE);
        }
        let capacity = geometry.blocks.saturating_mul(u64::from(geometry.block_size));
        if !w.start.is_multiple_of(u64::from(geometry.block_size)) || w.start >= capacity {
            return bad(field::START);
        }
        let span = if w.span == 0 { capacity - w.start } else { w.span };
        let Some(offsets) = Offsets::new(w, span) else { return bad(field::SPAN) };
        // A churn is random whatever the job says.
        let offsets = if w.mode == Mode::Churn { offsets.random() } else { offsets };
        let blocks = offsets.positions();
        let whole = w.span == 0 || w.span.is_multiple_of(u64::from(w.block_size));
        if !whole || span > capacity - w.start {
            return bad(field::SPAN);
        }
        if w.ticks == 0 && w.ios == 0 && matches!(w.mode, Mode::Measure | Mode::Churn) {
            return bad(field::END);
        }
        let most = slots.min(MAX_SLOTS as u32);
        let mut in_flight = w.queue_depth.min(most / w.workers) * w.workers;
        if w.mode != Mode::Measure {
            // A verified block is accessed by one request at a time.
            in_flight = u64::from(in_flight).min(blocks) as u32;
        }
        let no_limit = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        Ok(Self {
            mode: w.mode,
            target: w.target,
            offsets,
            read_share: (u64::from(w.read_percent) << 32) / 100,
            block_size: w.block_size,
            lbas: w.block_size / geometry.block_size,
            lba_shift: geometry.block_size.trailing_zeros(),
            blocks,
            workers: w.workers,
            in_flight,
            seed: w.seed,
            generation: w.generation,
            ticks: no_limit(w.ticks),
            ios: no_limit(w.ios),
        })
    }

    /// Byte offset on the disk of a block of the span.
    pub(super) fn offset(&self, block: u64) -> u64 {
        self.offsets.byte(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Geometry = Geometry { blocks: 2048, block_size: 512 };
    const JOB: Workload = Workload {
        mode: Mode::Measure,
        target: 0,
        random_percent: 100,
        read_percent: 100,
        block_size: 4096,
        queue_depth: 32,
        workers: 1,
        seed: 1,
        generation: 1,
        start: 0,
        span: 0,
        ticks: 0,
        ios: 1,
        shape: Shape::PLAIN,
    };

    #[test]
    fn a_bad_field_is_named() {
        let refused =
            |job: Workload| Plan::new(&job, &DISK, 256).err().map(|fault| (fault.kind, fault.found));
        let bad = |field| Some((Fault::BAD_WORKLOAD, field));
        assert_eq!(refused(JOB), None);
        for block_size in [0, 256, 768, 2 << 20] {
            assert_eq!(refused(Workload { block_size, ..JOB }), bad(field::BLOCK_SIZE), "{block_size}");
        }
        for queue_depth in [0, 257] {
            assert_eq!(refused(Workload { queue_depth, ..JOB }), bad(field::QUEUE_DEPTH));
        }
        for workers in [0, 17] {
            assert_eq!(refused(Workload { workers, ..JOB }), bad(field::WORKERS));
        }
        assert_eq!(refused(Workload { read_percent: 101, ..JOB }), bad(field::READ_PERCENT));
        assert_eq!(refused(Workload { random_percent: 101, ..JOB }), bad(field::RANDOM_PERCENT));
        for shape in [Shape { align: 100, ..Shape::PLAIN }, Shape { think: 1, ..Shape::PLAIN }] {
            assert_eq!(refused(Workload { shape, ..JOB }), bad(field::SHAPE), "{shape:?}");
        }
        let shape = Shape { burst: 8, think: 1, align: 512, ..Shape::PLAIN };
        assert_eq!(refused(Workload { shape, ..JOB }), None);
        assert_eq!(refused(Workload { shape, mode: Mode::Fill, ..JOB }), bad(field::SHAPE));
        for start in [1, 1 << 20, !511] {
            assert_eq!(refused(Workload { start, ..JOB }), bad(field::START), "{start}");
        }
        for span in [4095, 4097, (1 << 20) + 4096, !4095] {
            assert_eq!(refused(Workload { span, ..JOB }), bad(field::SPAN), "{span}");
        }
        assert_eq!(refused(Workload { start: (1 << 20) - 512, ..JOB }), bad(field::SPAN));
        assert_eq!(refused(Workload { ios: 0, ..JOB }), bad(field::END));
        assert_eq!(refused(Workload { ios: 0, mode: Mode::Fill, ..JOB }), None);
    }

    #[test]
    fn accesses_in_flight_fit_ring_and_span() {
        let plan = |job: Workload, slots| Plan::new(&job, &DISK, slots).map(|plan| plan.in_flight);
        assert_eq!(plan(Workload { workers: 4, ..JOB }, 1024), Ok(128));
        assert_eq!(plan(Workload { workers: 16, queue_depth: 256, ..JOB }, 1024), Ok(1024));
        assert_eq!(plan(Workload { workers: 3, queue_depth: 256, ..JOB }, 256), Ok(255));
        assert_eq!(plan(Workload { mode: Mode::Churn, block_size: 1 << 18, ..JOB }, 1024), Ok(4));
    }
}
