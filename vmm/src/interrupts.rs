//! Interrupts from devices into the in-kernel controllers: messages by irqfd or `KVM_SIGNAL_MSI`, INTx lines by
//! `KVM_IRQ_LINE`. Linux `Documentation/virt/kvm/api.rst`, sections 4.25, 4.52, 4.71 and 4.75.
#![expect(
    clippy::disallowed_types,
    reason = "routes change on slow paths; a message takes no lock; a change of a line is a system call"
)]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE, KvmIrqRouting, kvm_irq_routing_entry, kvm_msi,
};
use paradisk_devices::{InterruptSink, MsiMessage};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::error::Error;
use crate::layout::{self, intx_gsi};
use crate::memory::Vm;

/// Messages have the interrupt numbers (GSIs) after the I/O APIC's pins.
const IO_APIC_PINS: u32 = layout::IO_APIC_PINS as u32;
/// Maximum number of vectors of a device: that of MSI-X.
const MAX_VECTORS: usize = 2048;
/// KVM's limit on routes, minus the 40 routes of the pins: 16 of the PIC and 24 of the I/O APIC.
const MAX_ROUTES: usize = 4096 - 40;

/// How messages are delivered to the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MsiDelivery {
    /// One `KVM_SIGNAL_MSI` ioctl; needs no routes.
    #[default]
    Ioctl,
    /// One write to an irqfd; a route for each vector.
    Irqfd,
}

/// The machine's interrupt numbers.
pub(crate) struct Router {
    vm: Arc<Vm>,
    delivery: MsiDelivery,
    routes: Mutex<BTreeMap<u32, MsiMessage>>,
    /// For each pin, the number of devices that assert it.
    lines: Mutex<[u32; IO_APIC_PINS as usize]>,
}

impl Router {
    pub(crate) fn new(vm: Arc<Vm>, delivery: MsiDelivery) -> Result<Self, Error> {
        let lines = Mutex::new([0; IO_APIC_PINS as usize]);
        let router = Self { vm, delivery, routes: Mutex::default(), lines };
        // Replace KVM's default routes, which have the timer at pin 0 of the I/O APIC: here it is at pin 2 (`layout::isa_gsi`).
        router.apply(&BTreeMap::new())?;
        Ok(router)
    }

    /// The interrupt sink of the device in `slot`.
    pub(crate) fn sink(self: &Arc<Self>, slot: u8) -> Box<dyn InterruptSink> {
        let lines = Lines { own: self.line(intx_gsi(slot)), isa: Vec::new() };
        Box::new(Sink { vectors: Vec::new(), lines })
    }

    /// A device's share of a line, initially low.
    fn line(self: &Arc<Self>, gsi: u32) -> Line {
        Line { router: Arc::clone(self), gsi, asserted: false }
    }

    /// Pulse an interrupt of the ISA bus, which is edge-triggered.
    pub(crate) fn pulse(&self, irq: u8) {
        for level in [true, false] {
            // Fails only for a line that does not exist.
            let _ = self.vm.fd.set_irq_line(irq.into(), level);
        }
    }

    /// Add a route with a new GSI. `None`: no more GSIs, or KVM refuses.
    fn add(&self, message: MsiMessage) -> Option<u32> {
        let mut routes = lock(&self.routes);
        if routes.len() >= MAX_ROUTES {
            return None;
        }
        let gsi = (IO_APIC_PINS..).find(|gsi| !routes.contains_key(gsi))?;
        routes.insert(gsi, message);
        if self.apply(&routes).is_err() {
            routes.remove(&gsi);
            return None;
        }
        Some(gsi)
    }

    fn change(&self, gsi: u32, message: MsiMessage) -> Result<(), Error> {
        let mut routes = lock(&self.routes);
        routes.insert(gsi, message);
        self.apply(&routes)
    }

    fn remove(&self, gsi: u32) {
        let mut routes = lock(&self.routes);
        routes.remove(&gsi);
        // If KVM refuses, the old route stays without effect, because its irqfd is closed.
        let _ = self.apply(&routes);
    }

    fn apply(&self, routes: &BTreeMap<u32, MsiMessage>) -> Result<(), Error> {
        let mut entries: Vec<_> = pins().collect();
        entries.extend(routes.iter().map(|(gsi, message)| {
            let mut entry =
                kvm_irq_routing_entry { gsi: *gsi, type_: KVM_IRQ_ROUTING_MSI, ..Default::default() };
            entry.u.msi.address_lo = message.address as u32;
            entry.u.msi.address_hi = (message.address >> 32) as u32;
            entry.u.msi.data = message.data;
            entry
        }));
        let entries = KvmIrqRouting::from_entries(&entries)
            .map_err(|_| Error::Os { what: "interrupt routes", source: io::ErrorKind::OutOfMemory.into() })?;
        self.vm.fd.set_gsi_routing(&entries).map_err(Error::kvm("KVM_SET_GSI_ROUTING"))
    }
}

/// The pins of the PIC and of the I/O APIC, by [`layout::isa_gsi`].
fn pins() -> impl Iterator<Item = kvm_irq_routing_entry> {
    let entry = |gsi, chip, pin| {
        let mut entry = kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_IRQCHIP, ..Default::default() };
        entry.u.irqchip.irqchip = chip;
        entry.u.irqchip.pin = pin;
        entry
    };
    let pic = (0..16).map(move |gsi| {
        let chip = if gsi < 8 { KVM_IRQCHIP_PIC_MASTER } else { KVM_IRQCHIP_PIC_SLAVE };
        entry(gsi, chip, gsi % 8)
    });
    let io_apic = (0..layout::IO_APIC_PINS)
        .map(move |gsi| entry(gsi.into(), KVM_IRQCHIP_IOAPIC, layout::isa_gsi(gsi).into()));
    pic.chain(io_apic)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device's share of an interrupt line. Its drop lowers the line.
struct Line {
    router: Arc<Router>,
    gsi: u32,
    asserted: bool,
}

impl Line {
    fn set(&mut self, asserted: bool) {
        if self.asserted == asserted {
            return;
        }
        self.asserted = asserted;
        let mut lines = lock(&self.router.lines);
        let Some(devices) = lines.get_mut(self.gsi as usize) else { return };
        *devices = if asserted { *devices + 1 } else { devices.saturating_sub(1) };
        let changes = *devices == u32::from(asserted);
        if changes {
            // Fails only for a line that does not exist.
            let _ = self.router.vm.fd.set_irq_line(self.gsi, asserted);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// The lines of a device: INTx, and the ISA lines that the device has used.
struct Lines {
    own: Line,
    isa: Vec<Line>,
}

impl Lines {
    fn set_isa(&mut self, irq: u8, asserted: bool) {
        let gsi = layout::isa_gsi(irq).into();
        if let Some(line) = self.isa.iter_mut().find(|line| line.gsi == gsi) {
            line.set(asserted);
        } else if irq < layout::ISA_IRQS {
            let mut line = self.own.router.line(gsi);
            line.set(asserted);
            self.isa.push(line);
        }
    }
}

struct Sink {
    vectors: Vec<Option<Vector>>,
    lines: Lines,
}

/// The argument of `KVM_SIGNAL_MSI`.
fn msi(message: MsiMessage) -> kvm_msi {
    kvm_msi {
        address_lo: message.address as u32,
        address_hi: (message.address >> 32) as u32,
        data: message.data,
        ..Default::default()
    }
}

/// State of a vector that has a message.
enum Vector {
    Ioctl(kvm_msi),
    Irqfd(Irqfd),
    /// KVM has refused the route, or there are no more of them.
    Refused(MsiMessage),
}

impl Vector {
    fn new(router: &Arc<Router>, message: MsiMessage) -> Self {
        match router.delivery {
            MsiDelivery::Ioctl => Self::Ioctl(msi(message)),
            MsiDelivery::Irqfd => Irqfd::new(router, message).map_or(Self::Refused(message), Self::Irqfd),
        }
    }

    /// Send the message by ioctl, which needs no route. Then try again to add a route for later messages.
    #[cold]
    fn send_refused(&mut self, router: &Arc<Router>) {
        let Self::Refused(message) = *self else { return };
        let _ = router.vm.fd.signal_msi(msi(message));
        *self = Self::new(router, message);
    }
}

struct Irqfd {
    router: Arc<Router>,
    event: EventFd,
    gsi: u32,
}

impl Irqfd {
    fn new(router: &Arc<Router>, message: MsiMessage) -> Option<Self> {
        let event = EventFd::new(EFD_NONBLOCK).ok()?;
        let gsi = router.add(message)?;
        let irqfd = Self { router: Arc::clone(router), event, gsi };
        router.vm.fd.register_irqfd(&irqfd.event, gsi).ok()?;
        Some(irqfd)
    }
}

impl Drop for Irqfd {
    fn drop(&mut self) {
        // If this fails, closing the event has the same effect.
        let _ = self.router.vm.fd.unregister_irqfd(&self.event, self.gsi);
        self.router.remove(self.gsi);
    }
}

impl InterruptSink for Sink {
    fn route(&mut self, vector: u16, message: Option<MsiMessage>) {
        let router = &self.lines.own.router;
        let Some(entry) = slot(&mut self.vectors, vector) else { return };
        *entry = match (entry.take(), message) {
            (_, None) => None,
            (Some(Vector::Irqfd(irqfd)), Some(message)) => match router.change(irqfd.gsi, message) {
                Ok(()) => Some(Vector::Irqfd(irqfd)),
                Err(_) => Some(Vector::Refused(message)),
            },
            (_, Some(message)) => Some(Vector::new(router, message)),
        };
    }

    fn message(&mut self, vector: u16) {
        let Some(Some(vector)) = self.vectors.get_mut(usize::from(vector)) else { return };
        let router = &self.lines.own.router;
        match vector {
            Vector::Ioctl(message) => {
                // A message that no interrupt controller accepts is lost, as in hardware.
                let _ = router.vm.fd.signal_msi(*message);
            }
            Vector::Irqfd(irqfd) => {
                // Fails only when 2^64 messages are pending.
                let _ = irqfd.event.write(1);
            }
            Vector::Refused(_) => vector.send_refused(router),
        }
    }

    fn line(&mut self, asserted: bool) {
        self.lines.own.set(asserted);
    }

    fn isa_line(&mut self, irq: u8, asserted: bool) {
        self.lines.set_isa(irq, asserted);
    }
}

/// The entry of a vector, created with its first route.
fn slot<T>(vectors: &mut Vec<Option<T>>, vector: u16) -> Option<&mut Option<T>> {
    let index = usize::from(vector);
    if index >= MAX_VECTORS {
        return None;
    }
    if index >= vectors.len() {
        vectors.resize_with(index + 1, || None);
    }
    vectors.get_mut(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Host;
    use crate::memory;

    const MESSAGE: MsiMessage = MsiMessage { address: layout::LOCAL_APIC, data: 0x30 };

    #[test]
    fn a_route_that_was_refused_is_tried_again() {
        let host = match Host::open() {
            Ok(host) => host,
            Err(error) => return println!("SKIP: a_route_that_was_refused_is_tried_again: {error}"),
        };
        let fd = host.create_vm().unwrap();
        fd.create_irq_chip().unwrap();
        let vm = Arc::new(Vm::new(fd, memory::allocate(0x10_0000).unwrap()).unwrap());
        let router = Arc::new(Router::new(vm, MsiDelivery::Irqfd).unwrap());
        let mut sink = router.sink(0);
        let routes = || lock(&router.routes).len();
        // Use up all routes.
        lock(&router.routes).extend((IO_APIC_PINS..).map(|gsi| (gsi, MESSAGE)).take(MAX_ROUTES));
        sink.route(3, Some(MESSAGE));
        sink.message(3);
        assert_eq!(routes(), MAX_ROUTES);
        lock(&router.routes).clear();
        sink.message(3);
        assert_eq!(routes(), 1);
        sink.message(3);
        sink.route(3, Some(MsiMessage { data: 0x31, ..MESSAGE }));
        assert_eq!(routes(), 1);
        sink.route(3, None);
        assert_eq!(routes(), 0);
    }
}
