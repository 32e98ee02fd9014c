//! All logical units behind one adapter: look-up by address, batching, the task table, and REPORT LUNS.

use std::os::fd::BorrowedFd;

use paradisk_disk_formats::{Completion, QueueStats};

use super::cdb::Command;
use super::data::data_in;
use super::opcodes::{LONGEST_CDB, Supported};
use super::sense::{Key, Sense, asc};
use super::spec::{NO_UNIT, opcode};
use super::task::{Address, Status, Task, TaskEnd};
use super::tasks::Tasks;
use super::unit::{Ended, LogicalUnit};
use super::{attention, inquiry};

/// Largest logical unit number that REPORT LUNS can report (flat space addressing, SAM-5, 4.7.7.3).
const MAX_LUN: u16 = 0x3fff;
/// Maximum number of task numbers that are reserved for a unit.
const MAX_RESERVED: usize = 16;
/// In the table of targets: no unit.
const ABSENT: u16 = u16::MAX;

/// Why a unit could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The address is in use.
    #[error("target {} LUN {}: address taken by another logical unit", .0.target, .0.lun)]
    Taken(Address),
    /// The logical unit number cannot be addressed.
    #[error("target {} LUN {}: logical unit number above 16383", .0.target, .0.lun)]
    Lun(Address),
    /// The adapter has no such target, or it is the adapter itself.
    #[error("target {}: the adapter has no such target", .0.target)]
    Target(Address),
}

/// A unit and its address.
struct Slot {
    address: Address,
    unit: LogicalUnit,
    /// The unit's index is in [`Bus::busy`].
    busy: bool,
    /// The unit's index is in [`Bus::touched`].
    touched: bool,
    /// The unit was detached, so `address` no longer counts. Its disk still has requests.
    detached: bool,
}

/// All logical units behind one adapter. One thread at a time uses the bus.
///
/// [`reap`](Self::reap) reports the ends of tasks, except those that [`submit`](Self::submit) returns. Also call it after an abort, a reset
/// or a drain, before sleeping on the [`events`](Self::events).
pub struct Bus {
    /// By index; `None` if the unit was detached. Before `tasks`, because dropping a unit waits for its disk requests.
    slots: Vec<Option<Box<Slot>>>,
    /// Index of the unit that is LUN 0 of each target.
    lun_0: Box<[u16; 256]>,
    /// Indices of units with other logical unit numbers.
    others: Vec<(Address, u16)>,
    tasks: Tasks,
    /// Units with disk requests in flight or tasks waiting.
    busy: Vec<u16>,
    /// Units to whose queue requests were pushed and not yet submitted.
    touched: Vec<u16>,
    /// Task numbers that are reserved for each unit, and the sum over all units.
    reserved_per_unit: usize,
    reserved: usize,
    /// Bytes of the longest CDB that fits into the adapter's requests.
    longest_cdb: u8,
    completions: Vec<Completion>,
    /// Tasks that ended outside of `reap`.
    done: Ended,
    in_flight: usize,
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = self.slots.iter().flatten().map(|slot| (slot.address, &slot.unit));
        f.debug_struct("Bus")
            .field("units", &units.collect::<Vec<_>>())
            .field("in_flight", &self.in_flight)
            .finish()
    }
}

impl Bus {
    /// A bus without units. Task numbers 0 to `tasks` - 1 may be in flight.
    #[must_use]
    pub fn new(tasks: u32) -> Self {
        Self {
            slots: Vec::new(),
            lun_0: Box::new([ABSENT; 256]),
            others: Vec::new(),
            tasks: Tasks::new(tasks),
            busy: Vec::new(),
            touched: Vec::new(),
            reserved_per_unit: 0,
            reserved: 0,
            longest_cdb: LONGEST_CDB,
            completions: Vec::with_capacity(tasks as usize),
            done: Vec::with_capacity(tasks as usize),
            in_flight: 0,
        }
    }

    /// Put a unit at an address. The target's other units report REPORTED LUNS DATA HAS CHANGED.
    ///
    /// # Errors
    /// The address is in use, or cannot be reported to the initiator.
    pub fn attach(&mut self, address: Address, mut unit: LogicalUnit) -> Result<(), AttachError> {
        if self.index(address).is_some() {
            return Err(AttachError::Taken(address));
        }
        if address.lun > MAX_LUN {
            return Err(AttachError::Lun(address));
        }
        self.luns_changed(address.target);
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        // 256 targets with 16,384 units each are more than there are indices.
        let index =
            u16::try_from(free).ok().filter(|index| *index != ABSENT).ok_or(AttachError::Lun(address))?;
        unit.attached(index, self.tasks.limit());
        unit.limit_cdbs(self.longest_cdb);
        let slot = Some(Box::new(Slot { address, unit, busy: false, touched: false, detached: false }));
        match self.slots.get_mut(free) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        let count = self.slots.len();
        self.busy.reserve(count);
        self.touched.reserve(count);
        match self.lun_0.get_mut(usize::from(address.target)) {
            Some(place) if address.lun == 0 => *place = index,
            _ => self.others.push((address, index)),
        }
        self.divide();
        Ok(())
    }

    /// Limit CDBs to `bytes`, the size in the adapter's requests: no unit supports longer commands.
    #[cfg(feature = "buslogic")]
    pub(crate) fn limit_cdbs(&mut self, bytes: u8) {
        self.longest_cdb = bytes;
        self.slots.iter_mut().flatten().for_each(|slot| slot.unit.limit_cdbs(bytes));
    }

    /// Detach the unit at an address. Its tasks end as [`TaskEnd::Reset`] through [`reap`](Self::reap), each when its disk I/O has
    /// completed. Its queue is dropped with the last task ([`detaching`](Self::detaching)). Never waits. False: no such unit.
    pub fn detach(&mut self, address: Address) -> bool {
        let Some(index) = self.index(address) else { return false };
        self.reset_index(index, attention::DEVICE_RESET);
        if let Some(Some(slot)) = self.slots.get_mut(usize::from(index)) {
            slot.detached = true;
        }
        self.remove_idle(index);
        self.others.retain(|(_, other)| *other != index);
        if address.lun == 0
            && let Some(place) = self.lun_0.get_mut(usize::from(address.target))
        {
            *place = ABSENT;
        }
        self.luns_changed(address.target);
        self.divide();
        true
    }

    /// Whether disk I/O of a unit that was detached from this address is still in flight.
    #[must_use]
    pub fn detaching(&self, address: Address) -> bool {
        self.slots.iter().flatten().any(|slot| slot.detached && slot.address == address)
    }

    /// Drop a unit that was detached, if its disk has no more requests.
    #[cold]
    fn remove_idle(&mut self, index: u16) {
        let Some(place) = self.slots.get_mut(usize::from(index)) else { return };
        if place.as_ref().is_some_and(|slot| slot.detached && !slot.unit.busy()) {
            *place = None;
            self.busy.retain(|busy| *busy != index);
            self.touched.retain(|touched| *touched != index);
        }
    }

    /// Units that have an address.
    fn attached(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten().map(|slot| &**slot).filter(|slot| !slot.detached)
    }

    /// Reserve task numbers for each unit, if there are several units. Any unit may take the numbers that are not reserved.
    fn divide(&mut self) {
        let units = self.attached().count();
        self.reserved_per_unit = match units {
            0 | 1 => 0,
            _ => (self.tasks.limit() / (4 * units)).clamp(1, MAX_RESERVED),
        };
        self.reserved = units * self.reserved_per_unit;
    }

    /// Whether a task for this address may begin while `free` task numbers are left. So a unit with a stalled disk leaves the other units
    /// their reserved numbers. With fewer task numbers than units, the first units to come get them.
    #[inline]
    pub(crate) fn admits(&self, address: Address, free: usize) -> bool {
        free > self.reserved || free > 0 && self.has_own(address)
    }

    #[cold]
    fn has_own(&self, address: Address) -> bool {
        let slot = self.index(address).and_then(|index| self.slots.get(usize::from(index))?.as_deref());
        // A task for no unit ends at once.
        slot.is_none_or(|slot| slot.unit.tasks() < self.reserved_per_unit)
    }

    /// Number of reserved task numbers ([`admits`](Self::admits)); 0 with a single unit.
    #[inline]
    pub(crate) const fn reserved(&self) -> usize {
        self.reserved
    }

    /// Addresses of the units, in no particular order.
    pub fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.attached().map(|slot| slot.address)
    }

    /// Check the disks' capacity, and report changes to the initiator. Returns the units whose capacity has changed.
    pub fn refresh(&mut self) -> Vec<Address> {
        let slots = self.slots.iter_mut().flatten().filter(|slot| !slot.detached);
        slots.filter_map(|slot| slot.unit.refresh().then_some(slot.address)).collect()
    }

    /// Begin a task. `Some`: it has ended, and [`reap`](Self::reap) does not report it. `None`: it is in flight.
    ///
    /// A task whose number is out of bounds or in flight ends with TASK SET FULL. Adapters allocate numbers, and start no such task.
    #[inline(always)]
    pub fn submit(&mut self, task: &Task<'_>) -> Option<TaskEnd> {
        if self.tasks.free(task.id)
            && let Some(index) = self.index(task.address)
            && let Some(Some(slot)) = self.slots.get_mut(usize::from(index))
            && slot.unit.start(task, &mut self.tasks)
        {
            self.in_flight += 1;
            if !slot.busy || !slot.touched {
                self.mark_active(index);
            }
            return None;
        }
        // Copied, so that the caller's task can stay in registers on the fast path.
        let task = *task;
        self.submit_slow(&task)
    }

    #[cold]
    fn submit_slow(&mut self, task: &Task<'_>) -> Option<TaskEnd> {
        if !self.tasks.free(task.id) {
            return Some(TaskEnd::status(Status::TaskSetFull));
        }
        let Some(index) = self.index(task.address) else { return Some(self.no_unit(task)) };
        if task.cdb.first() == Some(&opcode::REPORT_LUNS) {
            return Some(self.report_luns(task));
        }
        let Some(Some(slot)) = self.slots.get_mut(usize::from(index)) else { return Some(TaskEnd::NoTarget) };
        let end = slot.unit.submit(task, &mut self.tasks);
        if end.is_none() {
            self.in_flight += 1;
        } else if !slot.unit.pushed() {
            return end;
        }
        self.mark_active(index);
        end
    }

    /// Let [`submit_pushed`](Self::submit_pushed) and [`reap`](Self::reap) process this unit.
    #[cold]
    fn mark_active(&mut self, index: u16) {
        let Some(Some(slot)) = self.slots.get_mut(usize::from(index)) else { return };
        if !slot.busy {
            slot.busy = true;
            self.busy.push(index);
        }
        if !slot.touched {
            slot.touched = true;
            self.touched.push(index);
        }
    }

    /// Submit the pushed requests: one `DiskQueue::submit` for each queue that got some.
    #[inline]
    pub fn submit_pushed(&mut self) {
        for index in self.touched.drain(..) {
            if let Some(Some(slot)) = self.slots.get_mut(usize::from(index)) {
                slot.touched = false;
                slot.unit.submit_pushed();
            }
        }
    }

    /// Append the number and the end of each task that has ended. Never waits. A caller that passes the same vector each time avoids
    /// allocations. Go through the ends by reference: a move would load an end right after it was stored in smaller pieces, which the processor
    /// cannot forward.
    #[inline]
    pub fn reap(&mut self, ended: &mut Vec<(u32, TaskEnd)>) {
        let before = ended.len();
        ended.append(&mut self.done);
        let mut at = 0;
        while let Some(&index) = self.busy.get(at) {
            let Some(Some(slot)) = self.slots.get_mut(usize::from(index)) else {
                self.busy.swap_remove(at);
                continue;
            };
            slot.unit.reap(&mut self.tasks, &mut self.completions, ended);
            if slot.unit.busy() {
                at += 1;
            } else {
                slot.busy = false;
                let detached = slot.detached;
                self.busy.swap_remove(at);
                if detached {
                    self.remove_idle(index);
                }
            }
        }
        self.in_flight = self.in_flight.saturating_sub(ended.len() - before);
    }

    /// Reap the queues of units without requests. The event of a disk may become readable after its last completion was reaped, and stays
    /// so until its queue is reaped again. Call this when a wake-up brought no completion, so that the thread can sleep.
    pub fn clear_late_events(&mut self) {
        if self.busy.len() == self.slots.len() {
            return;
        }
        for slot in self.slots.iter_mut().flatten().filter(|slot| !slot.busy) {
            slot.unit.reap(&mut self.tasks, &mut self.completions, &mut self.done);
        }
    }

    /// Drop the ends that [`reap`](Self::reap) would report.
    pub fn discard(&mut self) {
        self.reap(&mut Vec::new());
    }

    /// Abort a task: it ends as [`TaskEnd::Aborted`] through [`reap`](Self::reap), when its disk I/O has completed (its buffers are not
    /// accessed afterwards). False: no such task is in flight.
    pub fn abort(&mut self, id: u32) -> bool {
        let Some(entry) = self.tasks.get(id) else { return false };
        let index = usize::from(entry.unit);
        if let Some(Some(slot)) = self.slots.get_mut(index) {
            slot.unit.abort(id, &mut self.tasks, &mut self.done);
        }
        true
    }

    /// Reset a unit: it reports BUS DEVICE RESET FUNCTION OCCURRED, and its tasks end as [`TaskEnd::Reset`] through [`reap`](Self::reap),
    /// each when its disk I/O has completed (its buffers are not accessed afterwards). Never waits. While the unit is
    /// [`resetting`](Self::resetting), later tasks are queued and do not begin.
    pub fn reset_unit(&mut self, address: Address) {
        if let Some(index) = self.index(address) {
            self.reset_index(index, attention::DEVICE_RESET);
        }
    }

    /// [`reset_unit`](Self::reset_unit) for all units of a target.
    pub fn reset_target(&mut self, target: u8) {
        for index in self.indices(|address| address.target == target) {
            self.reset_index(index, attention::DEVICE_RESET);
        }
    }

    /// Reset all units, as [`reset_unit`](Self::reset_unit); they report SCSI BUS RESET OCCURRED.
    pub fn reset_all(&mut self) {
        for index in self.indices(|_| true) {
            self.reset_index(index, attention::BUS_RESET);
        }
    }

    /// Whether disk I/O from before a reset is still in flight at one of these addresses.
    #[must_use]
    pub fn resetting(&self, wanted: impl Fn(Address) -> bool) -> bool {
        self.slots.iter().flatten().any(|slot| slot.unit.resetting() && wanted(slot.address))
    }

    /// Tasks that were submitted and not yet reported.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Block until no task is in flight in a disk; the ends come through [`reap`](Self::reap).
    pub fn drain(&mut self) {
        self.submit_pushed();
        for slot in self.slots.iter_mut().flatten() {
            slot.unit.drain(&mut self.tasks, &mut self.completions, &mut self.done);
        }
        // `reap` drops detached units, but an adapter without bus mastering does not call it.
        for index in self.indices(|_| true) {
            self.remove_idle(index);
        }
    }

    /// End tasks that wait for requests which the disk's queue has lost, with HARDWARE ERROR; their unit is
    /// [faulted](crate::on_disk_fault). Call this before sleeping. True: there were such tasks; call [`reap`](Self::reap).
    pub fn fail_lost(&mut self) -> bool {
        let Self { slots, busy, tasks, done, .. } = self;
        let mut any = false;
        for index in busy {
            if let Some(Some(slot)) = slots.get_mut(usize::from(*index)) {
                any |= slot.unit.fail_lost(tasks, done);
            }
        }
        any
    }

    /// The queues' descriptors. They are readable while there may be completions to [`reap`](Self::reap).
    #[must_use]
    pub fn events(&self) -> Vec<BorrowedFd<'_>> {
        self.slots.iter().flatten().map(|slot| slot.unit.queue().event()).collect()
    }

    /// Sum over the queues.
    #[must_use]
    pub fn queue_stats(&self) -> QueueStats {
        let stats = self.slots.iter().flatten().map(|slot| slot.unit.queue().stats());
        stats.fold(QueueStats::default(), |sum, stats| QueueStats {
            submits: sum.submits + stats.submits,
            submit_ticks: sum.submit_ticks + stats.submit_ticks,
            bounced: sum.bounced + stats.bounced,
            slow: sum.slow + stats.slow,
        })
    }

    /// The serial number of a unit.
    #[cfg(test)]
    pub(crate) fn serial(&self, address: Address) -> Option<&str> {
        let slot = self.slots.get(usize::from(self.index(address)?))?.as_deref()?;
        Some(slot.unit.serial())
    }

    #[inline]
    fn index(&self, address: Address) -> Option<u16> {
        if address.lun == 0 {
            return self.lun_0.get(usize::from(address.target)).copied().filter(|index| *index != ABSENT);
        }
        self.others.iter().find(|(other, _)| *other == address).map(|(_, index)| *index)
    }

    fn slot(&mut self, index: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(index))?.as_deref_mut()
    }

    fn indices(&self, wanted: impl Fn(Address) -> bool) -> Vec<u16> {
        let slots = (0u16..).zip(&self.slots);
        slots
            .filter_map(|(index, slot)| slot.as_ref().filter(|slot| wanted(slot.address)).map(|_| index))
            .collect()
    }

    fn reset_index(&mut self, index: u16, condition: u8) {
        if let Some(Some(slot)) = self.slots.get_mut(usize::from(index)) {
            slot.unit.reset(condition, &mut self.tasks, &mut self.done);
        }
    }

    fn luns_changed(&mut self, target: u8) {
        for slot in self.slots.iter_mut().flatten().filter(|slot| slot.address.target == target) {
            slot.unit.luns_changed();
        }
    }

    /// The answer if there is no logical unit (SAM-5, 4.13; SPC-4, 6.6 and 6.39).
    #[cold]
    fn no_unit(&mut self, task: &Task<'_>) -> TaskEnd {
        if self.addresses().all(|address| address.target != task.address.target) {
            return TaskEnd::NoTarget;
        }
        self.no_unit_on_target(task)
    }

    /// As [`no_unit`](Self::no_unit), for a target that exists even without units.
    #[cold]
    pub(crate) fn no_unit_on_target(&mut self, task: &Task<'_>) -> TaskEnd {
        let unsupported = Sense::illegal(asc::LOGICAL_UNIT_NOT_SUPPORTED);
        let supported = Supported::WITHOUT_DISCARDS;
        let end = match task.cdb.first() {
            Some(&opcode::REPORT_LUNS) => return self.report_luns(task),
            Some(&opcode::INQUIRY | &opcode::REQUEST_SENSE) => match Command::parse(task.cdb, supported) {
                Ok(Command::Inquiry { page, alloc }) => {
                    inquiry::without_disk(NO_UNIT, page).map(|data| data_in(task, &data, alloc))
                }
                Ok(Command::RequestSense { descriptor, alloc }) => {
                    Ok(data_in(task, unsupported.encode(descriptor).as_slice(), alloc))
                }
                Ok(_) => Err(unsupported),
                Err(sense) => Err(sense),
            },
            _ => Err(unsupported),
        };
        end.unwrap_or_else(TaskEnd::check)
    }

    /// REPORT LUNS (SPC-4, 6.33). Every logical unit number of a target answers it.
    #[cold]
    fn report_luns(&mut self, task: &Task<'_>) -> TaskEnd {
        let (select, alloc) = match Command::parse(task.cdb, Supported::WITHOUT_DISCARDS) {
            Ok(Command::ReportLuns { select, alloc }) => (select, alloc),
            Ok(_) => return TaskEnd::check(Sense::new(Key::IllegalRequest, asc::INVALID_OPERATION_CODE)),
            Err(sense) => return TaskEnd::check(sense),
        };
        let target = task.address.target;
        let mut luns: Vec<u16> = match select {
            0 | 2 => self
                .addresses()
                .filter(|address| address.target == target)
                .map(|address| address.lun)
                .collect(),
            // Well known logical units only: there are none.
            1 => Vec::new(),
            _ => return TaskEnd::check(Sense::cdb(2)),
        };
        luns.sort_unstable();
        // Peripheral device addressing up to 255, flat space addressing above.
        let list = luns.into_iter().map(|lun| {
            let [high, low] = (if lun < 256 { lun } else { 0x4000 | lun }).to_be_bytes();
            [high, low, 0, 0, 0, 0, 0, 0]
        });
        let data = lun_list(list);
        if let Some(slot) = self.index(task.address).and_then(|index| self.slot(index)) {
            slot.unit.luns_reported();
        }
        data_in(task, &data, alloc)
    }
}

/// Parameter data of REPORT LUNS.
pub(super) fn lun_list(luns: impl ExactSizeIterator<Item = [u8; 8]>) -> Vec<u8> {
    let mut data = ((luns.len() * 8) as u32).to_be_bytes().to_vec();
    data.extend([0; 4]);
    data.extend(luns.flatten());
    data
}
