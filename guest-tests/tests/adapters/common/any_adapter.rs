//! Tests of adapters that differ in nothing but their options and status codes.

use guest_driver::adapter::Buffer;
use guest_driver::driver::Start;
use guest_driver::scsi::{Cdb, Sense};
use guest_driver::{Initiator, Mode, Platform, Workload};
use guest_tests::rig::Rig;
use guest_tests::{Delivery, Harness, HarnessConfig};

use super::{DiskSpec, JOB, churn, warm_up};

/// Fill and churn a disk of each kind with each of these options, whenever the device sees a doorbell.
pub(crate) fn churn_keeps_every_generation<O: Copy, R: Rig>(
    options: &[O],
    make: impl Fn(&HarnessConfig, O, DiskSpec) -> R,
) {
    for spec in DiskSpec::all(16 << 20) {
        for delivery in [Delivery::AtWait, Delivery::After(5), Delivery::Immediate] {
            for options in options {
                let config = HarnessConfig { delivery, ..Default::default() };
                churn(&mut make(&config, *options, spec), 1 << 20, 700);
            }
        }
    }
}

/// INQUIRY, a command that does not exist, a flush, and a request to each of `targets`. These do not exist: the status is `no_target`.
/// Returns how many of 512 bytes INQUIRY has moved.
pub(crate) fn commands_of_other_kinds<D: Initiator + Start>(
    harness: &mut Harness<D>,
    targets: &[u32],
    no_target: u32,
) -> u64 {
    warm_up(harness);
    let (machine, driver) = harness.parts();
    let memory = machine.dma(4096, 4096).unwrap();
    memory.write(0, 0xffu8);
    let data = Buffer::contiguous(memory.address(), 512);
    let inquiry = driver.execute(machine, 0, &Cdb::inquiry(512), &data, false).unwrap().completion;
    assert_eq!(inquiry.status, 0);
    assert_eq!(memory.read::<u8>(0), 0, "a direct access block device");
    let end = driver.execute(machine, 0, &Cdb::new(&[0xff; 6]), &Buffer::NONE, false).unwrap();
    let unknown = Sense { key: 5, asc: 0x20, ascq: 0 };
    assert_eq!(driver.sense(&end), Some(unknown), "invalid command operation code");
    let end = driver.execute(machine, 0, &Cdb::synchronize_cache(), &Buffer::NONE, false).unwrap();
    assert_eq!(end.completion.status, 0);
    for target in targets {
        let ready = Cdb::test_unit_ready();
        let end = driver.execute(machine, *target, &ready, &Buffer::NONE, false).unwrap();
        assert_eq!(end.completion.status, no_target, "target {target}");
    }
    inquiry.transferred
}

/// The machine is reset, and a driver with each of these options starts. Then a driver starts while the adapter runs.
pub(crate) fn a_reset_of_the_machine_and_a_new_driver<D: Start<Options: Default>>(
    harness: &mut Harness<D>,
    options: impl IntoIterator<Item = D::Options>,
) {
    for options in options {
        warm_up(harness);
        let (machine, driver) = harness.parts();
        machine.reset();
        *driver = D::start(machine, options).unwrap();
    }
    // A driver that finds the adapter running resets it.
    let (machine, driver) = harness.parts();
    *driver = D::start(machine, D::Options::default()).unwrap();
    warm_up(harness);
    let errors = harness.run(&Workload { mode: Mode::Check, generation: 99, ..JOB }).unwrap().report.errors;
    assert!(errors > 0, "a check of other data fails");
}
