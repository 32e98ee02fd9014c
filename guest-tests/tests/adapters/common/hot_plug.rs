//! Disks that come and go while the guest runs: how the driver is notified, and how requests end. The same for PVSCSI and
//! virtio-scsi.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use guest_driver::adapter::{Buffer, Completion, Op};
use guest_driver::driver::Start;
use guest_driver::scsi::Cdb;
use guest_driver::{Initiator, Mode, Platform, Workload};
use guest_tests::rig::Rig;
use guest_tests::{Harness, HarnessConfig, Machine};
use paradisk_devices::{HotPlug, InterruptSink, PciDevice};
use vm_memory::GuestMemoryMmap;

use super::owned::{Order, Owned};
use super::{DiskSpec, JOB, collect, run_clean, submit_to};

/// A driver that its adapter notifies of disks.
pub(crate) trait Notified: Initiator + Start {
    type Notice: Debug + PartialEq;
    /// Status of a request to a target that is not there.
    const NO_TARGET: u32;
    /// Status of a request that was ended because its disk was removed.
    const RESET: u32;

    fn take_notice(&mut self, machine: &mut Machine) -> Option<Self::Notice>;

    fn added(target: u8) -> Self::Notice;

    fn removed(target: u8) -> Self::Notice;
}

/// A harness without disks, and the channel to its device's owner.
pub(crate) fn without_disks<D, Device, E>(
    options: D::Options,
    build: impl FnOnce(Arc<GuestMemoryMmap>, Box<dyn InterruptSink>) -> Result<Device, E>,
) -> (Harness<D>, Sender<Order>)
where
    D: Start,
    Device: PciDevice + HotPlug + 'static,
    E: Error + Send + Sync + 'static,
{
    let (sender, orders) = channel();
    let harness = Harness::start(&HarnessConfig::default(), options, |memory, interrupts| {
        Ok(Box::new(Owned { device: build(memory, interrupts)?, orders }))
    });
    (harness.unwrap(), sender)
}

/// The next notice, after an interrupt.
fn notice<D: Notified>(machine: &mut Machine, driver: &mut D) -> D::Notice {
    for _ in 0..10 {
        let seen = machine.interrupts();
        driver.interrupted(machine);
        if let Some(notice) = driver.take_notice(machine) {
            return notice;
        }
        machine.wait_interrupt(seen);
    }
    panic!("no notice came")
}

/// Attach a disk, and wait until the driver is notified.
fn attach<D: Notified>(harness: &mut Harness<D>, orders: &Sender<Order>, target: u8) {
    orders.send(Order::Attach(target, DiskSpec::Ram(1 << 20))).unwrap();
    let (machine, driver) = harness.parts();
    assert_eq!(notice(machine, driver), D::added(target));
}

/// More rounds than the device has space for notices.
pub(crate) fn disks_come_and_go<D: Notified>(
    (mut harness, orders): (Harness<D>, Sender<Order>),
    rounds: usize,
) {
    const TARGETS: [u8; 3] = [0, 3, 63];
    for round in 0..rounds {
        for target in TARGETS {
            attach(&mut harness, &orders, target);
            for mode in [Mode::Fill, Mode::Check] {
                let job = Workload { mode, target: target.into(), span: 64 << 10, ..JOB };
                run_clean(&mut harness, &job);
            }
        }
        for target in TARGETS {
            orders.send(Order::Detach(target)).unwrap();
            let (machine, driver) = harness.parts();
            assert_eq!(notice(machine, driver), D::removed(target), "round {round}");
            let ready = Cdb::test_unit_ready();
            let gone = driver.execute(machine, target.into(), &ready, &Buffer::NONE, false);
            assert_eq!(gone.unwrap().completion.status, D::NO_TARGET);
        }
    }
}

/// More disks are attached than the device has space for notices.
pub(crate) fn no_notice_is_lost<D: Notified>((mut harness, orders): (Harness<D>, Sender<Order>)) {
    for target in 0..60 {
        orders.send(Order::Attach(target, DiskSpec::Ram(1 << 20))).unwrap();
    }
    let (machine, driver) = harness.parts();
    for target in 0..60 {
        assert_eq!(notice(machine, driver), D::added(target));
    }
    assert_eq!(driver.take_notice(machine), None);
}

/// `ended` looks at the driver when all requests have completed.
pub(crate) fn requests_to_a_removed_disk_end_and_others_go_on<D: Notified>(
    (mut harness, orders): (Harness<D>, Sender<Order>),
    ended: impl FnOnce(&D),
) {
    for target in [0, 1] {
        attach(&mut harness, &orders, target);
        run_clean(&mut harness, &Workload { target: target.into(), ..JOB });
    }
    let (machine, driver) = harness.parts();
    let buffers = machine.dma(32 * 4096, 4096).unwrap();
    submit_to(machine, driver, Op::Read, &buffers, &[0, 1], 32);
    orders.send(Order::Detach(1)).unwrap();
    assert_eq!(notice(machine, driver), D::removed(1));
    for (tag, Completion { status, .. }) in collect(machine, driver, 32) {
        let gone = tag % 2 == 1 && [D::NO_TARGET, D::RESET].contains(&status);
        assert!(status == 0 || gone, "tag {tag}: status {status:#x}");
    }
    ended(driver);
    run_clean(&mut harness, &Workload { mode: Mode::Check, ..JOB });
    let gone = harness.run(&Workload { target: 1, ..JOB }).unwrap().report;
    assert_eq!((gone.errors, gone.fault.status), (1, D::NO_TARGET));
}
