//! Disks added and removed while the guest runs: the message ring tells the driver.

mod common;

use std::sync::mpsc::{Sender, channel};

use common::owned::{Order, Owned};
use common::{DiskSpec, JOB, collect, run_clean, submit_to};
use guest_driver::adapter::{Adapter, Buffer, Completion, Op};
use guest_driver::pvscsi::{Message, MessageKind};
use guest_driver::scsi::Cdb;
use guest_driver::{Initiator as _, InterruptMode, Mode, Platform, Workload, pvscsi};
use guest_tests::rig::Rig;
use guest_tests::{Harness, HarnessConfig, Machine};
use paradisk_devices::pvscsi::{Config, Pvscsi as Device};
use paradisk_devices::scsi::Bus;

fn empty_adapter(options: pvscsi::Options) -> (Harness, Sender<Order>) {
    let (sender, orders) = channel();
    let harness = Harness::start(&HarnessConfig::default(), options, |memory, interrupts| {
        let device = Device::new(memory, Bus::new(1024), interrupts, Config::default())?;
        Ok(Box::new(Owned { device, orders }))
    });
    (harness.unwrap(), sender)
}

/// The next message, after an interrupt.
fn message(machine: &mut Machine, driver: &mut guest_driver::Pvscsi) -> Message {
    for _ in 0..10 {
        let seen = machine.interrupts();
        driver.interrupted(machine);
        if let Some(message) = driver.take_message() {
            return message;
        }
        machine.wait_interrupt(seen);
    }
    panic!("no message came")
}

#[test]
fn disks_come_and_go() {
    for interrupts in [InterruptMode::MsiX, InterruptMode::Msi, InterruptMode::Intx] {
        let (mut harness, orders) = empty_adapter(pvscsi::Options { interrupts, ..Default::default() });
        // More rounds than the message ring has entries.
        for round in 0..40 {
            for target in [0, 3, 63] {
                orders.send(Order::Attach(target, DiskSpec::Ram(1 << 20))).unwrap();
                let (machine, driver) = harness.parts();
                let expected = Message { kind: MessageKind::Added, bus: 0, target: target.into(), lun: 0 };
                assert_eq!(message(machine, driver), expected, "round {round}");
                for mode in [Mode::Fill, Mode::Check] {
                    let job = Workload { mode, target: target.into(), span: 64 << 10, ..JOB };
                    run_clean(&mut harness, &job);
                }
            }
            for target in [0, 3, 63] {
                orders.send(Order::Detach(target)).unwrap();
                let (machine, driver) = harness.parts();
                let expected = Message { kind: MessageKind::Removed, bus: 0, target: target.into(), lun: 0 };
                assert_eq!(message(machine, driver), expected, "round {round}");
                let gone =
                    driver.execute(machine, target.into(), &Cdb::test_unit_ready(), &Buffer::NONE, false);
                assert_eq!(gone.unwrap().completion.status, pvscsi::spec::BTSTAT_SELTIMEO << 8);
            }
        }
    }
}

#[test]
fn messages_beyond_the_ring_are_not_lost() {
    let (mut harness, orders) = empty_adapter(pvscsi::Options::default());
    for target in 0..60 {
        orders.send(Order::Attach(target, DiskSpec::Ram(1 << 20))).unwrap();
    }
    let (machine, driver) = harness.parts();
    for target in 0..60 {
        assert_eq!(message(machine, driver).target, target);
    }
}

#[test]
fn requests_to_a_removed_disk_end_and_others_go_on() {
    let (mut harness, orders) = empty_adapter(pvscsi::Options::default());
    for target in [0, 1] {
        orders.send(Order::Attach(target, DiskSpec::Ram(1 << 20))).unwrap();
        let (machine, driver) = harness.parts();
        message(machine, driver);
        run_clean(&mut harness, &Workload { target: target.into(), ..JOB });
    }
    let (machine, driver) = harness.parts();
    let buffers = machine.dma(32 * 4096, 4096).unwrap();
    submit_to(machine, driver, Op::Read, &buffers, 2, 32);
    orders.send(Order::Detach(1)).unwrap();
    assert_eq!(message(machine, driver).target, 1);
    for (tag, Completion { status, .. }) in collect(machine, driver, 32) {
        let allowed: &[u32] = if tag % 2 == 0 { &[0] } else { &[0, 0x11 << 8, 0x25 << 8] };
        assert!(allowed.contains(&status), "tag {tag}: status {status:#x}");
    }
    assert_eq!(driver.in_flight(), 0);
    run_clean(&mut harness, &Workload { mode: Mode::Check, ..JOB });
    let gone = harness.run(&Workload { target: 1, ..JOB }).unwrap().report;
    assert_eq!((gone.errors, gone.fault.status), (1, 0x11 << 8));
}
