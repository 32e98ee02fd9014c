//! A device whose disks come and go, as its owner orders.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::Receiver;

use paradisk_devices::scsi::Address;
use paradisk_devices::{Bar, Coalescing, Doorbell, HotPlug, IoDevice, PciDevice, Sleep, Stats, Time};

use super::DiskSpec;

/// What the owner of the device is told to do, on the thread that owns it.
pub(crate) enum Order {
    Attach(u8, DiskSpec),
    Detach(u8),
}

/// The device with its owner's inbox.
pub(crate) struct Owned<D> {
    pub(crate) device: D,
    pub(crate) orders: Receiver<Order>,
}

const fn address(target: u8) -> Address {
    Address { target, lun: 0 }
}

impl<D: PciDevice + HotPlug> PciDevice for Owned<D> {
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.device.config_read(offset, data);
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        self.device.config_write(offset, data);
    }

    fn bars(&self) -> Vec<Bar> {
        self.device.bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], now: Time) {
        self.device.bar_read(bar, offset, data, now);
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time) {
        self.device.bar_write(bar, offset, data, now);
    }

    fn doorbells(&self) -> &[Doorbell] {
        self.device.doorbells()
    }

    fn on_blocking_doorbell(&mut self, index: usize, now: Time) {
        self.device.on_blocking_doorbell(index, now);
    }
}

impl<D: PciDevice + HotPlug> IoDevice for Owned<D> {
    fn on_doorbell(&mut self, index: usize, now: Time) {
        self.device.on_doorbell(index, now);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        self.device.completion_events()
    }

    fn on_completions(&mut self, now: Time) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Attach(target, spec) => self.device.attach(address(target), spec.unit()).unwrap(),
                Order::Detach(target) => assert!(self.device.detach(address(target), now)),
            }
        }
        self.device.on_completions(now);
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        self.device.before_sleep(now)
    }

    fn reset(&mut self, now: Time) {
        self.device.reset(now);
    }

    fn quiesce(&mut self, now: Time) {
        self.device.quiesce(now);
    }

    fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.device.set_coalescing(coalescing);
    }

    fn stats(&self) -> Stats {
        self.device.stats()
    }
}
