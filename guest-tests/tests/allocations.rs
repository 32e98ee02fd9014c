//! No heap allocation on the path of a request, once warm: counted by the allocator of this test binary.
#![allow(unsafe_code, reason = "a global allocator")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{DiskSpec, JOB, blk_harness, harness, lsi_harness, run_clean, scsi_harness};
use guest_driver::{Mode, Workload, lsi, pvscsi, virtio};
use guest_tests::HarnessConfig;
use guest_tests::rig::Rig;

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
            let config = HarnessConfig::default();
            let options = pvscsi::Options { layout, ..Default::default() };
            count(&mut harness(&config, options, &[spec]), &format!("pvscsi {spec:?} {layout:?}"));
            let options = lsi::Options { layout, ..Default::default() };
            count(&mut lsi_harness(&config, options, &[spec]), &format!("lsi {spec:?} {layout:?}"));
            for (queues, indirect) in [(1, true), (3, false)] {
                let options = virtio::Options { layout, queues, indirect, ..Default::default() };
                let name = format!("virtio-blk {spec:?} {options:?}");
                count(&mut blk_harness(&config, options, spec), &name);
                let name = format!("virtio-scsi {spec:?} {options:?}");
                count(&mut scsi_harness(&config, options, &[spec]), &name);
            }
        }
    }
}

fn count(rig: &mut impl Rig, name: &str) {
    let job = Workload { mode: Mode::Measure, block_size: 16384, queue_depth: 64, ..JOB };
    let mut allocations = |ios| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        run_clean(rig, &Workload { ios, ..job });
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    allocations(20_000);
    let (few, many) = (allocations(1_000), allocations(50_000));
    assert!(many <= few + 4, "{name}: {few} allocations for 1,000 accesses, {many} for 50,000");
}
