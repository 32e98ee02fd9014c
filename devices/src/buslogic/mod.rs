//! BusLogic's MultiMaster adapter BT-958, for the drivers of Linux and FreeBSD.
//!
//! Requests (CCBs) and completions pass through mailboxes in guest memory. Byte-wide registers execute commands, are the doorbell of the
//! mailboxes, and acknowledge the interrupt, which is INTx.
//! - `spec`: registers, commands and structures,
//! - `command`: the protocol of commands over the registers, `control`: executes them, `replies`: their replies,
//! - `mailbox`: the mailboxes, `ccb`: parses and completes CCBs,
//! - `io`: the I/O path of a batch of requests, `management`: aborts and resets,
//! - `interrupts`: the interrupt register,
//! - `device`: register space and the contract with the owner.
//!
//! Not implemented: CCBs and mailboxes with 24-bit addresses, which belong to ISA adapters, and the commands of the adapter's BIOS.

mod ccb;
mod command;
mod control;
mod device;
mod interrupts;
mod io;
mod mailbox;
mod management;
mod replies;
pub mod spec;

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;

use self::ccb::{Pending, Request};
use self::command::Protocol;
use self::interrupts::Causes;
use self::mailbox::{Incoming, Mailboxes};
use crate::device::BarKind;
use crate::hba::Engine;
use crate::interrupt::InterruptSink;
use crate::moderation::Coalescing;
use crate::pci::{Function, Identity, LayoutError};
use crate::scsi::Bus;

/// Targets of the bus, the adapter among them.
pub const TARGETS: u8 = 16;
/// The adapter's own target.
pub const OWN_ID: u8 = 7;
/// Maximum length of a CDB in a CCB, in bytes.
const LONGEST_CDB: u8 = 12;

/// Whether a target may have units.
#[must_use]
pub const fn has_target(target: u8) -> bool {
    target < TARGETS && target != OWN_ID
}

/// The configuration of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Maximum number of requests in flight; the bus must have been made for at least as many. Further requests wait.
    pub tasks: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { coalescing: Coalescing::default(), tasks: 256 }
    }
}

/// A BusLogic adapter.
///
/// Base address register 0 is I/O ports, 1 the same registers in memory.
pub struct BusLogic<A: GuestAddressSpace> {
    engine: Engine<A, Pending, Request, Incoming>,
    function: Function,
    causes: Causes,
    protocol: Protocol,
    mailboxes: Option<Mailboxes>,
    /// Strict round robin: outgoing mailboxes are used in turn.
    strict: bool,
    /// CCBs have the extended format.
    extended: bool,
    /// Outgoing mailboxes may be loaded: the doorbell has been rung since the device last found no loaded mailbox.
    loaded: bool,
    /// Resets of targets that wait for disk requests.
    resets: Vec<(u8, Pending)>,
    /// Scratch memory for one request.
    bufs: Vec<IoBuf>,
}

impl<A: GuestAddressSpace> BusLogic<A> {
    /// An adapter in front of `bus`.
    ///
    /// # Errors
    /// None: the layout is constant. [`LayoutError`] is the error of the PCI function's builder.
    pub fn new(
        memory: A,
        mut bus: Bus,
        interrupts: Box<dyn InterruptSink>,
        config: Config,
    ) -> Result<Self, LayoutError> {
        let identity = Identity {
            vendor: spec::PCI_VENDOR_ID_BUSLOGIC,
            device: spec::PCI_DEVICE_ID_MULTIMASTER,
            revision: 1,
            // Mass storage, SCSI.
            class: [0x01, 0x00, 0x00],
            subsystem_vendor: spec::PCI_VENDOR_ID_BUSLOGIC,
            subsystem: spec::PCI_DEVICE_ID_MULTIMASTER,
        };
        let function = Function::new(&identity, interrupts)
            .with_bar(0, BarKind::Io, spec::REGISTER_SPACE)?
            .with_bar(1, BarKind::Memory32, spec::REGISTER_SPACE)?
            .with_intx(1);
        bus.limit_cdbs(LONGEST_CDB);
        Ok(Self {
            engine: Engine::new(memory, bus, config.coalescing, config.tasks),
            function,
            causes: Causes::new(),
            protocol: Protocol::new(),
            mailboxes: None,
            strict: false,
            extended: false,
            loaded: false,
            resets: Vec::new(),
            bufs: Vec::with_capacity(256),
        })
    }
}

#[cfg(test)]
mod tests;
