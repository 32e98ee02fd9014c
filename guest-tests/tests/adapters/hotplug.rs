//! Disks added and removed while the guest runs: the message ring notifies the driver.

use std::sync::mpsc::Sender;

use guest_driver::pvscsi::{Message, MessageKind};
use guest_driver::{InterruptMode, Pvscsi, pvscsi};
use guest_tests::{Harness, Machine};
use paradisk_devices::pvscsi::{Config, Pvscsi as Device};
use paradisk_devices::scsi::Bus;

use crate::common::hot_plug::{self, Notified, without_disks};
use crate::common::owned::Order;

impl Notified for Pvscsi {
    type Notice = Message;
    const NO_TARGET: u32 = pvscsi::spec::BTSTAT_SELTIMEO << 8;
    const RESET: u32 = 0x25 << 8;

    fn take_notice(&mut self, _: &mut Machine) -> Option<Message> {
        self.take_message()
    }

    fn added(target: u8) -> Message {
        Message { kind: MessageKind::Added, bus: 0, target: target.into(), lun: 0 }
    }

    fn removed(target: u8) -> Message {
        Message { kind: MessageKind::Removed, ..Self::added(target) }
    }
}

fn empty_adapter(options: pvscsi::Options) -> (Harness, Sender<Order>) {
    without_disks(options, |memory, interrupts| {
        Device::new(memory, Bus::new(1024), interrupts, Config::default())
    })
}

#[test]
fn disks_come_and_go() {
    for interrupts in [InterruptMode::MsiX, InterruptMode::Msi, InterruptMode::Intx] {
        let options = pvscsi::Options { interrupts, ..Default::default() };
        hot_plug::disks_come_and_go(empty_adapter(options), 40);
    }
}

#[test]
fn messages_beyond_the_ring_are_not_lost() {
    hot_plug::no_notice_is_lost(empty_adapter(pvscsi::Options::default()));
}

#[test]
fn requests_to_a_removed_disk_end_and_others_go_on() {
    let empty = empty_adapter(pvscsi::Options::default());
    hot_plug::requests_to_a_removed_disk_end_and_others_go_on(empty, |driver: &Pvscsi| {
        assert_eq!(driver.in_flight(), 0);
    });
}
