//! The task set of a unit (SAM-5, 8): when a task begins, what follows a disk completion, aborts and resets.
//!
//! SIMPLE tasks begin at once. An ORDERED task, and COMPARE AND WRITE whatever its attribute, waits until all earlier
//! tasks are over and keeps later ones waiting; HEAD OF QUEUE goes past those that wait.

use disk_formats::Completion;

use super::block::BACKGROUND;
use super::cdb::Transfer;
use super::mode::Modes;
use super::sense::{Key, Sense, asc};
use super::slow::Progress;
use super::spec::opcode;
use super::tasks::{Entry, Fate, State, Tasks};
use super::unit::{Failure, LogicalUnit, Outcome, gate, good, plain};
use super::{Attribute, Status, Task, TaskEnd};
use crate::fault;

/// Ends of tasks, with their numbers.
pub(super) type Ended = Vec<(u32, TaskEnd)>;

/// Commands that neither wait nor report unit attention (SAM-5, 5.14 and 8.7).
pub(super) const fn at_once(code: u8) -> bool {
    matches!(code, opcode::INQUIRY | opcode::REQUEST_SENSE | opcode::REPORT_LUNS)
}

impl LogicalUnit {
    /// A new task. `Some`: it has ended.
    #[inline]
    pub(super) fn submit(&mut self, task: &Task<'_>, tasks: &mut Tasks) -> Option<TaskEnd> {
        if self.gate == 0
            && task.attribute == Attribute::Simple
            && let Some(transfer) = Transfer::parse(task.cdb)
        {
            return match self.transfer(task, transfer, tasks) {
                Ok(Outcome::Started) => None,
                Ok(outcome) => self.settle(outcome, task, tasks),
                Err(Failure::Check(sense)) => Some(self.check(sense)),
                Err(Failure::End(end)) => Some(end),
            };
        }
        self.submit_slow(task, tasks)
    }

    #[cold]
    fn submit_slow(&mut self, task: &Task<'_>, tasks: &mut Tasks) -> Option<TaskEnd> {
        let code = task.cdb.first().copied();
        let head = task.attribute == Attribute::HeadOfQueue;
        if !code.is_some_and(at_once) {
            if self.fault.is_set() {
                return Some(self.internal_failure());
            }
            let barrier = is_barrier(task.attribute, code);
            let hold = if head { self.atomic } else { self.exclusive.is_some() || !self.waiting.is_empty() };
            if hold || self.resetting || barrier && self.running > 0 {
                self.park(task, tasks);
                return None;
            }
        }
        let outcome = self.execute(task, tasks);
        self.enter(&outcome, task.id, task.attribute, code);
        self.settle(outcome, task, tasks)
    }

    /// Keep what has to be kept of a task that was begun from outside.
    fn settle(&mut self, outcome: Outcome, task: &Task<'_>, tasks: &mut Tasks) -> Option<TaskEnd> {
        match outcome {
            Outcome::Ended(end) => return Some(end),
            Outcome::Started => {}
            Outcome::Kept => {
                tasks.keep(task);
                self.resume(tasks);
            }
            Outcome::Full => self.park(task, tasks),
        }
        None
    }

    /// Let the task wait.
    fn park(&mut self, task: &Task<'_>, tasks: &mut Tasks) {
        tasks.keep(task);
        tasks.set(task.id, self.entry(State::Waiting, 0, 0, 0));
        if task.attribute == Attribute::HeadOfQueue {
            self.waiting.push_front(task.id);
        } else {
            self.waiting.push_back(task.id);
        }
        self.regate();
    }

    /// A task that was begun may be one that others wait for.
    fn enter(&mut self, outcome: &Outcome, id: u32, attribute: Attribute, code: Option<u8>) {
        if matches!(outcome, Outcome::Started | Outcome::Kept) && is_barrier(attribute, code) {
            self.exclusive = Some(id);
            self.atomic = code == Some(opcode::COMPARE_AND_WRITE);
            self.regate();
        }
    }

    /// Begin the waiting tasks whose turn has come.
    fn release(&mut self, tasks: &mut Tasks, ended: &mut Ended) {
        if self.resetting {
            if self.running > 0 || self.background > 0 {
                return;
            }
            self.resetting = false;
        }
        while let Some(&id) = self.waiting.front() {
            let Some(kept) = tasks.kept(id) else { return self.fail_all(fault::NO_SUCH_TASK, tasks, ended) };
            let task = kept.head;
            let (attribute, code) = (task.attribute, task.opcode());
            let head = attribute == Attribute::HeadOfQueue;
            let hold = self.exclusive.is_some() && (self.atomic || !head);
            if hold || is_barrier(attribute, code) && self.running > 0 {
                break;
            }
            self.waiting.pop_front();
            let bufs = tasks.take_bufs(id);
            let outcome = self.execute(&task.task(id, &bufs), tasks);
            tasks.put_bufs(id, bufs);
            self.enter(&outcome, id, attribute, code);
            match outcome {
                Outcome::Ended(end) => self.report(id, end, tasks, ended),
                Outcome::Started => {}
                Outcome::Kept => self.resume(tasks),
                Outcome::Full => {
                    self.waiting.push_front(id);
                    break;
                }
            }
        }
        self.regate();
    }

    /// Push the requests that found the queue full before.
    fn resume(&mut self, tasks: &mut Tasks) {
        while let Some(&id) = self.stalled.front() {
            let job = tasks.get(id).is_some_and(|entry| entry.state == State::Job);
            let taken = if job { self.push_job(tasks) } else { self.push_next(id, tasks) };
            if !taken {
                break;
            }
            self.stalled.pop_front();
        }
    }

    /// Hand what was pushed to the host.
    #[inline]
    pub(super) fn kick(&mut self) {
        if self.pushed {
            self.pushed = false;
            self.queue.submit();
        }
    }

    /// Tasks that are in flight.
    pub(super) fn tasks(&self) -> usize {
        self.running as usize + self.waiting.len()
    }

    /// Whether disk requests are in flight or tasks wait.
    pub(super) fn busy(&self) -> bool {
        self.running > 0 || self.background > 0 || !self.waiting.is_empty()
    }

    /// Take the disk's completions, end tasks and begin those that waited for them.
    #[inline]
    pub(super) fn reap(&mut self, tasks: &mut Tasks, completions: &mut Vec<Completion>, ended: &mut Ended) {
        self.queue.reap(completions);
        for completion in completions.drain(..) {
            self.complete(completion, tasks, ended);
        }
        if !self.stalled.is_empty() {
            self.resume(tasks);
        }
        if self.gate & (gate::QUEUE | gate::FAULTED) != 0 {
            self.end_lost(tasks, ended);
            self.release(tasks, ended);
        }
        self.kick();
    }

    #[inline]
    fn complete(&mut self, completion: Completion, tasks: &mut Tasks, ended: &mut Ended) {
        if let Ok(id) = u32::try_from(completion.tag)
            && let Some(entry) = tasks.get(id)
        {
            let single = matches!(entry.state, State::Read | State::Write | State::Flush);
            if single && entry.unit == self.index && entry.fate == Fate::Answer && completion.result.is_ok() {
                let end = good(entry.transferred, entry.wanted);
                entry.state = State::Free;
                self.running -= 1;
                ended.push((id, end));
                if self.exclusive == Some(id) {
                    self.exclusive = None;
                    self.atomic = false;
                }
                return;
            }
        }
        self.complete_slow(completion, tasks, ended);
    }

    #[cold]
    fn complete_slow(&mut self, completion: Completion, tasks: &mut Tasks, ended: &mut Ended) {
        if completion.tag == BACKGROUND && self.background > 0 {
            self.background -= 1;
            if let Err(error) = completion.result {
                let sense = Sense::from_io(error, asc::WRITE_ERROR, None);
                self.deferred = Some(Sense { deferred: true, ..sense });
                self.regate();
            }
            return;
        }
        let id = u32::try_from(completion.tag).unwrap_or(u32::MAX);
        let entry = tasks.get(id).map(|entry| *entry);
        let Some(entry) = entry.filter(|entry| self.in_disk(id, entry)) else {
            return self.fail_all(fault::UNKNOWN_COMPLETION, tasks, ended);
        };
        if let Some(end) = self.end_of(entry.fate) {
            return self.finish(id, end, tasks, ended);
        }
        match (entry.state, completion.result) {
            (State::Job, result) => {
                let progress = match result {
                    Ok(()) => self.advance_job(tasks),
                    Err(error) => Progress::Failed(self.job_error(error)),
                };
                match progress {
                    Progress::More => self.stalled.push_back(id),
                    Progress::Done { flush: true } => self.flush_next(id, entry, tasks),
                    Progress::Done { flush: false } => {
                        self.finish(id, good(entry.transferred, entry.wanted), tasks, ended);
                    }
                    Progress::Failed(sense) => {
                        let end = self.check_moved(sense, entry.transferred, entry.wanted);
                        self.finish(id, end, tasks, ended);
                    }
                }
            }
            (State::WriteThenFlush, Ok(())) => self.flush_next(id, entry, tasks),
            (State::FlushThenRead, Ok(())) => {
                tasks.set(id, Entry { state: State::PendingRead, ..entry });
                self.stalled.push_back(id);
            }
            (_, Ok(())) => self.finish(id, good(entry.transferred, entry.wanted), tasks, ended),
            (state, Err(error)) => {
                let (medium, lba) = match state {
                    State::Read => (asc::UNRECOVERED_READ_ERROR, Some(entry.lba)),
                    State::Flush | State::FlushThenRead => (asc::WRITE_ERROR, None),
                    _ => (asc::WRITE_ERROR, Some(entry.lba)),
                };
                let end = self.check_moved(Sense::from_io(error, medium, lba), 0, entry.wanted);
                self.finish(id, end, tasks, ended);
            }
        }
    }

    /// The last step of this task is a flush.
    fn flush_next(&mut self, id: u32, entry: Entry, tasks: &mut Tasks) {
        self.leave_jobs(id);
        tasks.set(id, Entry { state: State::PendingFlush, ..entry });
        self.stalled.push_back(id);
    }

    /// If the task is a job, it is none any more; the next one begins.
    fn leave_jobs(&mut self, id: u32) {
        let first = self.jobs.front().is_some_and(|job| job.id == id);
        self.jobs.retain(|job| job.id != id);
        if first && let Some(next) = self.jobs.front() {
            self.stalled.push_back(next.id);
        }
    }

    /// End a task that was running.
    fn finish(&mut self, id: u32, end: TaskEnd, tasks: &mut Tasks, ended: &mut Ended) {
        self.leave_jobs(id);
        self.stalled.retain(|stalled| *stalled != id);
        self.running = self.running.saturating_sub(1);
        if self.exclusive == Some(id) {
            self.exclusive = None;
            self.atomic = false;
        }
        self.report(id, end, tasks, ended);
    }

    fn report(&mut self, id: u32, end: TaskEnd, tasks: &mut Tasks, ended: &mut Ended) {
        if let Some(entry) = tasks.get(id) {
            entry.state = State::Free;
        }
        ended.push((id, end));
    }

    /// Abort a task of this unit that is in flight.
    pub(super) fn abort(&mut self, id: u32, tasks: &mut Tasks, ended: &mut Ended) {
        self.doom(id, Fate::Abort, tasks, ended);
        self.resume(tasks);
        self.release(tasks, ended);
        self.kick();
    }

    /// End a task that has nothing in the disk's queue; else let it end so when that is over.
    fn doom(&mut self, id: u32, fate: Fate, tasks: &mut Tasks, ended: &mut Ended) {
        // Callers have the number from the table.
        let Some(entry) = tasks.get(id) else { return };
        let Some(end) = self.end_of(fate).filter(|_| entry.fate == Fate::Answer) else { return };
        if entry.state == State::Waiting {
            self.waiting.retain(|waiting| *waiting != id);
            self.report(id, end, tasks, ended);
        } else if !self.in_disk(id, entry) {
            self.finish(id, end, tasks, ended);
        } else {
            entry.fate = fate;
        }
    }

    fn end_of(&self, fate: Fate) -> Option<TaskEnd> {
        match fate {
            Fate::Answer => None,
            Fate::Abort => Some(TaskEnd::Aborted),
            Fate::Reset => Some(TaskEnd::Reset),
            Fate::Fault => Some(self.internal_failure()),
        }
    }

    fn internal_failure(&self) -> TaskEnd {
        self.check(Sense::new(Key::HardwareError, asc::INTERNAL_TARGET_FAILURE))
    }

    /// Whether a request of a task is in the disk's queue, or was when it ended.
    fn in_disk(&self, id: u32, entry: &Entry) -> bool {
        entry.unit == self.index
            && match entry.state {
                State::Free | State::Waiting | State::PendingFlush | State::PendingRead => false,
                State::Job => {
                    self.jobs.front().is_some_and(|job| job.id == id) && !self.stalled.contains(&id)
                }
                State::Read | State::Write | State::WriteThenFlush | State::FlushThenRead | State::Flush => {
                    true
                }
            }
    }

    /// The unit is faulted: tasks of which the disk has nothing fail now, the others when their disk request is over
    /// ([`fault`](crate::fault)).
    #[cold]
    fn fail_all(&mut self, what: &'static str, tasks: &mut Tasks, ended: &mut Ended) {
        self.fault.set(what, &self.identity.serial);
        let ids: Vec<u32> = tasks.of_unit(self.index).map(|(id, _)| id).collect();
        for id in ids {
            self.doom(id, Fate::Fault, tasks, ended);
        }
        self.waiting.clear();
        self.regate();
    }

    /// End what a faulted queue will never complete.
    fn end_lost(&mut self, tasks: &mut Tasks, ended: &mut Ended) {
        if !self.fault.is_set() || self.queue.in_flight() > 0 {
            return;
        }
        let left: Vec<(u32, Fate)> = tasks.of_unit(self.index).map(|(id, entry)| (id, entry.fate)).collect();
        for (id, fate) in left {
            let end = self.end_of(fate).unwrap_or_else(|| self.internal_failure());
            self.finish(id, end, tasks, ended);
        }
        (self.running, self.background) = (0, 0);
    }

    /// Fault the unit if tasks wait for requests that the queue does not have. True: they have ended. To be called with everything
    /// submitted and reaped.
    pub(super) fn fail_lost(&mut self, tasks: &mut Tasks, ended: &mut Ended) -> bool {
        if !self.busy() || self.queue.in_flight() > 0 {
            return false;
        }
        self.fail_all(fault::NOTHING_IN_FLIGHT, tasks, ended);
        self.end_lost(tasks, ended);
        self.release(tasks, ended);
        true
    }

    /// Go back to the state after power on. Tasks of which the disk has nothing end as reset now, the others when their disk
    /// request is over, and tasks that come meanwhile wait for those. `condition` is the unit attention to be reported; a deferred
    /// error comes after it, for it is about data that the initiator takes for written.
    pub(super) fn reset(&mut self, condition: u8, tasks: &mut Tasks, ended: &mut Ended) {
        let ids: Vec<u32> = tasks.of_unit(self.index).map(|(id, _)| id).collect();
        for &id in &ids {
            self.doom(id, Fate::Reset, tasks, ended);
        }
        self.kick();
        self.resetting = self.running > 0 || self.background > 0;
        self.modes = Modes::new(self.volatile);
        self.stopped = false;
        self.reservations.reset();
        self.attention = condition;
        self.regate();
    }

    /// Wait until nothing is in flight.
    pub(super) fn drain(&mut self, tasks: &mut Tasks, completions: &mut Vec<Completion>, ended: &mut Ended) {
        while self.busy() && self.queue.in_flight() > 0 {
            self.pushed = false;
            self.queue.wait();
            self.reap(tasks, completions, ended);
        }
        self.fail_lost(tasks, ended);
    }
}

/// Whether earlier tasks must be over before it begins, and later ones wait.
fn is_barrier(attribute: Attribute, code: Option<u8>) -> bool {
    attribute == Attribute::Ordered || code == Some(opcode::COMPARE_AND_WRITE)
}

/// TASK SET FULL, for a task number that cannot be taken.
pub(super) const fn refused() -> TaskEnd {
    plain(Status::TaskSetFull)
}
