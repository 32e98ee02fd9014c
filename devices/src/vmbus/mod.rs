//! Hyper-V's VMBus, the bus of its synthetic devices, with one synthetic SCSI controller on it.
//!
//! The guest sends messages by one hypercall and signals channels by another. The bus sends messages and sets event flags through the
//! synthetic interrupt controller (`SynIC`) of a virtual processor. Sources: Hypervisor Top-Level Functional Specification 6.0, chapters 10
//! and 11, and Linux's `drivers/hv`.
//!
//! ```text
//!   messages --> control --> channel (open, closed), gpadl (pages of rings)      outbox --> messages
//!   signals  --> io --> duplex (ring, packet: one open channel) <--> storvsc (requests) <--> scsi::Bus
//! ```
//!
//! - `synic`: the contract with the virtual machine,
//! - `spec`: messages and rings; `storvsc::spec`: the controller's protocol,
//! - `control`: handles messages; `link`, `reset`: connection, reconnection and unload,
//! - `io`: the I/O path of a batch of packets,
//! - `device`: the contract with the owner.
//!
//! Guest memory and messages are untrusted. If the guest breaks the rules of a ring, the channel is not served until the guest opens it
//! again. An invalid message is answered with an error status, or ignored if the protocol has no answer to it.

mod channel;
mod control;
mod device;
mod duplex;
mod gpadl;
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
use self::storvsc::spec::HostPacket;
use self::storvsc::{Storvsc, StorvscEngine};
pub use self::synic::{HypercallStatus, Posted, Synic, VmbusDevice};
use crate::hba::Engine;
use crate::moderation::Coalescing;
use crate::scsi::Bus;

/// Maximum number of sub-channels.
pub const MAX_SUB_CHANNELS: u16 = 63;

/// Number of the primary channel. Sub-channel `n` has this number plus `n`.
const FIRST_RELID: u32 = 1;
/// The connection ID of a channel is its number plus this. Lower IDs are used for messages.
const FIRST_CONNECTION: u32 = 16;

/// The configuration of a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interrupt moderation, applied to each channel separately.
    pub coalescing: Coalescing,
    /// Maximum number of requests in flight; the SCSI bus must have been made for at least as many.
    pub tasks: u32,
    /// Number of the guest's virtual processors. A channel can only signal one of these.
    pub cpus: u32,
    /// Maximum number of sub-channels that a guest can request, up to [`MAX_SUB_CHANNELS`].
    pub sub_channels: u16,
}

impl Config {
    /// For a guest with `cpus` virtual processors: default moderation, 256 requests in flight, and one channel for each four virtual
    /// processors, as Hyper-V has it.
    #[must_use]
    pub fn new(cpus: u32) -> Self {
        let sub_channels = u16::try_from(cpus.saturating_sub(1) / 4).unwrap_or(MAX_SUB_CHANNELS);
        let sub_channels = sub_channels.min(MAX_SUB_CHANNELS);
        Self { coalescing: Coalescing::default(), tasks: 256, cpus, sub_channels }
    }

    /// For a guest with an unknown number of virtual processors: no sub-channels.
    #[must_use]
    pub fn of_any_guest() -> Self {
        Self { cpus: u32::MAX, sub_channels: 0, ..Self::new(1) }
    }
}

/// A VMBus with a synthetic SCSI controller.
pub struct Vmbus<A: GuestAddressSpace> {
    /// Its moderator has the options for the moderators of the channels.
    engine: StorvscEngine<A>,
    storvsc: Storvsc,
    signals: Signals,
    link: Link,
    outbox: Outbox,
    gpadls: Gpadls,
    /// The primary channel, and the sub-channels.
    channels: Box<[Channel<A::T>]>,
    connections: Box<[u32]>,
    cpus: u32,
    /// Index of the channel that is served first.
    first: usize,
    /// Scratch memory for a batch.
    buffer: PacketBuffer,
    answers: Vec<(u8, HostPacket)>,
}

impl<A: GuestAddressSpace> Vmbus<A> {
    /// A bus with a controller in front of `bus`, whose units are at target 0 with logical unit numbers below
    /// [`MAX_LUNS`](storvsc::MAX_LUNS).
    pub fn new(memory: A, bus: Bus, synic: Box<dyn Synic>, config: Config) -> Self {
        let Config { coalescing, tasks, cpus, sub_channels } = config;
        let sub_channels = sub_channels.min(MAX_SUB_CHANNELS);
        let channels = 0..=u32::from(sub_channels);
        Self {
            storvsc: Storvsc::new(bus.addresses(), sub_channels),
            engine: Engine::new(memory, bus, coalescing, tasks),
            signals: Signals { synic, sent: 0 },
            link: Link::Down,
            outbox: Outbox::default(),
            gpadls: Gpadls::default(),
            channels: channels.clone().map(|_| Channel::default()).collect(),
            connections: channels.map(|n| FIRST_CONNECTION + FIRST_RELID + n).collect(),
            cpus: cpus.max(1),
            first: 0,
            buffer: PacketBuffer::default(),
            answers: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
