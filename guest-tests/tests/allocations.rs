//! No heap allocation on the path of a request, once warm: counted by the allocator of this test binary.
#![allow(unsafe_code, reason = "a global allocator")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{DiskSpec, JOB, harness, run_clean};
use guest_driver::{Mode, Workload, pvscsi};
use guest_tests::HarnessConfig;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, base: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(base, layout) }
    }
    unsafe fn realloc(&self, base: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(base, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of a run's allocations does not depend on the number of its accesses.
#[test]
fn requests_allocate_nothing_once_warm() {
    for spec in DiskSpec::all(32 << 20) {
        for layout in [guest_driver::Layout::Contiguous, guest_driver::Layout::Scattered] {
            let options = pvscsi::Options { layout, ..Default::default() };
            let mut harness = harness(&HarnessConfig::default(), options, &[spec]);
            let job = Workload { mode: Mode::Measure, block_size: 16384, queue_depth: 64, ..JOB };
            let mut allocations = |ios| {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                run_clean(&mut harness, &Workload { ios, ..job });
                ALLOCATIONS.load(Ordering::Relaxed) - before
            };
            allocations(20_000);
            let (few, many) = (allocations(1_000), allocations(50_000));
            assert!(
                many <= few + 4,
                "{spec:?} {layout:?}: {few} allocations for 1,000 accesses, {many} for 50,000"
            );
        }
    }
}
