//! The bus-independent interface of I/O threads and virtual CPUs to a device.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use paradisk_devices::vmbus::VmbusDevice;
use paradisk_devices::{IoDevice, PciDevice};

use super::shared::Shared;
use crate::doorbells::{DoorbellWrite, Doorbells};
use crate::layout;
use crate::mailbox::Mailbox;

/// A device of a bus.
pub(crate) trait BusDevice: IoDevice + 'static {
    /// The device without its bus.
    fn as_io_device(&mut self) -> &mut (dyn IoDevice + 'static);

    /// The doorbells, by index, with the device's own events. Constant.
    fn doorbell_writes(&self) -> Vec<(DoorbellWrite, Option<BorrowedFd<'_>>)>;
}

impl BusDevice for dyn PciDevice {
    fn as_io_device(&mut self) -> &mut (dyn IoDevice + 'static) {
        self
    }

    fn doorbell_writes(&self) -> Vec<(DoorbellWrite, Option<BorrowedFd<'_>>)> {
        let writes = self.doorbells().iter().copied().map(DoorbellWrite::Register);
        writes.enumerate().map(|(index, write)| (write, self.doorbell_event(index))).collect()
    }
}

impl BusDevice for dyn VmbusDevice {
    fn as_io_device(&mut self) -> &mut (dyn IoDevice + 'static) {
        self
    }

    fn doorbell_writes(&self) -> Vec<(DoorbellWrite, Option<BorrowedFd<'_>>)> {
        let write =
            |connection: &u32| DoorbellWrite::Value { port: layout::SIGNAL_EVENT, value: *connection };
        self.connections().iter().map(|connection| (write(connection), None)).collect()
    }
}

/// Access to a device from a virtual CPU's thread.
pub(crate) struct DeviceHandle<D: BusDevice + ?Sized> {
    pub(crate) mailbox: Mailbox<D>,
    pub(crate) doorbells: Arc<Doorbells>,
    pub(crate) shared: Arc<Shared<D>>,
}
