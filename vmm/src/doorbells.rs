//! The doorbells of a device: writes that KVM (ioeventfd) or the virtual CPU's thread turns into events.
#![expect(clippy::disallowed_types, reason = "addresses change on slow paths; to ring takes no lock")]
#![allow(unsafe_code, reason = "an eventfd of vmm-sys-util is made from a descriptor")]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvm_ioctls::{IoEventAddress, NoDatamatch};
use paradisk_devices::{Bar, BarKind, Doorbell};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::error::Error;
use crate::memory::Vm;

/// A write that rings a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoorbellWrite {
    /// Any value, to a register in the space of a base address register.
    Register(Doorbell),
    /// This value of four bytes, to a port whose address is fixed.
    Value {
        /// The port.
        port: u16,
        /// The value.
        value: u32,
    },
}

/// The access that KVM matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    Memory(u64),
    Port(u64),
    PortValue(u64, u32),
}

/// A doorbell and its event.
struct Bell {
    write: DoorbellWrite,
    event: EventFd,
    /// The device waits for the event on a thread of its own.
    of_device: bool,
}

impl Bell {
    fn new(write: DoorbellWrite, event: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let Some(event) = event else {
            return Ok(Self { write, event: EventFd::new(EFD_NONBLOCK)?, of_device: false });
        };
        let event = event.try_clone_to_owned()?.into_raw_fd();
        // SAFETY: an open descriptor that nothing else owns.
        Ok(Self { write, event: unsafe { EventFd::from_raw_fd(event) }, of_device: true })
    }
}

/// A device's doorbells.
pub(crate) struct Doorbells {
    bells: Vec<Bell>,
    places: Mutex<Places>,
}

/// Addresses and registrations of the doorbells.
struct Places {
    vm: Option<Arc<Vm>>,
    bars: Vec<Bar>,
    /// For each doorbell, its ioeventfd, if registered.
    registered: Vec<Option<Match>>,
}

impl Doorbells {
    /// An event for each of these writes: the device's own event if it has one, else a new one. KVM signals the events once the addresses
    /// are known.
    pub(crate) fn new<'a>(
        writes: impl IntoIterator<Item = (DoorbellWrite, Option<BorrowedFd<'a>>)>,
    ) -> Result<Self, Error> {
        let bells = writes.into_iter().map(|(write, event)| Bell::new(write, event));
        let bells = bells.collect::<Result<Vec<_>, _>>().map_err(Error::os("eventfd"))?;
        let registered = vec![None; bells.len()];
        Ok(Self { bells, places: Mutex::new(Places { vm: None, bars: Vec::new(), registered }) })
    }

    /// The doorbells that the I/O thread serves, by index.
    pub(crate) fn events(&self) -> impl Iterator<Item = (u32, &EventFd)> {
        (0..).zip(&self.bells).filter(|(_, bell)| !bell.of_device).map(|(index, bell)| (index, &bell.event))
    }

    /// The doorbell at a register.
    pub(crate) fn find(&self, bar: u8, offset: u64, len: usize) -> Option<usize> {
        self.bells.iter().position(|bell| match &bell.write {
            DoorbellWrite::Register(register) => {
                (register.bar, register.offset, usize::from(register.len)) == (bar, offset, len)
            }
            DoorbellWrite::Value { .. } => false,
        })
    }

    /// The doorbell for a value written to a port.
    pub(crate) fn find_value(&self, port: u16, value: u32) -> Option<usize> {
        self.bells.iter().position(|bell| bell.write == DoorbellWrite::Value { port, value })
    }

    /// Signal the thread that serves the doorbell: the I/O thread, or one of the device's.
    pub(crate) fn ring(&self, index: usize) {
        if let Some(bell) = self.bells.get(index) {
            // Fails only after 2^64 writes that nobody has read.
            let _ = bell.event.write(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device was added to its bus with these base address registers, or the guest may have moved them.
    pub(crate) fn moved(&self, vm: &Arc<Vm>, bars: &[Bar]) {
        let mut places = self.lock();
        places.vm = Some(Arc::clone(vm));
        places.bars = bars.to_vec();
        self.update(&mut places);
    }

    /// Register the changes with KVM.
    fn update(&self, places: &mut Places) {
        let Places { vm: Some(vm), bars, registered } = places else { return };
        for (Bell { write, event, .. }, registered) in self.bells.iter().zip(registered) {
            let at = write.place(bars);
            if at == *registered {
                continue;
            }
            if let Some(old) = registered.take() {
                // `register` used the same arguments. If this fails all the same, writes to the old address still signal `event`, and the
                // device finds no request.
                let _ = old.unregister(vm, event);
            }
            // KVM refuses an address at which another doorbell is registered. Writes to this doorbell then exit, and the virtual CPU's
            // thread signals `event`.
            *registered = at.filter(|at| at.register(vm, event).is_ok());
        }
    }
}

impl DoorbellWrite {
    /// The address with these base address registers.
    fn place(&self, bars: &[Bar]) -> Option<Match> {
        match *self {
            Self::Register(Doorbell { bar, offset, .. }) => {
                let bar = bars.iter().find(|each| each.index == bar)?;
                let address = bar.address?.checked_add(offset)?;
                Some(match bar.kind {
                    BarKind::Io | BarKind::FixedIo => Match::Port(address),
                    BarKind::Memory32 | BarKind::Memory64 => Match::Memory(address),
                })
            }
            Self::Value { port, value } => Some(Match::PortValue(port.into(), value)),
        }
    }
}

impl Match {
    fn register(self, vm: &Vm, event: &EventFd) -> Result<(), kvm_ioctls::Error> {
        match self {
            Self::Memory(at) => vm.fd.register_ioevent(event, &IoEventAddress::Mmio(at), NoDatamatch),
            Self::Port(at) => vm.fd.register_ioevent(event, &IoEventAddress::Pio(at), NoDatamatch),
            Self::PortValue(at, value) => vm.fd.register_ioevent(event, &IoEventAddress::Pio(at), value),
        }
    }

    fn unregister(self, vm: &Vm, event: &EventFd) -> Result<(), kvm_ioctls::Error> {
        match self {
            Self::Memory(at) => vm.fd.unregister_ioevent(event, &IoEventAddress::Mmio(at), NoDatamatch),
            Self::Port(at) => vm.fd.unregister_ioevent(event, &IoEventAddress::Pio(at), NoDatamatch),
            Self::PortValue(at, value) => vm.fd.unregister_ioevent(event, &IoEventAddress::Pio(at), value),
        }
    }
}
