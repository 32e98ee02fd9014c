//! Register space, and the contract with the owner.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use super::spec::{
    Interrupts, REG_COMMAND, REG_COMMAND_DATA, REG_COMMAND_STATUS, REG_DEBUG, REG_INTR_MASK, REG_INTR_STATUS,
    REG_KICK_NON_RW_IO, REG_KICK_RW_IO,
};
use crate::{Bar, Coalescing, Doorbell, HotPlug, PciDevice, Sleep, Stats, Time};

const DOORBELLS: [Doorbell; 2] = [
    Doorbell { bar: 0, offset: REG_KICK_RW_IO, len: 4 },
    Doorbell { bar: 0, offset: REG_KICK_NON_RW_IO, len: 4 },
];

/// From so many requests on that are in flight or expected, the driver may leave out kicks.
const THRESHOLD_FROM: u32 = 8;

/// How long requests that were put in without a kick may wait while commands are in flight, whose completions make us
/// look anyhow.
const LATE_BESIDE_OTHERS: Duration = Duration::from_millis(1);

/// How long they may wait while nothing is in flight.
const LATE_ALONE: Duration = Duration::from_micros(100);

/// How often to look whether the guest has made room in a full ring.
const FULL_RING: Duration = Duration::from_millis(1);

impl<A: GuestAddressSpace> Pvscsi<A> {
    fn register_read(&self, offset: u64) -> u32 {
        match offset {
            REG_COMMAND_STATUS => self.collector.status,
            REG_INTR_STATUS => self.intr_status.bits(),
            REG_INTR_MASK => self.intr_mask.bits(),
            REG_DEBUG => self.debug,
            _ => 0,
        }
    }

    fn register_write(&mut self, offset: u64, value: u32, now: Time) {
        match offset {
            REG_COMMAND => {
                if let Some(command) = self.collector.start(value) {
                    self.run(&command, now);
                }
            }
            REG_COMMAND_DATA => {
                if let Some(command) = self.collector.data(value) {
                    self.run(&command, now);
                }
            }
            REG_INTR_STATUS => {
                self.intr_status &= !Interrupts::from_bits_truncate(value);
                self.update_line();
            }
            REG_INTR_MASK => {
                self.intr_mask = Interrupts::from_bits_truncate(value);
                let due = self.unsent & self.intr_mask;
                if due.is_empty() {
                    self.update_line();
                } else {
                    self.unsent &= !due;
                    self.raise(due & self.intr_status);
                }
            }
            REG_KICK_RW_IO | REG_KICK_NON_RW_IO => self.on_kick(now),
            REG_DEBUG => self.debug = value,
            _ => {}
        }
    }

    fn on_kick(&mut self, now: Time) {
        self.stats.doorbells += 1;
        self.service(now);
    }

    /// Tell the driver from how many waiting requests on it is to kick while this thread sleeps, and look at the ring
    /// again. True: requests are there.
    ///
    /// With many in flight, their completions make us look. With none, the driver will put in about as many requests as
    /// there are completions that it has not read: the last of them is worth a kick, not each. If they do not come, we
    /// look after a short time, and from then on it kicks for each.
    ///
    /// The driver stores its index and then loads the threshold without a fence between, so its load may come first.
    /// A request that it left without a kick that way is found by one more look, [`LATE_ALONE`] after the threshold was
    /// lowered.
    fn before_threshold_sleep(&mut self, now: Time) -> bool {
        let in_flight = self.in_flight();
        let can_fetch = self.can_fetch();
        let Some(rings) = &mut self.rings else { return false };
        let expired = self.look_at.is_some_and(|time| now >= time);
        let unread = rings.unread();
        let threshold = if in_flight >= THRESHOLD_FROM {
            in_flight / 2
        } else if unread >= THRESHOLD_FROM && !expired {
            unread - unread / 16
        } else {
            0
        };
        let lowered = rings.set_threshold(threshold);
        if lowered && can_fetch && rings.waiting() > 0 {
            return true;
        }
        let wait = if in_flight >= THRESHOLD_FROM { LATE_BESIDE_OTHERS } else { LATE_ALONE };
        // As long as the driver may leave out kicks there is a next look; after the threshold was lowered, one more.
        if lowered || threshold > 1 && (expired || self.look_at.is_none()) {
            self.look_at = Some(now.after(wait));
        } else if expired {
            self.look_at = None;
        }
        false
    }
}

impl<A> PciDevice for Pvscsi<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.function.config_read(offset, data);
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        let before = self.function.bus_master();
        self.function.config_write(offset, data);
        match (before, self.function.bus_master()) {
            // No access to memory from here on: wait for the disks, and show what ended when bus mastering is back.
            (true, false) => self.bus.drain(),
            (false, true) => self.more = true,
            _ => {}
        }
    }

    fn bars(&self) -> Vec<Bar> {
        self.function.bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], _now: Time) {
        if self.function.msix_read(bar, offset, data) {
            return;
        }
        data.fill(0);
        if let (0, Ok(data)) = (bar, <&mut [u8; 4]>::try_from(data)) {
            *data = self.register_read(offset).to_le_bytes();
        }
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time) {
        if self.function.msix_write(bar, offset, data) {
            return;
        }
        if let (0, Ok(&data)) = (bar, <&[u8; 4]>::try_from(data)) {
            self.register_write(offset, u32::from_le_bytes(data), now);
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        &DOORBELLS
    }

    fn on_doorbell(&mut self, _index: usize, now: Time) {
        self.on_kick(now);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        self.bus.events()
    }

    fn on_completions(&mut self, now: Time) {
        self.service(now);
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        if !self.threshold_enabled || self.rings.is_none() {
            self.look_at = None;
        } else if self.before_threshold_sleep(now) {
            return Sleep::No;
        }
        if self.more {
            return Sleep::No;
        }
        let full = !self.late_completions.is_empty() || !self.late_messages.is_empty();
        let deadlines = [self.moderator.deadline(), self.look_at, full.then(|| now.after(FULL_RING))];
        // Without bus mastering nothing can be read or signalled: no reason to wake.
        let first = deadlines.into_iter().flatten().min().filter(|_| self.function.bus_master());
        first.map_or(Sleep::Forever, Sleep::Until)
    }

    fn reset(&mut self, _now: Time) {
        self.power_on();
    }

    fn quiesce(&mut self, now: Time) {
        self.bus.drain();
        self.complete(now);
        if self.moderator.flush() {
            self.raise(Interrupts::CMPL_0);
        }
        self.dma.release();
    }

    fn set_coalescing(&mut self, coalescing: Coalescing) {
        if self.moderator.set_options(coalescing) {
            self.raise(Interrupts::CMPL_0);
        }
    }

    fn hot_plug(&mut self) -> Option<&mut dyn HotPlug> {
        Some(self)
    }

    fn refresh(&mut self, _now: Time) {
        self.bus.refresh_all();
    }

    fn stats(&self) -> Stats {
        let queues = self.bus.queue_stats();
        Stats { submits: queues.submits, submit_ticks: queues.submit_ticks, ..self.stats }
    }
}
