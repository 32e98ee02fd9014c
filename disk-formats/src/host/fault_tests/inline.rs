//! An engine without threads: each transfer ends in `stage`. Runs are short, so that there can be many.
#![allow(unsafe_code, reason = "implements `Engine::stage`, whose caller keeps buffers in place")]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::host::backing::BackingFile;
use crate::host::sys::RwMode;
use crate::host::transfer;
use crate::queue::engine::{Direction, Ended, Engine, EngineStats, Signal, Transfer};

pub(super) struct Inline {
    files: Vec<Arc<BackingFile>>,
    ended: VecDeque<Ended>,
    signal: Arc<Signal>,
}

impl Inline {
    pub(super) fn new(files: &[Arc<BackingFile>]) -> Result<Self, Errno> {
        Ok(Self { files: files.to_vec(), ended: VecDeque::new(), signal: Arc::new(Signal::new()?) })
    }
}

impl Engine for Inline {
    fn name(&self) -> &'static str {
        "inline"
    }

    fn has_capacity(&self) -> bool {
        true
    }

    unsafe fn stage(&mut self, wanted: &Transfer<'_>) {
        let mode = match wanted.direction {
            Direction::Read => RwMode::Read,
            Direction::Write { dsync: false } => RwMode::Write,
            Direction::Write { dsync: true } => RwMode::WriteThrough,
        };
        let result = match self.files.get(wanted.file as usize) {
            Some(file) => transfer(file.file().as_fd(), wanted.bufs, wanted.offset, mode),
            None => Err(Errno::BADF),
        };
        // At most the size of the test's memory, so the cast does not truncate.
        self.ended.push_back((wanted.token, result.map(|moved| moved as u32)));
    }

    fn submit(&mut self) {}

    fn next(&mut self) -> Option<Ended> {
        let ended = self.ended.pop_front();
        if ended.is_none() {
            self.signal.lower();
        }
        ended
    }

    fn lost(&mut self) -> Option<Errno> {
        None
    }

    fn wait(&mut self) {
        if self.ended.is_empty() {
            let mut fds = [PollFd::new(&*self.signal, PollFlags::IN)];
            // EINTR counts as a wake-up: the caller checks, and waits again.
            let _ = poll(&mut fds, None);
        }
    }

    fn in_flight(&self) -> usize {
        self.ended.len()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    fn eventfd(&mut self) -> Result<OwnedFd, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }

    fn watch(&mut self) {}

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}
