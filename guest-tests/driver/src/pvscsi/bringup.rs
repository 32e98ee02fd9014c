//! The bring-up in Linux's order, and coming up again after an adapter reset.

use super::spec::*;
use super::{Options, Pvscsi, REQUESTS_PER_PAGE, SENSE_SIZE, SG_TABLE, Shared, Step, failed};
use crate::adapter::{Counters, Layout, PAGE};
use crate::pci::Function;
use crate::platform::DmaRegion;
use crate::platform::Platform;
use crate::workload::Fault;

/// Targets where the adapter does not answer the configuration page.
const DEFAULT_TARGETS: u32 = 16;

impl Shared {
    fn allocate<P: Platform>(platform: &mut P, options: &Options) -> Option<Self> {
        let ring = options.ring_pages as usize * PAGE;
        // One more than the ring holds: the driver's own commands.
        let contexts = (options.ring_pages * REQUESTS_PER_PAGE + 1) as usize;
        Some(Self {
            state: platform.dma(PAGE, PAGE)?,
            requests: platform.dma(ring, PAGE)?,
            completions: platform.dma(ring, PAGE)?,
            messages: match options.message_pages as usize {
                0 => None,
                pages => Some(platform.dma(pages * PAGE, PAGE)?),
            },
            sense: platform.dma(contexts * SENSE_SIZE, PAGE)?,
            sg: match options.layout {
                Layout::Contiguous => None,
                Layout::Scattered => Some(platform.dma(contexts * SG_TABLE, PAGE)?),
            },
            scratch: platform.dma(PAGE, PAGE)?,
        })
    }
}

impl Pvscsi {
    /// Find the adapter and bring it up.
    pub fn start<P: Platform>(platform: &mut P, options: Options) -> Result<Self, Fault> {
        let power_to = |pages: u32, max: usize| pages.is_power_of_two() && pages as usize <= max;
        if !power_to(options.ring_pages, SETUP_RINGS_MAX_PAGES)
            || (options.message_pages != 0 && !power_to(options.message_pages, SETUP_MSG_RING_MAX_PAGES))
        {
            return Err(failed(Step::Options));
        }
        let function =
            Function::enable(platform, PCI_ID, REGISTER_SPACE).map_err(|_| failed(Step::Function))?;
        let shared = Shared::allocate(platform, &options).ok_or(failed(Step::Memory))?;
        let mut driver = Self {
            function,
            options,
            shared,
            entries: options.ring_pages * REQUESTS_PER_PAGE,
            flip: if options.ring_pages > 1 { PAGE } else { 0 },
            targets: DEFAULT_TARGETS,
            messages_supported: false,
            threshold_enabled: false,
            request_producer: 0,
            published_producer: 0,
            completion_consumer: 0,
            message_consumer: 0,
            non_rw_pending: false,
            counters: Counters::default(),
        };
        driver.read_targets(platform);
        driver.command(platform, CMD_ADAPTER_RESET, &[]);
        driver.register_write(platform, COMMAND, CMD_SETUP_MSG_RING);
        driver.messages_supported = driver.command_status(platform) != STATUS_FAILED;
        driver.set_up_rings(platform)?;
        function.set_interrupts(platform, options.interrupts).map_err(|_| failed(Step::Interrupts))?;
        if options.threshold {
            driver.negotiate_threshold(platform);
        }
        driver.set_interrupts(platform, true);
        Ok(driver)
    }

    /// Stop everything and come up again on the same memory. Completions not yet polled are lost.
    pub fn reset_adapter<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.doorbell(platform, KICK_NON_RW_IO);
        self.command(platform, CMD_ADAPTER_RESET, &[]);
        self.request_producer = 0;
        self.published_producer = 0;
        self.completion_consumer = 0;
        self.message_consumer = 0;
        self.non_rw_pending = false;
        self.set_up_rings(platform)?;
        self.set_interrupts(platform, true);
        Ok(())
    }

    /// The controller's configuration page tells the number of targets; an adapter without it leaves the page alone.
    fn read_targets<P: Platform>(&mut self, platform: &mut P) {
        let page = &self.shared.scratch;
        page.write(CONFIG_HOST_STATUS, BTSTAT_INVPARAM);
        page.write(CONFIG_SCSI_STATUS, u16::from(crate::scsi::CHECK_CONDITION));
        let address = page.address();
        let descriptor = [
            address as u32,
            (address >> 32) as u32,
            0,
            CONFIG_CONTROLLER_ADDRESS as u32,
            CONFIG_PAGE_CONTROLLER,
            0,
        ];
        self.command(platform, CMD_CONFIG, &descriptor);
        let page = &self.shared.scratch;
        if page.read::<u16>(CONFIG_HOST_STATUS) == 0 && page.read::<u16>(CONFIG_SCSI_STATUS) == 0 {
            self.targets = page.read(CONFIG_NUM_PHYS);
        }
    }

    fn set_up_rings<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        for offset in (0..PAGE).step_by(8) {
            self.shared.state.write(offset, 0u64);
        }
        let pages = self.options.ring_pages as usize;
        let mut descriptor = [0u32; 4 + 4 * SETUP_RINGS_MAX_PAGES];
        descriptor[0] = self.options.ring_pages;
        descriptor[1] = self.options.ring_pages;
        put_page(&mut descriptor, 2, &self.shared.state, 0);
        for page in 0..pages {
            let at = (page * PAGE) ^ self.flip;
            put_page(&mut descriptor, 4 + 2 * page, &self.shared.requests, at);
            put_page(&mut descriptor, 4 + 2 * (SETUP_RINGS_MAX_PAGES + page), &self.shared.completions, at);
        }
        self.command(platform, CMD_SETUP_RINGS, &descriptor);
        let state = &self.shared.state;
        let completions = (pages * PAGE / COMPLETION_SIZE).ilog2();
        if state.read::<u32>(REQ_NUM_ENTRIES_LOG2) != self.entries.ilog2()
            || state.read::<u32>(CMP_NUM_ENTRIES_LOG2) != completions
        {
            return Err(failed(Step::Rings));
        }
        self.set_up_messages(platform)
    }

    fn set_up_messages<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        let Some(messages) = self.shared.messages.as_ref().filter(|_| self.messages_supported) else {
            return Ok(());
        };
        let mut descriptor = [0u32; 2 + 2 * SETUP_MSG_RING_MAX_PAGES];
        descriptor[0] = self.options.message_pages;
        for page in 0..self.options.message_pages as usize {
            put_page(&mut descriptor, 2 + 2 * page, messages, page * PAGE);
        }
        let entries = (messages.len() / MESSAGE_SIZE).ilog2();
        self.command(platform, CMD_SETUP_MSG_RING, &descriptor);
        if self.shared.state.read::<u32>(MSG_NUM_ENTRIES_LOG2) != entries {
            return Err(failed(Step::Messages));
        }
        Ok(())
    }

    /// Here a status other than zero means "enabled", unlike everywhere else.
    fn negotiate_threshold<P: Platform>(&mut self, platform: &mut P) {
        self.register_write(platform, COMMAND, CMD_SETUP_REQCALLTHRESHOLD);
        if self.command_status(platform) != STATUS_FAILED {
            self.command(platform, CMD_SETUP_REQCALLTHRESHOLD, &[1]);
            self.threshold_enabled = self.command_status(platform) != 0;
        }
    }
}

/// Put the number of the page at `offset` of `region` into a descriptor.
fn put_page(descriptor: &mut [u32], at: usize, region: &DmaRegion, offset: usize) {
    let number = (region.address() + offset as u64) / PAGE as u64;
    descriptor[at] = number as u32;
    descriptor[at + 1] = (number >> 32) as u32;
}
