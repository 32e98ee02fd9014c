//! The driver of one adapter: its options, its memory and its registers.

use super::doorbell::Doorbell;
use super::facts::Facts;
use super::message::{Event, Reply};
use super::spec::{self, MASK_ALL, MASK_ALL_BUT_REPLY, REPLY_FRAME, REQUEST_FRAME};
use crate::adapter::{self, Completion, Counters, Geometry, Layout, PAGE, Request};
use crate::initiator::Initiator;
use crate::pci::{Function, InterruptMode};
use crate::platform::{DmaRegion, Platform};
use crate::workload::Fault;

/// Largest transfer of a request in bytes.
pub const MAX_TRANSFER: usize = 1 << 20;
/// Elements for the largest transfer when it starts inside a page.
const SG_ELEMENTS: usize = MAX_TRANSFER / PAGE + 1;
/// Elements that a chain buffer holds at least, beside the next chain element: 64-bit elements of 12 bytes.
const CHAIN_ELEMENTS: usize = REQUEST_FRAME / 12 - 1;
/// Chain buffers of a request.
pub(super) const CHAINS: usize = SG_ELEMENTS.div_ceil(CHAIN_ELEMENTS);
/// Bytes for a request's sense data.
pub(super) const SENSE_SIZE: usize = 64;
/// Reply frames that the driver gives.
pub(super) const REPLIES: usize = 128;
/// Frames beside those of requests: the driver's own command, a message, an acknowledgement of an event.
pub(super) const OWN_FRAMES: u32 = 3;

/// The controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// LSI53C1030, parallel SCSI.
    #[default]
    Spi1030,
    /// SAS1068.
    Sas1068,
}

/// How the driver sets the adapter up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The controller that is expected.
    pub model: Model,
    /// How the adapter interrupts.
    pub interrupts: InterruptMode,
    /// How buffers lie.
    pub layout: Layout,
    /// Scatter-gather elements with 64-bit addresses, as on machines with memory beyond 4 GiB.
    pub wide: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            model: Model::default(),
            interrupts: InterruptMode::Msi,
            layout: Layout::default(),
            wide: true,
        }
    }
}

/// Memory that driver and adapter share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) replies: DmaRegion,
    pub(super) requests: DmaRegion,
    pub(super) chains: Option<DmaRegion>,
    pub(super) sense: DmaRegion,
    /// For configuration pages and the driver's own commands.
    pub(super) scratch: DmaRegion,
}

/// The driver of one adapter.
#[derive(Debug)]
pub struct Lsi {
    pub(super) function: Function,
    pub(super) options: Options,
    pub(super) facts: Facts,
    pub(super) shared: Shared,
    /// Requests that may be in flight.
    pub(super) slots: u32,
    pub(super) counters: Counters,
    /// SAS: the targets found, bit by bit.
    pub(super) disks: u32,
    /// The last answer to a message, until it is taken.
    pub(super) reply: Option<Reply>,
    /// The last event, until it is taken, and how many came.
    pub(super) event: Option<Event>,
    pub(super) events: u64,
}

impl Lsi {
    /// What the controller said of itself.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// SAS: the targets that the last scan found, bit by bit.
    #[must_use]
    pub const fn disks(&self) -> u32 {
        self.disks
    }

    pub(super) fn register_read<P: Platform>(&mut self, platform: &mut P, offset: u64) -> u32 {
        self.counters.registers += 1;
        platform.read32(self.function.bar, offset)
    }

    pub(super) fn register_write<P: Platform>(&mut self, platform: &mut P, offset: u64, value: u32) {
        self.counters.registers += 1;
        platform.write32(self.function.bar, offset, value);
    }

    /// Enable or disable the reply interrupt.
    pub fn set_interrupts<P: Platform>(&mut self, platform: &mut P, enabled: bool) {
        self.register_write(platform, spec::INT_MASK, if enabled { MASK_ALL_BUT_REPLY } else { MASK_ALL });
    }

    /// Offset in `requests` of a request's frame.
    pub(super) const fn frame(tag: u32) -> usize {
        tag as usize * REQUEST_FRAME
    }

    /// Tag of the frame for messages.
    pub(super) const fn message_tag(&self) -> u32 {
        self.slots + 1
    }

    /// Tag of the frame for acknowledgements.
    pub(super) const fn ack_tag(&self) -> u32 {
        self.slots + 2
    }

    /// The reply frame at this bus address, as an offset in `replies`.
    pub(super) fn reply_at(&self, address: u32) -> Option<usize> {
        let offset = address.wrapping_sub(self.shared.replies.address() as u32) as usize;
        (offset.is_multiple_of(REPLY_FRAME) && offset / REPLY_FRAME < REPLIES).then_some(offset)
    }

    /// The doorbell.
    pub(super) const fn doorbell(&self) -> Doorbell {
        Doorbell(self.function)
    }
}

impl adapter::Adapter for Lsi {
    fn slots(&self) -> u32 {
        self.slots
    }

    fn layout(&self) -> Layout {
        self.options.layout
    }

    fn geometry<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<Geometry, Fault> {
        self.read_capacity(platform, target)
    }

    fn submit<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool {
        self.queue_request(platform, request)
    }

    fn kick<P: Platform>(&mut self, _platform: &mut P) {
        // Each request has been posted by itself.
    }

    fn interrupted<P: Platform>(&mut self, _platform: &mut P) {
        // Reading the reply FIFO until it is empty acknowledges.
    }

    fn poll<P: Platform>(&mut self, platform: &mut P) -> Option<Completion> {
        self.take_completion(platform).map(|end| end.completion)
    }

    fn reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.reset_adapter(platform)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
