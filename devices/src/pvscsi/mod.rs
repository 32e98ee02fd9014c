//! VMware's paravirtual SCSI adapter, as the PVSCSI drivers of Linux, FreeBSD and Windows know it.
//!
//! Requests and completions pass through rings in guest memory. The registers are the doorbells, the command interface and the interrupts'
//! status.
//! - `spec`: registers, commands and structures,
//! - `collector`: the command registers,
//! - `rings`: the rings,
//! - `request`: parses a ring entry into a task, and makes the completion of a task,
//! - `io`: the path of a batch of requests,
//! - `kicks`: the request-call threshold; `polling`: polls in place of kicks that block the driver,
//! - `control`: executes the commands,
//! - `causes`, `interrupts`: the interrupt registers, and the signals by INTx, MSI or MSI-X,
//! - `hotplug`: disks attached and detached while the guest runs,
//! - `device`: register space and the contract with the owner.

mod causes;
mod collector;
mod control;
mod device;
mod hotplug;
mod interrupts;
mod io;
mod kicks;
mod polling;
mod request;
mod rings;
pub mod spec;

use std::collections::VecDeque;
use std::time::Duration;

use vm_memory::GuestAddressSpace;

use self::causes::Causes;
use self::collector::Collector;
use self::kicks::Kicks;
use self::request::{Pending, Request};
use self::rings::{Messages, Rings};
use self::spec::{RingCmpDesc, RingMsgDesc};
use crate::device::BarKind;
use crate::hba::Engine;
use crate::interrupt::InterruptSink;
use crate::moderation::Coalescing;
use crate::pci::{Function, Identity, LayoutError};
use crate::scsi::Bus;

/// Maximum number of targets.
pub const MAX_TARGETS: u8 = 64;

/// How long a reset of the bus or of a device waits for disk I/O. This blocks the virtual CPU that wrote the register.
const RESET_WAIT: Duration = Duration::from_millis(250);

/// Configuration of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Targets that the guest is told to look for, 1 to [`MAX_TARGETS`].
    pub targets: u8,
    /// Maximum number of requests in flight; the bus must have been made for at least as many. Further requests wait in the
    /// guest's ring, or with several units in a backlog no longer than the ring.
    pub tasks: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { coalescing: Coalescing::default(), targets: MAX_TARGETS, tasks: 1024 }
    }
}

/// A PVSCSI adapter.
///
/// Its base address register 0 is memory; MSI-X, MSI and INTx have one vector.
pub struct Pvscsi<A: GuestAddressSpace> {
    engine: Engine<A, Pending, Request, RingCmpDesc>,
    function: Function,
    targets: u8,
    collector: Collector,
    rings: Option<Rings<A::T>>,
    messages: Option<Messages<A::T>>,
    /// Messages that found the ring full.
    deferred_messages: VecDeque<RingMsgDesc>,
    causes: Causes,
    /// The bus posts register writes: they may arrive late.
    bus_posts_writes: bool,
    /// Scratch register.
    debug: u32,
    kicks: Kicks,
    /// Requests that waited in the ring when completions were last reaped; 0 if there were no completions to reap.
    waiting_at_reap: u32,
    /// Requests were left in the ring, because they could not be taken (`Hba::can_fetch`).
    requests_left: bool,
    /// How long a reset of a bus or device waits for disk I/O.
    reset_wait: Duration,
    /// Buffers of a request: reused, so that they need not be allocated.
    bufs: Vec<paradisk_disk_formats::IoBuf>,
}

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// An adapter in front of `bus`.
    ///
    /// # Errors
    /// None: the layout is constant. [`LayoutError`] is the error of the PCI function's builder.
    pub fn new(
        memory: A,
        bus: Bus,
        interrupts: Box<dyn InterruptSink>,
        config: Config,
    ) -> Result<Self, LayoutError> {
        let identity = Identity {
            vendor: spec::PCI_VENDOR_ID_VMWARE,
            device: spec::PCI_DEVICE_ID_VMWARE_PVSCSI,
            revision: 2,
            // Mass storage, SAS.
            class: [0x01, 0x07, 0x00],
            subsystem_vendor: spec::PCI_VENDOR_ID_VMWARE,
            subsystem: spec::PCI_DEVICE_ID_VMWARE_PVSCSI,
        };
        let function = Function::new(&identity, interrupts)
            .with_bar(0, BarKind::Memory32, spec::PVSCSI_MEM_SPACE_SIZE)?
            .with_intx(1)
            .with_msi(1)?
            .with_msix(1, 0, spec::MSIX_TABLE_OFFSET, spec::MSIX_PBA_OFFSET)?;
        Ok(Self {
            engine: Engine::new(memory, bus, config.coalescing, config.tasks),
            function,
            targets: config.targets.clamp(1, MAX_TARGETS),
            collector: Collector::new(),
            rings: None,
            messages: None,
            deferred_messages: VecDeque::new(),
            causes: Causes::new(),
            bus_posts_writes: false,
            debug: 0,
            kicks: Kicks::new(),
            waiting_at_reap: 0,
            requests_left: false,
            reset_wait: RESET_WAIT,
            bufs: Vec::with_capacity(request::MAX_SEGMENTS),
        })
    }
}

#[cfg(test)]
mod tests;
