//! Functions of the control queue that wait: for requests to be taken, and for their end.

use std::collections::VecDeque;

use super::super::pci::Transport;
use super::answer::Reply;
use super::spec::*;
use crate::dma::Spans;

/// Functions that wait for requests at the most; further ones wait in the ring.
const MAX_FUNCTIONS: usize = 64;

/// A function that waits for the end of requests.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) requests: Vec<u32>,
    pub(super) reply: Reply,
}

/// What is kept of the control queue.
#[derive(Debug)]
pub(super) struct Control {
    /// Requests of each request queue that were there before the next function and are still to be taken.
    owed: Box<[u32]>,
    /// `owed` is about the function that waits.
    marked: bool,
    /// It waits for requests to end, as not even the backlog takes more.
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

    /// A request is over: so may be functions that waited for it.
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

    /// Whether all requests are taken that were there before the function that waits. A guest that takes requests back
    /// is believed.
    pub(super) fn earlier_taken<M: Spans>(&mut self, transport: &mut Transport, memory: &M) -> bool {
        let queues = transport.queues().iter().skip(REQUEST_QUEUES);
        let mut none = true;
        for (queue, owed) in queues.zip(&mut self.owed) {
            let waiting = if queue.active() { queue.waiting(memory) } else { 0 };
            *owed = if self.marked { waiting.min(*owed) } else { waiting };
            none &= *owed == 0;
        }
        self.marked = !none;
        none
    }
}
