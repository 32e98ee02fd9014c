//! Hyper-V's VMBus, the bus of its synthetic devices, with one synthetic SCSI controller on it.
//!
//! The guest sends messages by a hypercall and signals channels by another. The bus answers by messages and event flags, which the
//! synthetic interrupt controller (`SynIC`) of a virtual processor delivers. Sources: Hypervisor Top-Level Functional Specification
//! 6.0, chapters 10 and 11, as Linux's `drivers/hv` uses it.
//!
//! ```text
//!   messages --> control --> channel (open, closed), gpadl (pages of rings)      outbox --> messages
//!   signals  --> io --> duplex (ring, packet: one open channel) <--> storvsc (requests) <--> scsi::Bus
//! ```
//!
//! - `synic`: the contract with the virtual machine,
//! - `spec`: what guests know of the bus, `storvsc::spec`: and of the controller,
//! - `control`: what the messages do; `link`, `reset`: the guest begins anew or leaves,
//! - `io`: the path of a batch of packets,
//! - `hotplug`: disks that come and go,
//! - `device`: the contract with the owner.
//!
//! Guest memory and messages are untrusted. A guest that breaks the rules of a ring loses that channel until it opens it again; a message
//! that makes no sense is answered with a status, or ignored where it has no answer.

mod bursts;
mod channel;
mod control;
mod device;
mod duplex;
mod gpadl;
mod hotplug;
mod io;
mod link;
mod outbox;
mod packet;
mod reset;
mod ring;
pub mod spec;
pub mod storvsc;
mod synic;

use vm_memory::GuestAddressSpace;

use self::channel::Channel;
use self::duplex::Signals;
use self::gpadl::Gpadls;
use self::link::Link;
use self::outbox::Outbox;
use self::ring::PacketBuffer;
use self::storvsc::Storvsc;
use self::storvsc::spec::HostPacket;
pub use self::synic::{HypercallStatus, Posted, Synic, VmbusDevice};
use crate::device::Stats;
use crate::dma::Dma;
use crate::moderation::Coalescing;
use crate::scsi::{Bus, TaskEnd};

/// Sub-channels at the most.
pub const MAX_SUB_CHANNELS: u16 = 63;

/// Number of the primary channel. That of sub-channel `n` is `n` more.
const FIRST_RELID: u32 = 1;
/// The connection of a channel is its number and this: others are below.
const FIRST_CONNECTION: u32 = 16;

/// How a bus is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interrupt moderation, of each channel by itself.
    pub coalescing: Coalescing,
    /// Requests in flight at the most; the bus of units must have been made for at least as many.
    pub tasks: u32,
    /// Virtual processors of the guest, which are numbered from 0: a channel cannot be opened for others.
    pub cpus: u32,
    /// Channels that a guest may have beside the first, up to [`MAX_SUB_CHANNELS`].
    pub sub_channels: u16,
}

impl Config {
    /// For a guest with so many virtual processors: the usual moderation, 256 requests in flight, and as Hyper-V one channel for each four
    /// virtual processors.
    #[must_use]
    pub fn new(cpus: u32) -> Self {
        let sub_channels = u16::try_from(cpus.saturating_sub(1) / 4).unwrap_or(MAX_SUB_CHANNELS);
        let sub_channels = sub_channels.min(MAX_SUB_CHANNELS);
        Self { coalescing: Coalescing::default(), tasks: 256, cpus, sub_channels }
    }

    /// For a guest with virtual processors of any number: no sub-channels.
    #[must_use]
    pub fn of_any_guest() -> Self {
        Self { cpus: u32::MAX, sub_channels: 0, ..Self::new(1) }
    }
}

/// A VMBus with a synthetic SCSI controller.
pub struct Vmbus<A: GuestAddressSpace> {
    /// First, so that it is dropped first: requests in flight are waited for while `dma` still keeps their memory.
    storvsc: Storvsc,
    dma: Dma<A>,
    signals: Signals,
    link: Link,
    outbox: Outbox,
    gpadls: Gpadls,
    /// The primary channel, and the sub-channels.
    channels: Box<[Channel<A::T>]>,
    connections: Box<[u32]>,
    cpus: u32,
    coalescing: Coalescing,
    /// The channel that packets are taken from first.
    first: usize,
    /// There is work that no event tells of.
    more: bool,
    /// Memory for what a batch needs.
    buffer: PacketBuffer,
    ended: Vec<(u32, TaskEnd)>,
    answers: Vec<(u8, HostPacket)>,
    stats: Stats,
}

impl<A: GuestAddressSpace> Vmbus<A> {
    /// A bus with a controller in front of `bus`, whose units are at target 0 with logical unit numbers below
    /// [`MAX_LUNS`](storvsc::MAX_LUNS).
    pub fn new(memory: A, bus: Bus, synic: Box<dyn Synic>, config: Config) -> Self {
        let Config { coalescing, tasks, cpus, sub_channels } = config;
        let sub_channels = sub_channels.min(MAX_SUB_CHANNELS);
        let channels = 0..=u32::from(sub_channels);
        Self {
            storvsc: Storvsc::new(bus, tasks.max(1), sub_channels),
            dma: Dma::new(memory),
            signals: Signals { synic, sent: 0 },
            link: Link::Down,
            outbox: Outbox::default(),
            gpadls: Gpadls::default(),
            channels: channels.clone().map(|_| Channel::default()).collect(),
            connections: channels.map(|n| FIRST_CONNECTION + FIRST_RELID + n).collect(),
            cpus: cpus.max(1),
            coalescing,
            first: 0,
            more: false,
            buffer: PacketBuffer::default(),
            ended: Vec::with_capacity(tasks as usize),
            answers: Vec::new(),
            stats: Stats::default(),
        }
    }
}

#[cfg(test)]
mod tests;
