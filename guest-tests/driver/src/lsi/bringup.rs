//! The bring-up in Linux's order, and coming up again after a reset.

use super::adapter::{CHAINS, Lsi, Model, OWN_FRAMES, Options, REPLIES, SENSE_SIZE, Shared};
use super::doorbell::{Doorbell, REPLY_HALVES};
use super::facts::Facts;
use super::message::{PageAddress, action};
use super::spec::*;
use super::step::{Step, failed};
use crate::adapter::{Counters, Layout, PAGE};
use crate::pci::Function;
use crate::platform::DmaRegion;
use crate::platform::Platform;
use crate::workload::Fault;

/// Requests that Linux keeps in flight at the most.
const MOST_REQUESTS: u32 = 1023;
/// Targets of a parallel bus.
const SPI_TARGETS: u32 = 16;
/// What is asked of each target: everything that the port can do.
const NEGOTIATE: u32 = 0x207f_0807;
/// Context of the driver's own messages over the doorbell: Linux's base driver.
const BASE_CONTEXT: u32 = 15 << 16;

impl Facts {
    fn read<P: Platform>(bell: Doorbell, platform: &mut P) -> Result<Self, Fault> {
        let mut reply = [0; REPLY_HALVES];
        let halves = bell.exchange(platform, &[u32::from(IOC_FACTS) << 24, 0, BASE_CONTEXT], &mut reply)?;
        let at = |offset: usize| reply[offset / 2];
        if halves < 30 || at(REPLY_IOC_STATUS) != 0 {
            return Err(failed(Step::Facts));
        }
        let facts = Self {
            msg_version: at(0x00),
            credits: at(0x24),
            reply_depth: at(0x18),
            max_chain_depth: at(0x14) as u8,
            request_frame: at(0x1a).saturating_mul(4),
            product_id: at(0x1e),
            ports: at(0x26) as u8,
            ..Self::default()
        };
        // A block size of zero would be divided by.
        let usable = at(0x16) as u8 != 0
            && facts.credits as u32 > OWN_FRAMES
            && facts.reply_depth as usize >= REPLIES
            && facts.request_frame as usize >= REQUEST_FRAME
            && facts.max_chain_depth != 0
            && facts.ports != 0;
        let halves = bell.exchange(platform, &[u32::from(PORT_FACTS) << 24, 0, BASE_CONTEXT], &mut reply)?;
        let at = |offset: usize| reply[offset / 2];
        let facts = Self { targets: at(0x16), host_id: at(0x18), ..facts };
        if !usable || halves < 20 || at(0x1a) & PROTOCOL_INITIATOR == 0 || facts.targets == 0 {
            return Err(failed(Step::Facts));
        }
        Ok(facts)
    }
}

impl Shared {
    fn allocate<P: Platform>(platform: &mut P, options: &Options, slots: u32) -> Option<Self> {
        let frames = (slots + OWN_FRAMES) as usize;
        let replies = (REPLIES * REPLY_FRAME).next_multiple_of(PAGE);
        let requests = (frames * REQUEST_FRAME).next_multiple_of(PAGE);
        let chains = match options.layout {
            Layout::Contiguous => 0,
            Layout::Scattered => frames * CHAINS * REQUEST_FRAME,
        };
        // Replies, requests and chains share the upper half of their addresses, so they are one piece.
        let pool = platform.dma(replies + requests + chains, PAGE)?;
        if pool.address() >> 32 != (pool.address() + pool.len() as u64 - 1) >> 32 {
            return None;
        }
        Some(Self {
            replies: pool.part(0, replies)?,
            requests: pool.part(replies, requests)?,
            chains: if chains == 0 { None } else { Some(pool.part(replies + requests, chains)?) },
            sense: platform.dma(frames * SENSE_SIZE, PAGE)?,
            scratch: platform.dma(PAGE, PAGE)?,
        })
    }
}

impl Lsi {
    /// Find the adapter and bring it up.
    pub fn start<P: Platform>(platform: &mut P, options: Options) -> Result<Self, Fault> {
        let id = match options.model {
            Model::Spi1030 => PCI_ID_1030,
            Model::Sas1068 => PCI_ID_SAS1068,
        };
        let function = Function::enable(platform, id, REGISTER_SPACE).map_err(|_| failed(Step::Function))?;
        let bell = Doorbell(function);
        bell.make_ready(platform)?;
        let facts = Facts::read(bell, platform)?;
        let slots = u32::from(facts.credits).min(MOST_REQUESTS) - OWN_FRAMES;
        let shared = Shared::allocate(platform, &options, slots).ok_or(failed(Step::Memory))?;
        let counters = Counters::default();
        let mut driver = Self {
            function,
            options,
            facts,
            shared,
            slots,
            counters,
            disks: 0,
            reply: None,
            event: None,
            events: 0,
        };
        function.set_interrupts(platform, options.interrupts).map_err(|_| failed(Step::Interrupts))?;
        driver.initialise(platform)?;
        driver.negotiate(platform)?;
        Ok(driver)
    }

    /// Message unit reset, and up again on the same memory. What was in flight is dropped.
    pub fn reset_adapter<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.set_interrupts(platform, false);
        self.doorbell().unit_reset(platform)?;
        self.initialise(platform)?;
        self.negotiate(platform)
    }

    /// The same by the diagnostic register: works whatever the controller is doing.
    pub fn hard_reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.set_interrupts(platform, false);
        self.doorbell().hard_reset(platform)?;
        self.initialise(platform)?;
        self.negotiate(platform)
    }

    /// The state of the controller: bits 31:28 of its doorbell.
    pub fn state<P: Platform>(&self, platform: &mut P) -> u32 {
        self.doorbell().state(platform)
    }

    /// From ready to operational: reply frames, IOC INIT, PORT ENABLE, events, interrupts.
    fn initialise<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        let bell = self.doorbell();
        self.reply = None;
        for index in 0..REPLIES {
            let address = self.shared.replies.address() + (index * REPLY_FRAME) as u64;
            self.register_write(platform, REPLY_FIFO, address as u32);
        }
        let high = |region: &DmaRegion| (region.address() >> 32) as u32;
        let init = [
            WHO_INIT_HOST_DRIVER | u32::from(IOC_INIT) << 24,
            // Devices and buses.
            (u32::from(self.facts.targets) & 0xff) << 8 | 1 << 16,
            BASE_CONTEXT,
            REPLY_FRAME as u32,
            high(&self.shared.replies),
            high(&self.shared.sense),
            0,
            0,
            0,
            0,
            0x1300_0105,
        ];
        let enable = [u32::from(PORT_ENABLE) << 24, 0, BASE_CONTEXT];
        let mut reply = [0; REPLY_HALVES];
        for message in [&init[..], &enable[..]] {
            let halves = bell.exchange(platform, message, &mut reply)?;
            if halves < 10 || reply[REPLY_IOC_STATUS / 2] & IOC_STATUS_MASK != 0 {
                return Err(failed(Step::Operational));
            }
        }
        if bell.state(platform) != STATE_OPERATIONAL {
            return Err(failed(Step::Operational));
        }
        // Switch: on.
        let events = [1 | u32::from(EVENT_NOTIFICATION) << 24, 0, BASE_CONTEXT];
        bell.exchange(platform, &events, &mut reply)?;
        self.set_interrupts(platform, true);
        Ok(())
    }

    /// What Linux reads and writes before it looks for disks.
    fn negotiate<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        if self.options.model == Model::Sas1068 {
            self.expect_page(platform, PageAddress::new(1, 1, 0), action::READ_CURRENT, 16)?;
            self.disks = self.scan(platform)?;
            return Ok(());
        }
        self.expect_page(platform, PageAddress::new(3, 0, 0), action::READ_CURRENT, 12)?;
        self.expect_page(platform, PageAddress::new(3, 2, 0), action::READ_NVRAM, 76)?;
        self.expect_page(platform, PageAddress::new(1, 1, 0), action::READ_CURRENT, 16)?;
        for target in 0..SPI_TARGETS.min(u32::from(self.facts.targets)) {
            let mut page = [0u32; 4];
            page[1] = NEGOTIATE;
            self.write_page(platform, PageAddress::new(4, 1, target), action::WRITE_CURRENT, &page)
                .map_err(|_| failed(Step::Pages))?;
        }
        self.expect_page(platform, PageAddress::new(4, 0, 0), action::READ_CURRENT, 12)
    }

    fn expect_page<P: Platform>(
        &mut self,
        platform: &mut P,
        page: PageAddress,
        action: u8,
        bytes: usize,
    ) -> Result<(), Fault> {
        match self.read_page(platform, page, action) {
            Ok(len) if len == bytes => Ok(()),
            Err(fault) if fault.kind == Fault::TIMEOUT => Err(fault),
            _ => Err(failed(Step::Pages)),
        }
    }
}
