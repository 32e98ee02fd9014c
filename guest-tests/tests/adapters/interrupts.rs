//! Interrupt modes, kick policies and doorbell deliveries: every combination moves the same data.

use std::time::Duration;

use guest_driver::adapter::{Adapter, Buffer, Op, Request};
use guest_driver::{InterruptMode, KickPolicy, Layout, Mode, Platform, Workload, pvscsi};
use guest_tests::{Delivery, HarnessConfig};
use paradisk_devices::Sleep;

use crate::common::{DiskSpec, JOB, harness, ring, run_clean, service};

const MODES: [InterruptMode; 3] = [InterruptMode::MsiX, InterruptMode::Msi, InterruptMode::Intx];

#[test]
fn every_combination_verifies() {
    for interrupts in MODES {
        for kick in [KickPolicy::PerRequest, KickPolicy::PerBatch] {
            for delivery in [Delivery::AtWait, Delivery::After(3), Delivery::Immediate] {
                for threshold in [true, false] {
                    let options = pvscsi::Options { interrupts, kick, threshold, ..Default::default() };
                    let config = HarnessConfig { delivery, ..Default::default() };
                    let mut harness = harness(&config, options, &[DiskSpec::Ram(4 << 20)]);
                    let job = Workload { span: 2 << 20, ios: 500, ..JOB };
                    for mode in [Mode::Fill, Mode::Check, Mode::Churn] {
                        let report = run_clean(&mut harness, &Workload { mode, ..job }).report;
                        assert!(report.interrupts > 0, "{options:?}");
                        assert!(
                            report.doorbells <= report.ios,
                            "{options:?}: {} doorbells",
                            report.doorbells
                        );
                        let registers = report.registers;
                        assert_eq!(
                            registers > 0,
                            interrupts == InterruptMode::Intx,
                            "{options:?}: {registers}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn doorbells_rung_before_the_guest_waits_are_one_event() {
    let mut harness =
        harness(&HarnessConfig::default(), pvscsi::Options::default(), &[DiskSpec::Ram(4 << 20)]);
    let done = run_clean(&mut harness, &Workload { mode: Mode::Measure, ios: 3200, ..JOB });
    assert!(done.doorbells <= 3200 / 8, "{} events for 3,200 accesses", done.doorbells);
    assert!(done.interrupts <= 3200 / 4, "{} interrupts for 3,200 accesses", done.interrupts);
}

#[test]
fn the_scattered_layout_differs_only_in_its_segments() {
    let options = pvscsi::Options { layout: Layout::Scattered, ..Default::default() };
    let mut scattered = harness(&HarnessConfig::default(), options, &[DiskSpec::Ram(16 << 20)]);
    for block_size in [512, 8192, 65536, 1 << 20] {
        for mode in [Mode::Fill, Mode::Check] {
            run_clean(&mut scattered, &Workload { mode, block_size, queue_depth: 4, ..JOB });
        }
    }
}

/// A completion that is posted while the causes are disabled interrupts when they are enabled again.
#[test]
fn causes_disabled_and_enabled_again() {
    for interrupts in MODES {
        let options = pvscsi::Options { interrupts, ..Default::default() };
        let mut harness = harness(&HarnessConfig::default(), options, &[DiskSpec::Ram(1 << 20)]);
        run_clean(&mut harness, &Workload { mode: Mode::Measure, ios: 10, ..JOB });
        let (machine, driver) = harness.parts();
        let buffer = machine.dma(4096, 4096).unwrap();
        driver.interrupted(machine);
        driver.set_interrupts(machine, false);
        let seen = machine.interrupts();
        let data = Buffer::contiguous(buffer.address(), 4096);
        let request = Request { tag: 0, target: 0, op: Op::Read, lba: 0, blocks: 8, data };
        assert!(driver.submit(machine, &request));
        driver.kick(machine);
        // The I/O thread's turn by hand, for waiting would last until the time-out.
        let deadline = std::time::Instant::now() + Duration::from_millis(200);
        ring(machine, 0);
        loop {
            service(machine);
            let now = machine.now();
            if machine.device().before_sleep(now) == Sleep::Forever || std::time::Instant::now() > deadline {
                break;
            }
        }
        assert_eq!(machine.interrupts(), seen, "{interrupts:?}: disabled");
        driver.set_interrupts(machine, true);
        machine.wait_interrupt(seen);
        assert_ne!(machine.interrupts(), seen, "{interrupts:?}: enabled again");
        driver.interrupted(machine);
        assert_eq!(driver.poll(machine).map(|end| (end.tag, end.status)), Some((0, 0)));
    }
}
