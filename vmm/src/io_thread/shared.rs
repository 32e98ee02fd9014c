//! A device, and the lock under which threads call it: its I/O thread, and the threads of virtual CPUs that access its registers.
//!
//! The I/O thread holds the lock except while it waits for events. Between two calls of the device it gives the lock to a thread that waits for
//! it, so an access to a register waits for one call, and thus for one batch of requests, at most.

use paradisk_devices::{AccessKind, PciDevice, Time};

use super::sync::{Mutex, MutexGuard};
use super::time::Instant;

/// A device, and the state that its threads share.
pub(crate) struct Shared<D: ?Sized> {
    held: Mutex<Held<D>>,
    origin: Instant,
}

/// The state that the lock protects.
pub(super) struct Held<D: ?Sized> {
    /// None once the I/O thread has ended, and after a panic of a virtual CPU's thread in the device.
    device: Option<Box<D>>,
    /// The I/O thread waits for events, and will not ask the device for work before an event comes.
    waits: bool,
}

/// A virtual CPU's thread has panicked while it called the device.
#[derive(Debug)]
pub(super) struct Poisoned;

/// The result of an access on a virtual CPU's thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Accessed<R> {
    /// It was made.
    Done(R),
    /// It was made. Wake the I/O thread: the device has work.
    Wake(R),
    /// It was not made: it is for the I/O thread, or that has ended.
    No,
}

impl<D: ?Sized> Shared<D> {
    pub(super) fn new(device: Box<D>, origin: Instant) -> Self {
        Self { held: Mutex::new(Held { device: Some(device), waits: false }), origin }
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() as u64)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Held<D>> {
        self.held.lock()
    }

    /// On the I/O thread, when it ends: no thread calls the device afterwards.
    pub(super) fn take_device(&self) -> Option<Box<D>> {
        self.lock().device.take()
    }
}

impl Shared<dyn PciDevice> {
    /// On a virtual CPU's thread: make an access to the space of a base address register, if any thread may make it; `write` has the data of a
    /// write.
    #[inline]
    pub(crate) fn access<R>(
        &self,
        (bar, offset): (u8, u64),
        write: Option<&[u8]>,
        access: impl FnOnce(&mut (dyn PciDevice + 'static), Time) -> R,
    ) -> Accessed<R> {
        self.lock()
            .access(|device| device.access_kind(bar, offset, write), |device| access(device, self.now()))
    }

    /// As [`access`](Self::access), for a read of configuration space.
    pub(crate) fn config_read(&self, offset: u16, data: &mut [u8]) -> Accessed<()> {
        self.lock().access(|_| AccessKind::Register, |device| device.config_read(offset, data))
    }
}

impl<D: ?Sized> Held<D> {
    fn access<R>(
        &mut self,
        kind: impl FnOnce(&D) -> AccessKind,
        access: impl FnOnce(&mut D) -> R,
    ) -> Accessed<R> {
        // If the access panics, the device is dropped, and the I/O thread ends.
        let Some(mut device) = self.device.take() else { return Accessed::No };
        let kind = kind(&device);
        let accessed = match kind {
            AccessKind::Command => Accessed::No,
            AccessKind::Submission if std::mem::take(&mut self.waits) => Accessed::Wake(access(&mut device)),
            // An I/O thread that does not wait asks the device for work before it waits.
            AccessKind::Register | AccessKind::Submission => Accessed::Done(access(&mut device)),
        };
        self.device = Some(device);
        accessed
    }

    /// On the I/O thread: the device.
    pub(super) fn device(&mut self) -> Result<&mut D, Poisoned> {
        self.device.as_deref_mut().ok_or(Poisoned)
    }

    /// On the I/O thread, after it has asked the device for work, before it releases the lock to wait.
    pub(super) const fn will_wait(&mut self) {
        self.waits = true;
    }

    /// On the I/O thread, after it has waited.
    pub(super) const fn has_waited(&mut self) {
        self.waits = false;
    }
}
