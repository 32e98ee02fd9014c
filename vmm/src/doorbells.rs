//! The doorbells of a device: registers whose writes become events, by KVM alone (ioeventfd) or by the virtual CPU's thread.
#![expect(clippy::disallowed_types, reason = "addresses change on slow paths; to ring takes no lock")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvm_ioctls::{IoEventAddress, NoDatamatch};
use paradisk_devices::{Bar, BarKind, Doorbell};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::error::Error;
use crate::memory::Vm;

/// A device's doorbells.
pub(crate) struct Doorbells {
    bells: Vec<(Doorbell, EventFd)>,
    places: Mutex<Places>,
}

/// Where they are.
struct Places {
    vm: Option<Arc<Vm>>,
    bars: Vec<Bar>,
    /// Whether KVM is to signal the events by itself.
    by_kvm: bool,
    /// For each, where it is an ioeventfd.
    registered: Vec<Option<(BarKind, u64)>>,
}

impl Doorbells {
    /// Events for these registers, which KVM is to signal as soon as their addresses are known.
    pub(crate) fn new(registers: &[Doorbell]) -> Result<Self, Error> {
        let event = |register: &Doorbell| EventFd::new(EFD_NONBLOCK).map(|event| (*register, event));
        let bells =
            registers.iter().map(event).collect::<Result<Vec<_>, _>>().map_err(Error::os("eventfd"))?;
        let registered = vec![None; bells.len()];
        Ok(Self {
            bells,
            places: Mutex::new(Places { vm: None, bars: Vec::new(), by_kvm: true, registered }),
        })
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = &EventFd> {
        self.bells.iter().map(|(_, event)| event)
    }

    /// The doorbell that is a register.
    pub(crate) fn find(&self, bar: u8, offset: u64, len: usize) -> Option<usize> {
        self.bells.iter().position(|(register, _)| {
            (register.bar, register.offset, usize::from(register.len)) == (bar, offset, len)
        })
    }

    /// Have the I/O thread serve it.
    pub(crate) fn ring(&self, index: usize) {
        if let Some((_, event)) = self.bells.get(index) {
            // Fails only when rung 2^64 times before it is heard.
            let _ = event.write(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest may have moved the base address registers.
    pub(crate) fn moved(&self, vm: &Arc<Vm>, bars: &[Bar]) {
        let mut places = self.lock();
        places.vm = Some(Arc::clone(vm));
        places.bars = bars.to_vec();
        self.update(&mut places);
    }

    /// Whether KVM is to signal the events by itself. Otherwise writes leave the guest.
    pub(crate) fn set_by_kvm(&self, by_kvm: bool) {
        let mut places = self.lock();
        places.by_kvm = by_kvm;
        self.update(&mut places);
    }

    /// Tell KVM what has changed.
    fn update(&self, places: &mut Places) {
        let Places { vm: Some(vm), bars, by_kvm, registered } = places else { return };
        for ((register, event), registered) in self.bells.iter().zip(registered) {
            let bar = bars.iter().find(|bar| bar.index == register.bar && *by_kvm);
            let at = bar.and_then(|bar| Some((bar.kind, bar.address?.checked_add(register.offset)?)));
            if at == *registered {
                continue;
            }
            if let Some((kind, address)) = registered.take() {
                // It was registered so; a failure leaves an event that rings for nothing.
                let _ = vm.fd.unregister_ioevent(event, &io_event(kind, address), NoDatamatch);
            }
            if let Some((kind, address)) = at {
                // Where another doorbell lies already, this one's writes leave the guest and ring here.
                if vm.fd.register_ioevent(event, &io_event(kind, address), NoDatamatch).is_ok() {
                    *registered = at;
                }
            }
        }
    }
}

const fn io_event(kind: BarKind, address: u64) -> IoEventAddress {
    match kind {
        BarKind::Io | BarKind::FixedIo => IoEventAddress::Pio(address),
        BarKind::Memory32 | BarKind::Memory64 => IoEventAddress::Mmio(address),
    }
}
