//! The driver of one adapter: its options, its memory and its registers.

use super::facts::Facts;
use super::spec;
use crate::adapter::{self, Completion, Counters, Geometry, KickPolicy, Layout, PAGE, Request};
use crate::initiator::Initiator;
use crate::pci::Function;
use crate::platform::{DmaRegion, Platform};
use crate::workload::Fault;

/// Largest transfer of a request in bytes.
pub const MAX_TRANSFER: usize = 1 << 20;
/// Bytes of a request's list: elements for the largest transfer when it starts inside a page, whole pages.
pub(super) const LIST: usize = ((MAX_TRANSFER / PAGE + 1) * spec::SG_ELEMENT).next_multiple_of(PAGE);
/// Bytes for a request's sense data.
pub(super) const SENSE_SIZE: usize = 96;
/// Requests in flight at the most, as Linux has them with tags.
const MOST_REQUESTS: u32 = 192;

/// How the driver sets the adapter up. It interrupts by the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Mailboxes of each kind, two at least. One is for the driver's own commands.
    pub mailboxes: u8,
    /// When the doorbell is rung.
    pub kick: KickPolicy,
    /// How buffers lie.
    pub layout: Layout,
    /// Ask for residual counts, as FreeBSD's driver does. Linux's does not.
    pub residual: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { mailboxes: 211, kick: KickPolicy::default(), layout: Layout::default(), residual: false }
    }
}

/// Memory that driver and adapter share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) mailboxes: DmaRegion,
    pub(super) ccbs: DmaRegion,
    pub(super) lists: Option<DmaRegion>,
    pub(super) sense: DmaRegion,
    /// For the driver's own commands.
    pub(super) scratch: DmaRegion,
}

/// The driver of one adapter.
#[derive(Debug)]
pub struct BusLogic {
    pub(super) function: Function,
    pub(super) options: Options,
    pub(super) facts: Facts,
    pub(super) shared: Shared,
    /// The next mailbox of each kind.
    pub(super) out_next: usize,
    pub(super) in_next: usize,
    /// Mailboxes were loaded since the doorbell was rung.
    pub(super) loaded: bool,
    pub(super) counters: Counters,
}

impl Shared {
    pub(super) fn allocate<P: Platform>(platform: &mut P, options: &Options) -> Option<Self> {
        let count = options.mailboxes as usize;
        // Addresses have 32 bits.
        let mut near = |len: usize| {
            let region = platform.dma(len.next_multiple_of(PAGE), PAGE)?;
            (region.address() + region.len() as u64 <= 1 << 32).then_some(region)
        };
        Some(Self {
            mailboxes: near(2 * count * spec::MAILBOX_SIZE)?,
            ccbs: near(count * spec::CCB_STRIDE)?,
            lists: match options.layout {
                Layout::Contiguous => None,
                Layout::Scattered => Some(near(count * LIST)?),
            },
            sense: near(count * SENSE_SIZE)?,
            scratch: near(PAGE)?,
        })
    }
}

impl BusLogic {
    /// What the adapter said of itself.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Requests that may be in flight.
    pub(super) const fn requests(&self) -> u32 {
        let free = self.options.mailboxes as u32 - 1;
        if free < MOST_REQUESTS { free } else { MOST_REQUESTS }
    }

    /// Bus addresses of the mailboxes and of the CCBs, for tests that spoil them.
    #[must_use]
    pub const fn addresses(&self) -> (u64, u64) {
        (self.shared.mailboxes.address(), self.shared.ccbs.address())
    }

    pub(super) fn register_read<P: Platform>(&mut self, platform: &mut P, offset: u64) -> u8 {
        self.counters.registers += 1;
        platform.read(self.function.bar, offset, 1) as u8
    }

    pub(super) fn register_write<P: Platform>(&mut self, platform: &mut P, offset: u64, value: u8) {
        self.counters.registers += 1;
        platform.write(self.function.bar, offset, 1, value.into());
    }

    /// Clear the interrupt register; the line falls.
    pub(super) fn acknowledge<P: Platform>(&mut self, platform: &mut P) {
        self.register_write(platform, spec::STATUS, spec::CONTROL_RESET_INTERRUPT);
    }
}

impl adapter::Adapter for BusLogic {
    fn slots(&self) -> u32 {
        self.requests()
    }

    fn layout(&self) -> Layout {
        self.options.layout
    }

    /// CDBs are too short for READ CAPACITY (16).
    fn geometry<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<Geometry, Fault> {
        self.read_capacity10(platform, target)
    }

    fn submit<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool {
        self.queue_request(platform, request)
    }

    fn kick<P: Platform>(&mut self, platform: &mut P) {
        if self.loaded {
            self.ring(platform);
        }
    }

    fn interrupted<P: Platform>(&mut self, platform: &mut P) {
        if self.register_read(platform, spec::INTERRUPT) & spec::INTERRUPT_VALID != 0 {
            self.acknowledge(platform);
        }
    }

    fn poll<P: Platform>(&mut self, _platform: &mut P) -> Option<Completion> {
        self.take_completion().map(|end| end.completion)
    }

    fn reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.reset_adapter(platform)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
