//! The order of a unit's tasks (SAM-5, 8).
//!
//! A SIMPLE task begins at once if no task waits and no barrier runs. An ORDERED task is a barrier, and so is COMPARE AND WRITE with any
//! attribute: it waits until all earlier tasks have ended, and later tasks wait until it has ended. A HEAD OF QUEUE task goes before all
//! waiting tasks.

use std::collections::VecDeque;

use super::spec::opcode;
use super::task::{Attribute, Task};

/// Commands that neither wait nor report unit attention (SAM-5, 5.14 and 8.7).
pub(super) const fn at_once(code: u8) -> bool {
    matches!(code, opcode::INQUIRY | opcode::REQUEST_SENSE | opcode::REPORT_LUNS)
}

/// Which tasks of a unit run and which wait, by number.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Tasks with disk requests, in flight or to be pushed.
    running: u32,
    /// The running barrier, for which all later tasks wait.
    exclusive: Option<u32>,
    /// HEAD OF QUEUE tasks wait for the barrier, too.
    atomic: bool,
    /// The unit was reset while disk requests were in flight. No task begins before the last of them has completed, so that no request from
    /// before the reset overwrites data of a later one.
    resetting: bool,
    /// Tasks that have not begun, in the order in which they will.
    waiting: VecDeque<u32>,
}

impl Order {
    /// Reserve memory for `tasks` waiting tasks, so that no later call allocates.
    pub(super) fn reserve(&mut self, tasks: usize) {
        self.waiting.reserve(tasks);
    }

    /// Whether a SIMPLE task may begin now.
    pub(super) fn open(&self) -> bool {
        self.exclusive.is_none() && !self.resetting && self.waiting.is_empty()
    }

    /// Whether a new task may begin now.
    pub(super) fn admits(&self, task: &Task<'_>) -> bool {
        let first = task.attribute == Attribute::HeadOfQueue || self.waiting.is_empty();
        first && self.allows(task)
    }

    /// Whether a task may begin now, if all tasks before it in the queue have begun.
    pub(super) fn allows(&self, task: &Task<'_>) -> bool {
        let head = task.attribute == Attribute::HeadOfQueue;
        let held = if head { self.atomic } else { self.exclusive.is_some() };
        !held && !self.resetting && (self.running == 0 || !is_barrier(task))
    }

    /// The task waits until it may begin.
    pub(super) fn wait(&mut self, id: u32, attribute: Attribute) {
        match attribute {
            Attribute::HeadOfQueue => self.waiting.push_front(id),
            _ => self.waiting.push_back(id),
        }
    }

    /// The next task to begin.
    pub(super) fn next(&self) -> Option<u32> {
        self.waiting.front().copied()
    }

    /// Remove a waiting task.
    pub(super) fn leave(&mut self, id: u32) {
        match self.waiting.front() == Some(&id) {
            true => drop(self.waiting.pop_front()),
            false => self.waiting.retain(|waiting| *waiting != id),
        }
    }

    /// Remove all waiting tasks.
    pub(super) fn clear_waiting(&mut self) {
        self.waiting.clear();
    }

    /// A task that is no barrier has begun.
    #[inline]
    pub(super) fn begun(&mut self) {
        self.running += 1;
    }

    /// A task has begun.
    pub(super) fn begun_task(&mut self, task: &Task<'_>) {
        self.begun();
        if is_barrier(task) {
            self.exclusive = Some(task.id);
            self.atomic = task.cdb.first() == Some(&opcode::COMPARE_AND_WRITE);
        }
    }

    /// A running task has ended.
    #[inline]
    pub(super) fn ended(&mut self, id: u32) {
        self.running = self.running.saturating_sub(1);
        if self.exclusive == Some(id) {
            self.exclusive = None;
            self.atomic = false;
        }
    }

    /// All running tasks have ended.
    pub(super) fn all_ended(&mut self) {
        self.running = 0;
    }

    /// Number of running tasks.
    pub(super) fn running(&self) -> u32 {
        self.running
    }

    /// Number of waiting tasks.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The unit was reset. `busy`: its disk has requests in flight.
    pub(super) fn reset(&mut self, busy: bool) {
        self.resetting = busy;
    }

    /// Whether requests from before a reset are in flight.
    pub(super) fn resetting(&self) -> bool {
        self.resetting
    }
}

/// Whether the task is a barrier: it waits for all earlier tasks, and later tasks wait for it.
fn is_barrier(task: &Task<'_>) -> bool {
    task.attribute == Attribute::Ordered || task.cdb.first() == Some(&opcode::COMPARE_AND_WRITE)
}
