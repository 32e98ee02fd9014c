//! LSI Logic's Fusion-MPT controllers, for the drivers of Linux, FreeBSD and Windows.
//!
//! Requests are message frames in guest memory, whose addresses the guest writes to a FIFO. A successful SCSI I/O is
//! completed by its context alone (a context reply). Everything else is completed by a reply frame (an address reply).
//! - `spec`: registers and messages,
//! - `port`: the registers that each I/O uses,
//! - `handshake`: the doorbell handshake, by which the first messages are exchanged,
//! - `personality`, `pages`: the properties that the controller reports,
//! - `sgl`: scatter-gather lists,
//! - `message`: all functions except the two for SCSI,
//! - `scsi_io`, `task`: SCSI I/O and task management; `pending`, `management`: their state until the reply,
//! - `reply`: the content of reply frames,
//! - `hotplug`: hot-plug, and the events that report it,
//! - `device`: register space, controller states, and the interfaces for PCI and I/O thread.

mod device;
mod handshake;
mod hotplug;
mod management;
mod message;
mod pages;
mod pending;
mod personality;
mod port;
mod reply;
mod scsi_io;
mod sgl;
pub mod spec;
mod task;

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;

pub use self::personality::Personality;

use self::handshake::Handshake;
use self::management::Management;
use self::pages::Pages;
use self::pending::Pending;
use self::personality::REPLY_FRAME;
use self::port::Port;
use self::reply::Reply;
use self::sgl::MAX_SEGMENT;
use self::spec::IocState;
use crate::device::BarKind;
use crate::hba::Engine;
use crate::interrupt::InterruptSink;
use crate::moderation::Coalescing;
use crate::pci::{Function, LayoutError};
use crate::scsi::Bus;

/// Options of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The emulated controller.
    pub personality: Personality,
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Maximum number of SCSI I/Os in flight. The bus must be made for at least as many. Further requests wait.
    pub tasks: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { personality: Personality::default(), coalescing: Coalescing::default(), tasks: 1024 }
    }
}

/// An LSI Logic adapter.
///
/// BAR 0 has the registers as I/O ports, BAR 1 the same registers in memory, BAR 3 is diagnostic memory.
pub struct Lsi<A: GuestAddressSpace> {
    engine: Engine<A, Pending, (u32, Pending), Reply>,
    function: Function,
    personality: Personality,
    port: Port,
    state: IocState,
    /// The fault code, in the state [`IocState::Fault`].
    fault: u16,
    who_init: u8,
    handshake: Handshake,
    /// Number of keys of the write sequence that were written in order.
    keys: usize,
    diagnostic: u32,
    pages: Pages,
    /// Parameters of IOC INIT: reply frame size in bytes, upper halves of frame and sense addresses.
    reply_frame_size: u16,
    mfa_high: u64,
    sense_high: u64,
    /// Context of asynchronous events, if the guest has enabled them.
    event_context: Option<u32>,
    /// Task management that waits for tasks or resets.
    management: Vec<Management>,
    /// Scratch memory for processing a request.
    bufs: Vec<IoBuf>,
    segment: Box<[u8; MAX_SEGMENT]>,
}

/// Size in bytes of each of the two memory spaces.
const MEMORY_SIZE: u64 = 128 << 10;
/// Size of the I/O space in bytes.
const IO_SIZE: u64 = 256;

impl<A: GuestAddressSpace> Lsi<A> {
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
        let personality = config.personality;
        let function = Function::new(&personality.identity(), interrupts)
            .with_bar(0, BarKind::Io, IO_SIZE)?
            .with_bar(1, BarKind::Memory64, MEMORY_SIZE)?
            .with_bar(3, BarKind::Memory64, MEMORY_SIZE)?
            .with_intx(1)
            .with_msi(1)?;
        Ok(Self {
            engine: Engine::new(memory, bus, config.coalescing, config.tasks),
            personality,
            port: Port::new(),
            function,
            state: IocState::Ready,
            fault: 0,
            who_init: 0,
            handshake: Handshake::new(),
            keys: 0,
            diagnostic: 0,
            pages: personality.pages(),
            reply_frame_size: REPLY_FRAME as u16,
            mfa_high: 0,
            sense_high: 0,
            event_context: None,
            management: Vec::new(),
            bufs: Vec::with_capacity(512),
            segment: Box::new([0; MAX_SEGMENT]),
        })
    }
}

#[cfg(test)]
mod tests;
