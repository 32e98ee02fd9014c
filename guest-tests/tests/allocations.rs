//! No heap allocation on the path of a request, once warm: counted by the allocator of this test binary.

#[path = "adapters/common/mod.rs"]
mod common;
#[path = "../../disk-formats/tests/common/allocations.rs"]
mod counter;

use common::{DiskSpec, JOB, blk_harness, buslogic_harness, harness, lsi_harness, run_clean, scsi_harness};
use counter::allocations;
use guest_driver::{Mode, Workload, buslogic, lsi, pvscsi, virtio};
use guest_tests::HarnessConfig;
use guest_tests::rig::Rig;

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
            let options = buslogic::Options { layout, ..Default::default() };
            count(&mut buslogic_harness(&config, options, &[spec]), &format!("buslogic {spec:?} {layout:?}"));
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
    let mut made = |ios| {
        let before = allocations();
        run_clean(rig, &Workload { ios, ..job });
        allocations() - before
    };
    made(5_000);
    // Other threads of the process may allocate meanwhile.
    let mut compared = Vec::new();
    let constant = (0..5).any(|_| {
        let (few, many) = (made(1_000), made(10_000));
        compared.push((few, many));
        many <= few + 4
    });
    assert!(constant, "{name}: allocations for 1,000 accesses and for 10,000: {compared:?}");
}
