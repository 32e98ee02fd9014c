//! In tests: operations that fail by the fault plan of their file ([`crate::host::faults`]).

use std::collections::HashMap;
use std::sync::Arc;

use io_uring::{opcode, squeue};
use rustix::io::Errno;

use super::super::{Direction, Transfer};
use crate::host::backing::BackingFile;
use crate::host::faults::{Staged, of_file};

/// The planned results of the operations in the ring, by token.
pub(super) struct Planned {
    files: Vec<Arc<BackingFile>>,
    staged: HashMap<u64, Staged>,
}

/// An operation without effect.
pub(super) fn nothing(token: u64) -> squeue::Entry {
    opcode::Nop::new().build().user_data(token)
}

impl Planned {
    pub(super) fn new(files: &[Arc<BackingFile>]) -> Self {
        Self { files: files.to_vec(), staged: HashMap::new() }
    }

    /// Stage a transfer in the file's plan. Returns whether the plan answers it without the ring.
    pub(super) fn transfer(&mut self, transfer: &Transfer<'_>) -> bool {
        let write = match transfer.direction {
            Direction::Read => None,
            Direction::Write { dsync } => Some(dsync),
        };
        let Some(file) = self.files.get(transfer.file as usize) else { return false };
        let Some(plan) = of_file(file.file()) else { return false };
        let staged = plan.stage(file.file(), transfer.bufs, transfer.offset, write);
        self.keep(transfer.token, staged)
    }

    fn keep(&mut self, token: u64, staged: Staged) -> bool {
        let answered = staged.is_answered();
        self.staged.insert(token, staged);
        answered
    }

    /// The result of an operation that the ring has ended.
    pub(super) fn ended(&mut self, token: u64, result: Result<u32, Errno>) -> Result<u32, Errno> {
        match self.staged.remove(&token) {
            Some(staged) => staged.finish(result),
            None => result,
        }
    }
}
