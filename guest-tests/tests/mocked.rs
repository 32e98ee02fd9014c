//! The driver over the mock.
#[path = "common/mock.rs"]
mod mock;

use guest_driver::{InterruptMode, KickPolicy, Layout, Mode, Workload, pvscsi};
use guest_tests::rig::Rig;
use guest_tests::{Delivery, Harness, HarnessConfig};

const JOB: Workload = Workload {
    mode: Mode::Fill,
    target: 0,
    random: 1,
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
};

fn harness(options: pvscsi::Options, delivery: Delivery, null: bool) -> Harness {
    let config = HarnessConfig { delivery, ..HarnessConfig::default() };
    Harness::pvscsi(&config, options, |memory, sink| {
        let mut mock = mock::Mock::new(memory, sink, 32 << 20);
        mock.null = null;
        Ok(Box::new(mock))
    })
    .unwrap()
}

#[test]
fn all_ways() {
    for interrupts in [InterruptMode::MsiX, InterruptMode::Msi, InterruptMode::Intx] {
        for kick in [KickPolicy::PerRequest, KickPolicy::PerBatch] {
            for delivery in [Delivery::AtWait, Delivery::Immediate, Delivery::After(4)] {
                for layout in [Layout::Contiguous, Layout::Scattered] {
                    let options = pvscsi::Options { interrupts, kick, layout, ..Default::default() };
                    let mut harness = harness(options, delivery, false);
                    for mode in [Mode::Fill, Mode::Check, Mode::Churn] {
                        for block_size in [4096, 1 << 20] {
                            let m = harness.run(&Workload { mode: Mode::Fill, ..JOB }).unwrap();
                            assert_eq!(m.report.errors, 0);
                            let m = harness
                                .run(&Workload { mode, ios: 1000, block_size, span: 8 << 20, ..JOB })
                                .unwrap();
                            assert_eq!(m.report.errors, 0, "{options:?} {delivery:?} {:?}", m.report.fault);
                        }
                        let m = harness.run(&Workload { mode: Mode::Fill, ..JOB }).unwrap();
                        assert_eq!(m.report.errors, 0);
                    }
                }
            }
        }
    }
}

#[test]
#[ignore]
fn speed() {
    for null in [true, false] {
        let mut harness = harness(Default::default(), Delivery::AtWait, null);
        for read_percent in [100, 50] {
            for _ in 0..3 {
                let m = harness
                    .run(&Workload { mode: Mode::Measure, ios: 2_000_000, read_percent, ..JOB })
                    .unwrap();
                let per = |t: u64| t / m.report.ios;
                eprintln!(
                    "null {null}: total {} guest {} device {} kernel {} int {} err {}",
                    per(m.cpu.total),
                    per(m.cpu.guest),
                    per(m.cpu.device),
                    per(m.cpu.kernel),
                    m.interrupts,
                    m.report.errors
                );
            }
        }
    }
}
