//! Driver of VMware's paravirtual SCSI adapter. It behaves as Linux's does where a device can see it: the order of the
//! bring-up, the request-call threshold, one doorbell a request, completions drained on an interrupt.

mod bringup;
mod io;
pub mod spec;

pub use io::{Message, MessageKind};

use crate::adapter;
use crate::adapter::{Counters, KickPolicy, Layout, PAGE};
use crate::initiator::Initiator;
use crate::pci::{Function, InterruptMode};
use crate::platform::DmaRegion;
use crate::platform::Platform;
use spec::{REQUEST_SIZE, SG_ELEMENT_SIZE};

/// Largest transfer of a request in bytes.
pub const MAX_TRANSFER: usize = 1 << 20;
/// Elements for the largest transfer when it starts inside a page.
const SG_ELEMENTS: usize = MAX_TRANSFER / PAGE + 1;
/// Bytes of a request's list of segments, whole pages.
const SG_TABLE: usize = (SG_ELEMENTS * SG_ELEMENT_SIZE).next_multiple_of(PAGE);
/// Bytes for a request's sense data.
const SENSE_SIZE: usize = 96;
/// Requests in a page of the ring.
const REQUESTS_PER_PAGE: u32 = (PAGE / REQUEST_SIZE) as u32;

/// How the driver sets the adapter up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Pages of the request ring and of the completion ring, a power of two: 8 (256 requests) to 32 (1,024).
    pub ring_pages: u32,
    /// Pages of the message ring, a power of two to 16; 0: none.
    pub message_pages: u32,
    /// How the adapter interrupts.
    pub interrupts: InterruptMode,
    /// When the doorbell is rung.
    pub kick: KickPolicy,
    /// Ask for the request-call threshold, and honour it.
    pub threshold: bool,
    /// How buffers lie.
    pub layout: Layout,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_pages: 32,
            message_pages: 1,
            interrupts: InterruptMode::default(),
            kick: KickPolicy::default(),
            threshold: true,
            layout: Layout::default(),
        }
    }
}

crate::steps! {
    /// The options make no sense.
    Options = 1,
    /// The function was not found or lacks the register space.
    Function = 2,
    /// Too little DMA memory.
    Memory = 3,
    /// SETUP_RINGS was refused, or the device published other ring sizes.
    Rings = 4,
    /// The same for SETUP_MSG_RING.
    Messages = 5,
    /// The function lacks the interrupt mode.
    Interrupts = 6,
}

/// Memory that driver and adapter share.
#[derive(Debug)]
struct Shared {
    state: DmaRegion,
    requests: DmaRegion,
    completions: DmaRegion,
    messages: Option<DmaRegion>,
    sense: DmaRegion,
    sg: Option<DmaRegion>,
    /// For the configuration page and the driver's own commands.
    scratch: DmaRegion,
}

/// The driver of one adapter.
#[derive(Debug)]
pub struct Pvscsi {
    function: Function,
    options: Options,
    shared: Shared,
    /// Requests in the ring, a power of two.
    entries: u32,
    /// XORed into an entry's offset: swaps neighbouring pages of a ring, so that the order of its page numbers matters.
    flip: usize,
    targets: u32,
    messages_supported: bool,
    threshold_enabled: bool,
    request_producer: u32,
    published_producer: u32,
    completion_consumer: u32,
    message_consumer: u32,
    /// A command other than READ and WRITE is among those not yet kicked.
    non_rw_pending: bool,
    counters: Counters,
}

impl Pvscsi {
    /// Targets on the bus, as the adapter says.
    #[must_use]
    pub const fn targets(&self) -> u32 {
        self.targets
    }

    /// Whether the adapter offers the message ring.
    #[must_use]
    pub const fn messages_supported(&self) -> bool {
        self.messages_supported
    }

    /// Whether the adapter negotiated the request-call threshold.
    #[must_use]
    pub const fn threshold_enabled(&self) -> bool {
        self.threshold_enabled
    }

    /// Requests that were put into the ring and whose completions were not yet taken out.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.request_producer.wrapping_sub(self.completion_consumer)
    }

    /// Bus addresses of the rings-state page and of the first entries of the request ring, for tests that spoil them.
    #[must_use]
    pub const fn ring_addresses(&self) -> (u64, u64) {
        (self.shared.state.address(), self.shared.requests.address())
    }

    fn register_write<P: Platform>(&mut self, platform: &mut P, offset: u64, value: u32) {
        self.counters.registers += 1;
        platform.write32(self.function.bar, offset, value);
    }

    fn register_read<P: Platform>(&mut self, platform: &mut P, offset: u64) -> u32 {
        self.counters.registers += 1;
        platform.read32(self.function.bar, offset)
    }

    fn command<P: Platform>(&mut self, platform: &mut P, code: u32, descriptor: &[u32]) {
        self.register_write(platform, spec::COMMAND, code);
        for &dword in descriptor {
            self.register_write(platform, spec::COMMAND_DATA, dword);
        }
    }

    fn command_status<P: Platform>(&mut self, platform: &mut P) -> u32 {
        self.register_read(platform, spec::COMMAND_STATUS)
    }

    /// Abort the request with this tag. Whether or not it is still there, its completion comes by interrupt.
    pub fn abort<P: Platform>(&mut self, platform: &mut P, tag: u32, target: u32) {
        self.command(platform, spec::CMD_ABORT_CMD, &[tag + 1, 0, target, 0]);
    }

    /// Reset a target. The requests concerned have been completed when this returns: poll them.
    pub fn reset_device<P: Platform>(&mut self, platform: &mut P, target: u32) {
        self.doorbell(platform, spec::KICK_NON_RW_IO);
        self.command(platform, spec::CMD_RESET_DEVICE, &[target, 0, 0]);
    }

    /// Reset all targets. All requests have been completed when this returns: poll them.
    pub fn reset_bus<P: Platform>(&mut self, platform: &mut P) {
        self.doorbell(platform, spec::KICK_NON_RW_IO);
        self.command(platform, spec::CMD_RESET_BUS, &[]);
    }

    /// Enable or disable all interrupt causes.
    pub fn set_interrupts<P: Platform>(&mut self, platform: &mut P, enabled: bool) {
        let messages = if self.shared.messages.is_some() { spec::INTR_MSG_MASK } else { 0 };
        let mask = if enabled { spec::INTR_CMPL_MASK | messages } else { 0 };
        self.register_write(platform, spec::INTR_MASK, mask);
    }

    /// Mask interrupts and stop the adapter: nothing is written to memory afterwards.
    pub fn shut_down<P: Platform>(&mut self, platform: &mut P) {
        self.set_interrupts(platform, false);
        self.command(platform, spec::CMD_ADAPTER_RESET, &[]);
    }
}

impl adapter::Adapter for Pvscsi {
    fn slots(&self) -> u32 {
        self.entries
    }

    fn layout(&self) -> Layout {
        self.options.layout
    }

    fn geometry<P: Platform>(
        &mut self,
        platform: &mut P,
        target: u32,
    ) -> Result<adapter::Geometry, crate::workload::Fault> {
        self.read_capacity(platform, target)
    }

    fn submit<P: Platform>(&mut self, platform: &mut P, request: &adapter::Request) -> bool {
        self.queue_request(platform, request)
    }

    fn kick<P: Platform>(&mut self, platform: &mut P) {
        if self.published_producer != self.request_producer {
            self.publish(platform);
        }
    }

    fn interrupted<P: Platform>(&mut self, platform: &mut P) {
        // With messages there is nothing to acknowledge, and Linux does not look at the register either.
        if self.options.interrupts == InterruptMode::Intx {
            let causes = self.register_read(platform, spec::INTR_STATUS);
            if causes != 0 {
                self.register_write(platform, spec::INTR_STATUS, causes);
            }
        }
    }

    fn poll<P: Platform>(&mut self, _platform: &mut P) -> Option<adapter::Completion> {
        self.take_completion().map(|end| end.completion)
    }

    fn reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), crate::workload::Fault> {
        self.reset_adapter(platform)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
