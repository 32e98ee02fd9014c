//! A logical unit: a disk as a direct-access block device. Runs its tasks from submission to end; aborts, resets and faults.
//!
//! The fast path of READ and WRITE is [`start`](LogicalUnit::start) and [`Tasks::complete`]. The slow path is out of line.

use std::sync::Arc;

use paradisk_disk_formats::{Completion, Disk, DiskQueue};

use super::block;
use super::inquiry::Identity;
use super::medium::{BACKGROUND, Medium};
use super::order::{Order, at_once};
use super::sense::{Key, Sense, asc};
use super::server::DeviceServer;
use super::steps::{Commands, Outcome};
use super::task::{Attribute, Task, TaskEnd};
use super::tasks::{EndReason, Entry, State, Tasks};
use crate::fault::{self, Fault};

/// Ends of tasks, with their numbers.
pub(super) type Ended = Vec<(u32, TaskEnd)>;

/// A disk as a SCSI direct-access block device.
pub struct LogicalUnit {
    // Dropped first: dropping its queue waits for requests, which may use the memory of `commands`.
    server: DeviceServer,
    order: Order,
    commands: Commands,
    /// Tasks must take the slow path: the server is not ready, tasks wait, a barrier runs, a reset waits for the disk, or the unit is
    /// faulted.
    slow_path: bool,
    index: u16,
    fault: Fault,
}

impl std::fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogicalUnit")
            .field("identity", self.server.identity())
            .field("disk", self.server.medium.info())
            .finish()
    }
}

impl LogicalUnit {
    /// A unit with `disk`; `queue` is a queue of this disk.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, queue: Box<dyn DiskQueue>, identity: Identity) -> Self {
        Self {
            server: DeviceServer::new(Medium::new(disk, queue), identity),
            order: Order::default(),
            commands: Commands::default(),
            // The unit attention for power on is pending.
            slow_path: true,
            index: 0,
            fault: Fault::default(),
        }
    }

    /// The unit is attached as `index` to a bus with `tasks` task numbers, all of which may wait in this unit.
    pub(super) fn attached(&mut self, index: u16, tasks: usize) {
        self.index = index;
        self.order.reserve(tasks);
    }

    /// Limit CDBs to `bytes`.
    pub(super) fn limit_cdbs(&mut self, bytes: u8) {
        self.server.limit_cdbs(bytes);
    }

    /// Set the serial number, unless the unit has one.
    #[must_use]
    pub(crate) fn named(mut self, serial: impl FnOnce() -> String) -> Self {
        self.server.name(serial);
        self
    }

    /// The serial number.
    #[cfg(test)]
    pub(super) fn serial(&self) -> &str {
        &self.server.identity().serial
    }

    pub(super) fn queue(&self) -> &dyn DiskQueue {
        self.server.medium.queue()
    }

    /// Units were attached to or detached from its target.
    pub(super) fn luns_changed(&mut self) {
        self.server.attention.luns_changed();
        self.choose_path();
    }

    /// REPORT LUNS was answered.
    pub(super) fn luns_reported(&mut self) {
        self.server.attention.luns_reported();
        self.choose_path();
    }

    /// Compare the capacity with the one that was reported to the initiator. True: the capacity has changed since the last call.
    pub(super) fn refresh(&mut self) -> bool {
        self.server.refresh();
        self.choose_path();
        self.server.attention.take_capacity_change()
    }

    /// Update `slow_path`. Call this after every change that may affect it.
    fn choose_path(&mut self) {
        self.slow_path = !self.server.ready() || !self.order.open() || self.fault.is_set();
    }

    /// Start a READ or WRITE that is one disk request and need not wait. False: nothing was done; call [`submit`](Self::submit).
    #[inline(always)]
    pub(super) fn start(&mut self, task: &Task<'_>, tasks: &mut Tasks) -> bool {
        if self.slow_path || task.attribute != Attribute::Simple {
            return false;
        }
        let Some(entry) = block::start(&mut self.server.medium, task) else { return false };
        tasks.insert(task.id, self.index, entry);
        self.order.begun();
        true
    }

    /// A new task that was not [started](Self::start). `Some`: it has ended.
    pub(super) fn submit(&mut self, task: &Task<'_>, tasks: &mut Tasks) -> Option<TaskEnd> {
        if !task.cdb.first().is_some_and(|code| at_once(*code)) {
            if self.fault.is_set() {
                return Some(self.internal_failure());
            }
            if !self.order.admits(task) {
                self.wait(task, tasks);
                return None;
            }
        }
        let outcome = self.server.execute(task);
        self.record_outcome(outcome, task, tasks)
    }

    /// Record the outcome of a new task that was executed. `Some`: it has ended.
    fn record_outcome(&mut self, outcome: Outcome, task: &Task<'_>, tasks: &mut Tasks) -> Option<TaskEnd> {
        let steps = matches!(outcome, Outcome::Steps(..));
        let full = matches!(outcome, Outcome::Full);
        let ended = self.record(outcome, task, tasks);
        if full {
            self.wait(task, tasks);
        }
        if steps {
            tasks.store(task);
            self.resume(tasks);
        }
        self.choose_path();
        ended
    }

    /// Queue the task.
    fn wait(&mut self, task: &Task<'_>, tasks: &mut Tasks) {
        tasks.store(task);
        tasks.insert(task.id, self.index, Entry::new(State::Waiting, 0, 0, 0));
        self.order.wait(task.id, task.attribute);
        self.choose_path();
    }

    /// Record the outcome of a task that was executed. `Some`: it has ended. [`resume`](Self::resume) pushes its first step, and needs the
    /// stored task.
    fn record(&mut self, outcome: Outcome, task: &Task<'_>, tasks: &mut Tasks) -> Option<TaskEnd> {
        let entry = match outcome {
            Outcome::Ended(end) => return Some(end),
            Outcome::Full => return None,
            Outcome::Started(entry) => entry,
            Outcome::Steps(steps, entry) => {
                self.commands.add(task.id, steps);
                entry
            }
        };
        tasks.insert(task.id, self.index, entry);
        self.order.begun_task(task);
        None
    }

    /// Begin the waiting tasks that may begin now.
    fn start_waiting(&mut self, tasks: &mut Tasks, ended: &mut Ended) {
        if self.order.resetting() {
            let busy = self.in_disk();
            self.order.reset(busy);
        }
        while let Some(id) = self.order.next() {
            let Some(head) = tasks.head(id) else { return self.fail_all(fault::NO_SUCH_TASK, tasks, ended) };
            let bufs = tasks.take_bufs(id);
            let task = head.task(id, &bufs);
            if !self.order.allows(&task) {
                tasks.put_bufs(id, bufs);
                break;
            }
            let outcome = self.server.execute(&task);
            let full = matches!(outcome, Outcome::Full);
            let end = self.record(outcome, &task, tasks);
            tasks.put_bufs(id, bufs);
            if full {
                break;
            }
            self.order.leave(id);
            if let Some(end) = end {
                report(id, end, tasks, ended);
            }
            self.resume(tasks);
        }
        self.choose_path();
    }

    /// Push the next step of the running command, if it has no request in the disk.
    fn resume(&mut self, tasks: &Tasks) {
        self.commands.push(&mut self.server.medium, tasks);
    }

    /// Whether requests were pushed since the last [`submit_pushed`](Self::submit_pushed).
    #[inline]
    pub(super) fn pushed(&self) -> bool {
        self.server.medium.pushed()
    }

    /// Submit the pushed requests.
    #[inline]
    pub(super) fn submit_pushed(&mut self) {
        self.server.medium.submit();
    }

    /// Number of tasks in flight.
    pub(super) fn tasks(&self) -> usize {
        self.order.running() as usize + self.order.waiting()
    }

    /// Whether tasks run or flushes are in flight.
    #[inline]
    fn in_disk(&self) -> bool {
        self.order.running() > 0 || self.server.medium.flushes()
    }

    /// Whether disk requests are in flight or tasks wait.
    #[inline]
    pub(super) fn busy(&self) -> bool {
        self.in_disk() || self.order.waiting() > 0
    }

    /// Whether disk requests from before a reset are in flight.
    pub(super) fn resetting(&self) -> bool {
        self.order.resetting()
    }

    /// Take the disk's completions, end their tasks, and begin tasks that waited for these.
    #[inline]
    pub(super) fn reap(&mut self, tasks: &mut Tasks, completions: &mut Vec<Completion>, ended: &mut Ended) {
        self.server.medium.reap(completions);
        for completion in completions.drain(..) {
            self.complete(completion, tasks, ended);
        }
        if self.commands.to_push() {
            self.resume(tasks);
        }
        if self.slow_path {
            self.fail_stranded(tasks, ended);
            self.start_waiting(tasks, ended);
        }
        self.submit_pushed();
    }

    #[inline]
    fn complete(&mut self, completion: Completion, tasks: &mut Tasks, ended: &mut Ended) {
        if completion.result.is_ok()
            && let Ok(id) = u32::try_from(completion.tag)
            && let Some(end) = tasks.complete(id, self.index)
        {
            self.order.ended(id);
            ended.push((id, end));
            return;
        }
        self.complete_slow(completion, tasks, ended);
    }

    #[cold]
    fn complete_slow(&mut self, completion: Completion, tasks: &mut Tasks, ended: &mut Ended) {
        let Completion { tag, result } = completion;
        if tag == BACKGROUND && self.server.medium.flush_completed() {
            if let Err(error) = result {
                self.server.attention.defer(Sense::from_io(error, asc::WRITE_ERROR, None));
                self.choose_path();
            }
            return;
        }
        let id = u32::try_from(tag).unwrap_or(u32::MAX);
        let Some(entry) = tasks.get(id).filter(|entry| self.has_request(id, entry)) else {
            return self.fail_all(fault::UNKNOWN_COMPLETION, tasks, ended);
        };
        let good = TaskEnd::good(entry.transferred, entry.wanted);
        let end = match (self.end_of(entry.reason), entry.state, result) {
            (Some(end), ..) => end,
            (None, State::Steps, result) => {
                match self.commands.completed(result, &entry, &self.server.medium, tasks) {
                    Ok(true) => good,
                    Ok(false) => return,
                    Err(sense) => self.server.check(sense, entry.transferred, entry.wanted),
                }
            }
            (None, _, Ok(())) => good,
            (None, _, Err(error)) => self.server.check(block::error(error, &entry), 0, entry.wanted),
        };
        self.finish(id, end, tasks, ended);
    }

    /// End a running task.
    fn finish(&mut self, id: u32, end: TaskEnd, tasks: &mut Tasks, ended: &mut Ended) {
        self.commands.remove(id);
        self.order.ended(id);
        report(id, end, tasks, ended);
    }

    /// Abort a task of this unit that is in flight.
    pub(super) fn abort(&mut self, id: u32, tasks: &mut Tasks, ended: &mut Ended) {
        self.terminate(id, EndReason::Abort, tasks, ended);
        self.resume(tasks);
        self.start_waiting(tasks, ended);
        self.submit_pushed();
    }

    /// End a task if it has no request in the disk's queue. Otherwise it ends with this reason when its request completes.
    fn terminate(&mut self, id: u32, reason: EndReason, tasks: &mut Tasks, ended: &mut Ended) {
        // Callers take the number from the table.
        let Some(entry) = tasks.get(id) else { return };
        let Some(end) = self.end_of(reason).filter(|_| entry.reason == EndReason::Answer) else { return };
        if entry.state == State::Waiting {
            self.order.leave(id);
            report(id, end, tasks, ended);
        } else if !self.has_request(id, &entry) {
            self.finish(id, end, tasks, ended);
        } else {
            tasks.set_reason(id, reason);
        }
    }

    fn end_of(&self, reason: EndReason) -> Option<TaskEnd> {
        match reason {
            EndReason::Answer => None,
            EndReason::Abort => Some(TaskEnd::Aborted),
            EndReason::Reset => Some(TaskEnd::Reset),
            EndReason::Fault => Some(self.internal_failure()),
        }
    }

    fn internal_failure(&self) -> TaskEnd {
        self.server.check(Sense::new(Key::HardwareError, asc::INTERNAL_TARGET_FAILURE), 0, 0)
    }

    /// Whether a request of a task is in the disk's queue, or has just completed.
    fn has_request(&self, id: u32, entry: &Entry) -> bool {
        entry.unit == self.index
            && match entry.state {
                State::Free | State::Waiting => false,
                State::Steps => self.commands.has_request(id),
                State::Read | State::Write | State::Flush => true,
            }
    }

    /// Fault the unit: tasks without a request in the disk fail now, the others when their request completes ([`fault`](crate::fault)).
    #[cold]
    fn fail_all(&mut self, what: &'static str, tasks: &mut Tasks, ended: &mut Ended) {
        self.fault.set(what, &self.server.identity().serial);
        for id in tasks.of_unit(self.index) {
            self.terminate(id, EndReason::Fault, tasks, ended);
        }
        self.order.clear_waiting();
        self.choose_path();
    }

    /// End the tasks that a faulted queue will never complete.
    fn fail_stranded(&mut self, tasks: &mut Tasks, ended: &mut Ended) {
        if !self.fault.is_set() || self.queue().in_flight() > 0 {
            return;
        }
        for id in tasks.of_unit(self.index) {
            let reason = tasks.get(id).map_or(EndReason::Fault, |entry| entry.reason);
            let end = self.end_of(reason).unwrap_or_else(|| self.internal_failure());
            self.finish(id, end, tasks, ended);
        }
        self.order.all_ended();
        self.server.medium.flushes_lost();
    }

    /// Fault the unit if tasks wait for requests that the queue does not have. True: these tasks have ended. Call this after submitting and
    /// reaping everything.
    pub(super) fn fail_lost(&mut self, tasks: &mut Tasks, ended: &mut Ended) -> bool {
        if !self.busy() || self.queue().in_flight() > 0 {
            return false;
        }
        self.fail_all(fault::NOTHING_IN_FLIGHT, tasks, ended);
        self.fail_stranded(tasks, ended);
        self.start_waiting(tasks, ended);
        true
    }

    /// Reset to the state after power on. Tasks without a request in the disk end as reset now, the others when their request completes.
    /// New tasks wait for these. `condition` is the unit attention to be reported.
    pub(super) fn reset(&mut self, condition: u8, tasks: &mut Tasks, ended: &mut Ended) {
        for id in tasks.of_unit(self.index) {
            self.terminate(id, EndReason::Reset, tasks, ended);
        }
        self.submit_pushed();
        let busy = self.in_disk();
        self.order.reset(busy);
        self.server.reset(condition);
        self.choose_path();
    }

    /// Wait until nothing is in flight.
    pub(super) fn drain(&mut self, tasks: &mut Tasks, completions: &mut Vec<Completion>, ended: &mut Ended) {
        while self.busy() && self.queue().in_flight() > 0 {
            self.server.medium.wait();
            self.reap(tasks, completions, ended);
        }
        self.fail_lost(tasks, ended);
    }
}

/// Report the end of a task, and free its number.
fn report(id: u32, end: TaskEnd, tasks: &mut Tasks, ended: &mut Ended) {
    tasks.set_state(id, State::Free);
    ended.push((id, end));
}
