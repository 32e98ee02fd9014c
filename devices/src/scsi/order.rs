//! The order of a unit's tasks (SAM-5, 8).
//!
//! A SIMPLE task begins at once if no task waits and none keeps others waiting. An ORDERED task, and COMPARE AND WRITE
//! whatever its attribute, waits until all earlier tasks are over and keeps later ones waiting; HEAD OF QUEUE goes past
//! those that wait.

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
    /// The task that all later ones wait for.
    exclusive: Option<u32>,
    /// It also keeps HEAD OF QUEUE tasks waiting.
    atomic: bool,
    /// The unit was reset while disk requests were in flight. No task begins before the last of them is over: what the initiator
    /// sends after the reset must neither be overtaken nor be overwritten by what it sent before.
    resetting: bool,
    /// Tasks not begun, in the order in which they will be.
    waiting: VecDeque<u32>,
    /// Running tasks whose next request is to be pushed.
    stalled: VecDeque<u32>,
}

impl Order {
    /// So many tasks may come to wait: no later call allocates.
    pub(super) fn reserve(&mut self, tasks: usize) {
        self.waiting.reserve(tasks);
        self.stalled.reserve(tasks);
    }

    /// Whether a SIMPLE task may begin now.
    pub(super) fn open(&self) -> bool {
        self.exclusive.is_none() && !self.resetting && self.waiting.is_empty()
    }

    /// Whether a task that has just come may begin now.
    pub(super) fn admits(&self, task: &Task<'_>) -> bool {
        let first = task.attribute == Attribute::HeadOfQueue || self.waiting.is_empty();
        first && self.allows(task)
    }

    /// Whether a task may begin now, when those before it in the queue have.
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

    /// The task that is to begin next.
    pub(super) fn next(&self) -> Option<u32> {
        self.waiting.front().copied()
    }

    /// The task waits no longer.
    pub(super) fn leave(&mut self, id: u32) {
        match self.waiting.front() == Some(&id) {
            true => drop(self.waiting.pop_front()),
            false => self.waiting.retain(|waiting| *waiting != id),
        }
    }

    /// No task waits any longer.
    pub(super) fn clear_waiting(&mut self) {
        self.waiting.clear();
    }

    /// A task that no other waits for has begun.
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

    /// A task that had begun has ended.
    #[inline]
    pub(super) fn ended(&mut self, id: u32) {
        self.running = self.running.saturating_sub(1);
        if self.exclusive == Some(id) {
            self.exclusive = None;
            self.atomic = false;
        }
    }

    /// All tasks that had begun have ended.
    pub(super) fn all_ended(&mut self) {
        self.running = 0;
    }

    /// Tasks that have begun.
    pub(super) fn running(&self) -> u32 {
        self.running
    }

    /// Tasks that have not.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The unit was reset; `busy`: its disk still has requests.
    pub(super) fn reset(&mut self, busy: bool) {
        self.resetting = busy;
    }

    /// Whether requests from before a reset are in flight.
    pub(super) fn resetting(&self) -> bool {
        self.resetting
    }

    /// The next request of this task is to be pushed.
    pub(super) fn stall(&mut self, id: u32) {
        self.stalled.push_back(id);
    }

    /// The first task with a request to push.
    #[inline]
    pub(super) fn stalled(&self) -> Option<u32> {
        self.stalled.front().copied()
    }

    /// Whether a request of this task is to be pushed.
    pub(super) fn is_stalled(&self, id: u32) -> bool {
        self.stalled.contains(&id)
    }

    /// No request of this task is to be pushed any more.
    pub(super) fn resumed(&mut self, id: u32) {
        match self.stalled.front() == Some(&id) {
            true => drop(self.stalled.pop_front()),
            false => self.stalled.retain(|stalled| *stalled != id),
        }
    }
}

/// Whether earlier tasks must be over before it begins, and later ones wait.
fn is_barrier(task: &Task<'_>) -> bool {
    task.attribute == Attribute::Ordered || task.cdb.first() == Some(&opcode::COMPARE_AND_WRITE)
}
