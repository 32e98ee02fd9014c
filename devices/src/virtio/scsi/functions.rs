//! Functions of the control queue that wait until earlier requests are taken from the rings, or until requests have ended.

use std::collections::VecDeque;

use super::super::queue::Virtqueue;
use super::answer::Reply;
use super::spec::*;
use crate::dma::Spans;

/// Maximum number of functions that wait for the end of requests; further ones wait in the ring.
const MAX_FUNCTIONS: usize = 64;

/// A function that waits for the end of requests.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) requests: Vec<u32>,
    pub(super) reply: Reply,
}

/// State of the control queue.
#[derive(Debug)]
pub(super) struct Control {
    /// For each request queue: the requests that precede the next function and are not taken yet.
    owed: Box<[u32]>,
    /// `owed` is valid: a function waits for these requests.
    marked: bool,
    /// The function waits for requests to end, as the backlog is full.
    pub(super) blocked: bool,
    pub(super) functions: Vec<Function>,
}

impl Control {
    pub(super) fn new(queues: u16) -> Self {
        let owed = (0..queues).map(|_| 0).collect();
        Self { owed, marked: false, blocked: false, functions: Vec::new() }
    }

    pub(super) fn reset(&mut self) {
        self.marked = false;
        self.blocked = false;
        self.functions.clear();
    }

    /// Whether a function could be taken.
    pub(super) fn wants(&self) -> bool {
        !self.blocked && self.functions.len() < MAX_FUNCTIONS
    }

    /// Whether a function waits for requests to be taken.
    pub(super) const fn waits(&self) -> bool {
        self.marked
    }

    /// A request was taken from a queue.
    #[inline]
    pub(super) fn taken(&mut self, queue: usize) {
        if self.marked
            && let Some(owed) = self.owed.get_mut(queue - REQUEST_QUEUES)
        {
            *owed = owed.saturating_sub(1);
        }
    }

    /// A request has ended. Queue the replies of the functions that waited only for it.
    #[inline]
    pub(super) fn task_ended(&mut self, id: u32, replies: &mut VecDeque<Reply>) {
        if self.functions.is_empty() {
            return;
        }
        for function in &mut self.functions {
            function.requests.retain(|request| *request != id);
        }
        let over = self.functions.extract_if(.., |function| function.requests.is_empty());
        replies.extend(over.map(|function| function.reply));
    }

    /// Whether all requests that precede the waiting function are taken. If the guest moves an available index back, the count
    /// decreases with it.
    pub(super) fn earlier_taken<M: Spans>(&mut self, queues: &[Virtqueue], memory: &M) -> bool {
        let mut none = true;
        for (queue, owed) in queues.iter().skip(REQUEST_QUEUES).zip(&mut self.owed) {
            let waiting = if queue.active() { queue.waiting(memory) } else { 0 };
            *owed = if self.marked { waiting.min(*owed) } else { waiting };
            none &= *owed == 0;
        }
        self.marked = !none;
        none
    }
}
