//! LSI Logic's Fusion-MPT controllers, as the drivers of Linux, FreeBSD and Windows know them.
//!
//! Requests are message frames in guest memory whose addresses the guest writes to a FIFO; a clean SCSI I/O is answered
//! with its context alone, everything else with a reply frame.
//! - `spec`: registers and messages,
//! - `port`: the registers touched for each I/O, shared with the virtual CPUs, and `fifo`: the FIFOs behind them,
//! - `line`: the INTx line, shared in the same way,
//! - `handshake`: the exchange over the doorbell by which the first messages pass,
//! - `personality`, `pages`: what the controller says of itself,
//! - `sgl`: scatter-gather lists,
//! - `message`: every function but the two for SCSI,
//! - `scsi_io`, `task`: SCSI I/O and task management; `pending`, `management`: what is kept of each until its reply,
//! - `reply`: what goes into a reply frame,
//! - `hotplug`: hot-plug, and the events that report it,
//! - `device`: register space, states, and the contract with the owner.

mod device;
mod fifo;
mod handshake;
mod hotplug;
mod line;
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

use std::collections::VecDeque;
use std::sync::Arc;

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
use crate::backlog::Backlog;
use crate::device::{BarKind, Stats};
use crate::dma::Dma;
use crate::in_flight::InFlight;
use crate::interrupt::InterruptSink;
use crate::moderation::{Coalescing, Moderator};
use crate::pci::{Function, LayoutError};
use crate::retry::Retry;
use crate::scsi::{Bus, TaskEnd};

/// How an adapter is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The controller that it emulates.
    pub personality: Personality,
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// SCSI I/Os in flight at the most; the bus must have been made for at least as many. Further requests wait.
    pub tasks: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { personality: Personality::default(), coalescing: Coalescing::default(), tasks: 1024 }
    }
}

/// An LSI Logic adapter.
///
/// Base address register 0 is I/O ports, 1 the same registers in memory, 3 diagnostic memory.
pub struct Lsi<A: GuestAddressSpace> {
    /// First, so that it is dropped first: requests in flight are waited for while `dma` still keeps their memory.
    bus: Bus,
    dma: Dma<A>,
    function: Function,
    moderator: Moderator,
    personality: Personality,
    port: Arc<Port>,
    state: IocState,
    /// With [`IocState::Fault`].
    fault: u16,
    who_init: u8,
    handshake: Handshake,
    /// Keys of the write sequence that came in order.
    keys: usize,
    diagnostic: u32,
    pages: Pages,
    /// From IOC INIT: bytes of a reply frame, upper halves of frame and sense addresses.
    reply_frame_size: u16,
    mfa_high: u64,
    sense_high: u64,
    /// Context for asynchronous events, where they are on.
    event_context: Option<u32>,
    /// SCSI I/Os in flight, by task number.
    in_flight: InFlight<Pending>,
    /// SCSI I/Os that are taken from the FIFO and have no task number yet, with the places of their frames: no more than there
    /// are credits.
    backlog: Backlog<(u32, Pending)>,
    /// Task management that waits for the end of tasks.
    management: Vec<Management>,
    /// Replies that found no free frame, oldest first.
    late_replies: VecDeque<Reply>,
    /// When to try again to post what found no space.
    retry: Retry,
    /// Reply frames lie in memory that is about to be unmapped: no request is taken until it is, or the frames are gone.
    frames_refused: bool,
    /// More requests wait than were taken.
    more: bool,
    /// Memory for what a request needs.
    bufs: Vec<IoBuf>,
    segment: Box<[u8; MAX_SEGMENT]>,
    ended: Vec<(u32, TaskEnd)>,
    stats: Stats,
}

/// Bytes of the two memory spaces.
const MEMORY_SIZE: u64 = 128 << 10;
/// Bytes of the I/O space.
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
        let tasks = config.tasks.max(1);
        Ok(Self {
            bus,
            dma: Dma::new(memory),
            moderator: Moderator::new(config.coalescing),
            personality,
            port: Arc::new(Port::new(function.shared_line())),
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
            in_flight: InFlight::new(tasks),
            backlog: Backlog::new(),
            management: Vec::new(),
            late_replies: VecDeque::with_capacity(tasks as usize),
            retry: Retry::default(),
            frames_refused: false,
            more: false,
            bufs: Vec::with_capacity(512),
            segment: Box::new([0; MAX_SEGMENT]),
            ended: Vec::with_capacity(tasks as usize),
            stats: Stats::default(),
        })
    }
}

#[cfg(test)]
mod tests;
