//! Executes the commands.
//!
//! A driver reads no register after it has written a reset, so only the write itself can wait. Requests in the ring or the backlog end
//! before the write returns. Disk requests in flight cannot be stopped: the kernel reads and writes guest memory for them.
//! - RESET_BUS and RESET_DEVICE wait for these up to [`RESET_WAIT`](super::RESET_WAIT). Requests that take longer keep their memory until
//!   their completions are posted. Later requests for these units are held until the disks have completed the earlier ones. Linux frees the
//!   memory of a request only after the test command that it sends after the reset has succeeded. That test command is held, too.
//! - ADAPTER_RESET and SETUP_RINGS wait for all disk requests: the driver frees all memory, and there is no ring for completions.
//! - ABORT_CMD does not wait: the driver waits for the request's completion.

use std::thread;
use std::time::{Duration, Instant};

use vm_memory::GuestAddressSpace;
use zerocopy::{FromZeros, IntoBytes};

use super::causes::Causes;
use super::collector::{Collector, Command};
use super::request::{Parsed, Pending, Request};
use super::rings::{Messages, Rings};
use super::spec::{
    COMMAND_FAILED, COMMAND_SUCCEEDED, CONFIG_CONTROLLER_ADDRESS, CONFIG_PAGE_CONTROLLER,
    CONFIG_PAGE_HEADER_SIZE, CmdDescAbortCmd, CmdDescConfigCmd, CmdDescResetDevice, ConfigPageController,
    HostStatus,
};
use super::{MAX_TARGETS, Pvscsi};
use crate::hba::Hba;
use crate::scsi::{Address, single_level_lun};
use crate::time::Time;

/// Interval of polls while a reset waits.
const RESET_POLL: Duration = Duration::from_micros(200);

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Run a command that has been collected.
    pub(super) fn run(&mut self, command: &Command, now: Time) {
        let done = match command {
            Command::SetupRings(_) | Command::SetupMsgRing(_) | Command::Config(_)
                if !self.function.bus_master() =>
            {
                false
            }
            Command::AdapterReset => {
                self.adapter_reset();
                true
            }
            Command::SetupRings(setup) => {
                // A driver resets the adapter first. If it has not, its requests in flight end without completions, and nothing is written
                // late.
                self.engine.bus.drain();
                self.drop_rings();
                self.rings = Rings::new(&mut self.engine.dma, setup);
                // A kick (an event) may have arrived before this command (a message).
                self.engine.has_work = self.rings.is_some();
                self.engine.has_work
            }
            Command::SetupMsgRing(setup) => match &self.rings {
                Some(rings) => {
                    self.messages = Messages::new(&mut self.engine.dma, setup, rings);
                    self.messages.is_some()
                }
                None => true,
            },
            Command::ResetBus => {
                self.take_all(HostStatus::BusReset, |_, _| true, now);
                self.engine.bus.reset_all();
                self.wait_for_reset(|_| true, now);
                true
            }
            Command::ResetDevice(reset) => self.reset_device(reset, now),
            Command::AbortCmd(abort) => {
                self.abort(abort, now);
                true
            }
            Command::Config(config) => self.config_page(config),
            Command::SetupReqCallThreshold(enable) => {
                self.kicks.enable(*enable != 0);
                if !self.kicks.enabled()
                    && let Some(rings) = &mut self.rings
                {
                    self.engine.has_work |= rings.set_threshold(0);
                }
                // For this command alone, a status of zero means "not enabled".
                self.collector.status = u32::from(self.kicks.enabled());
                return;
            }
        };
        match command {
            Command::AbortCmd(_) | Command::ResetBus | Command::ResetDevice(_) => {
                tracing::info!(?command, done, "PVSCSI error handling");
            }
            _ => tracing::debug!(?command, done, "PVSCSI command"),
        }
        self.collector.status = if done { COMMAND_SUCCEEDED } else { COMMAND_FAILED };
    }

    /// Post the completions of requests that a reset of these units has ended. Wait a bounded time for requests that the disk still has;
    /// later ones are posted when the disk completes them.
    fn wait_for_reset(&mut self, wanted: impl Fn(Address) -> bool, now: Time) {
        let start = Instant::now();
        self.complete(now);
        while self.function.bus_master()
            && self.engine.bus.resetting(&wanted)
            && start.elapsed() < self.reset_wait
        {
            thread::sleep(RESET_POLL);
            self.complete(now);
            if self.engine.bus.fail_lost() {
                self.complete(now);
            }
        }
    }

    fn reset_device(&mut self, reset: &CmdDescResetDevice, now: Time) -> bool {
        let target = u8::try_from(reset.target.get()).ok().filter(|&target| target < MAX_TARGETS);
        let (Some(target), Some(lun)) = (target, single_level_lun(&reset.lun)) else { return false };
        let address = Address { target, lun };
        self.take_all(HostStatus::BusReset, |_, parsed| parsed.address == address, now);
        self.engine.bus.reset_unit(address);
        self.wait_for_reset(|unit| unit == address, now);
        true
    }

    /// The request ends by its completion: as aborted, or with its own status if the disk has completed it before.
    fn abort(&mut self, abort: &CmdDescAbortCmd, now: Time) {
        let (context, target) = (abort.context.get(), abort.target.get());
        let named = |pending: &Pending| pending.context == context && u32::from(pending.target) == target;
        let in_flight = self.engine.in_flight.iter().find(|(_, pending)| named(pending)).map(|(id, _)| id);
        let mut found = in_flight.is_some();
        // Linux does not kick before this command: the request may still be in the ring or the backlog.
        let waits = |request: &Request, _: &Parsed| {
            let this = !found && named(&Pending::of(request));
            found |= this;
            this
        };
        self.take_all(HostStatus::AbortQueue, waits, now);
        if let Some(id) = in_flight {
            self.engine.bus.abort(id);
        }
        self.complete(now);
    }

    fn config_page(&mut self, config: &CmdDescConfigCmd) -> bool {
        if self.bus_posts_writes {
            // The driver reads the page without reading a register first, and then frees it: a late write would go to reused memory.
            return false;
        }
        let about = config.page_address.get() >> 32;
        if config.page_num.get() != CONFIG_PAGE_CONTROLLER || about != CONFIG_CONTROLLER_ADDRESS {
            return false;
        }
        let mut page = ConfigPageController::new_zeroed();
        page.page_num = CONFIG_PAGE_CONTROLLER.into();
        let dwords = (size_of::<ConfigPageController>() - CONFIG_PAGE_HEADER_SIZE) / 4;
        page.num_dwords = (dwords as u16).into();
        put_text(&mut page.manufacturer, "paradisk");
        put_text(&mut page.firmware_version, env!("CARGO_PKG_VERSION"));
        page.num_phys = u32::from(self.targets).into();
        self.engine.dma.write_bytes(config.cmp_addr.get(), page.as_bytes()).is_ok()
    }

    /// Reset everything but configuration space, the scratch register and the request-call threshold as negotiated. Linux does not
    /// negotiate the threshold again after a reset. A driver that has never negotiated it kicks for each request.
    pub(super) fn adapter_reset(&mut self) {
        self.engine.bus.reset_all();
        self.engine.bus.drain();
        self.drop_rings();
        self.collector = Collector::new();
        self.causes = Causes::new();
        self.update_line();
    }

    /// Drop rings and requests. The disks have completed all of them. Nothing is written to guest memory afterwards.
    fn drop_rings(&mut self) {
        self.engine.drop_waiting();
        self.engine.drop_in_flight();
        self.deferred_messages.clear();
        self.rings = None;
        self.messages = None;
    }
}

fn put_text(field: &mut [u8], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
}
