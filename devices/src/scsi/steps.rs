//! Commands of several disk requests. A command is a sequence of [`Step`]s, which an iterator yields one by one. A step is one disk request
//! and the processing of its data. The commands of a unit run one at a time, because they share its scratch memory.

use std::collections::VecDeque;

use paradisk_disk_formats::{IoBuf, IoError, Op};

use super::gather;
use super::limits;
use super::medium::Medium;
use super::sense::{Key, Sense, asc};
use super::task::TaskEnd;
use super::tasks::{Entry, State, Tasks};
use crate::scratch::Scratch;

/// Result of executing a command.
pub(super) enum Outcome {
    /// The command has ended.
    Ended(TaskEnd),
    /// Its only disk request is in flight.
    Started(Entry),
    /// Disk requests are to be pushed.
    Steps(Steps, Entry),
    /// The disk's queue is full; nothing was done.
    Full,
}

impl Outcome {
    /// GOOD.
    pub(super) const fn good(transferred: u64, wanted: u64) -> Self {
        Self::Ended(TaskEnd::good(transferred, wanted))
    }
}

/// One disk request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    op: Op,
    offset: u64,
    len: u64,
    data: Data,
}

/// Data of a disk request.
#[derive(Clone, Copy, Debug)]
enum Data {
    None,
    /// The task's data from this byte on.
    Task(u64),
    /// Out: the task's one block, repeated. `first`: the scratch memory must be filled with it.
    Pattern {
        first: bool,
    },
    /// Into the scratch memory.
    Scratch(Then),
}

/// Processing of blocks that were read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    /// None: being readable is enough.
    Nothing,
    /// None: a failed read fails the self-test.
    SelfTest,
    /// Their first `len` bytes are copied to byte `start` of the task's data.
    Copy { start: u64, len: u64 },
    /// They must equal the task's data from this byte on; MISCOMPARE names the block.
    Verify(u64),
    /// Each must equal the first block of the task's data; MISCOMPARE names the block.
    VerifyEach,
    /// They must equal the start of the task's data; MISCOMPARE names the first different byte of these data.
    Compare,
}

impl Step {
    /// Read `len` bytes into the scratch memory; they must fit ([`pieces`]).
    pub(super) const fn read(offset: u64, len: u64, then: Then) -> Self {
        Self { op: Op::Read, offset, len, data: Data::Scratch(then) }
    }

    /// Read or write the task's data from byte `start` on.
    pub(super) const fn transfer(op: Op, offset: u64, len: u64, start: u64) -> Self {
        Self { op, offset, len, data: Data::Task(start) }
    }

    /// Write the task's one block repeatedly; `first`: this is the first such step of the command.
    pub(super) const fn fill(offset: u64, len: u64, first: bool) -> Self {
        Self { op: Op::Write { fua: false }, offset, len, data: Data::Pattern { first } }
    }

    /// A request without data.
    pub(super) const fn of(op: Op, offset: u64, len: u64) -> Self {
        Self { op, offset, len, data: Data::None }
    }

    pub(super) const fn flush() -> Self {
        Self::of(Op::Flush, 0, 0)
    }

    /// The sense data of a task with this entry whose request failed.
    fn error(&self, error: IoError, entry: &Entry, shift: u32) -> Sense {
        let (medium, lba) = match (self.op, self.data) {
            (_, Data::Scratch(Then::SelfTest)) => {
                return Sense::new(Key::HardwareError, asc::FAILED_SELF_TEST);
            }
            (Op::Read, _) => (asc::UNRECOVERED_READ_ERROR, self.offset >> shift),
            (Op::Flush, _) => (asc::WRITE_ERROR, entry.lba),
            _ => (asc::WRITE_ERROR, self.offset >> shift),
        };
        Sense::from_io(error, medium, Some(lba))
    }

    /// Process the data of a successful request. `list` is memory for a list of buffers.
    fn finish(&self, read: IoBuf, bufs: &[IoBuf], shift: u32, list: &mut Vec<IoBuf>) -> Result<(), Sense> {
        let Data::Scratch(then) = self.data else { return Ok(()) };
        let block = 1 << shift;
        let (start, len) = match then {
            Then::Nothing | Then::SelfTest => return Ok(()),
            Then::Copy { start, len } => (start, len),
            Then::Verify(start) => (start, self.len),
            Then::VerifyEach => (0, block),
            Then::Compare => (0, self.len),
        };
        list.clear();
        gather::slice(bufs, start, len, list);
        let differs = match then {
            Then::Copy { .. } => {
                gather::copy(list, read);
                None
            }
            Then::VerifyEach => {
                let mut blocks = (0..self.len).step_by(1 << shift);
                let block = |at: u64| read.slice(at as usize, block as usize);
                blocks.find_map(|at| Some(at + gather::mismatch(list, block(at))?))
            }
            _ => gather::mismatch(list, read),
        };
        let Some(byte) = differs else { return Ok(()) };
        let information = if let Then::Compare = then { byte } else { (self.offset + byte) >> shift };
        Err(Sense::new(Key::Miscompare, asc::MISCOMPARE_DURING_VERIFY).information(information))
    }
}

/// Split the range `[offset, offset + len)` of the disk into pieces that fit the scratch memory: offset of each in the range and on the
/// disk, and its length.
pub(super) fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> + Send {
    let size = limits::SCRATCH_BYTES;
    (0..len).step_by(size).map(move |start| (start, offset + start, (len - start).min(size as u64)))
}

/// Whether a flush follows the last step of a command.
#[derive(PartialEq, Eq)]
pub(super) enum Flush {
    /// The command has written: flush if the mode parameters require it.
    WriteThrough,
    Never,
}

/// The remaining steps of a command.
pub(super) struct Steps {
    step: Step,
    rest: Box<dyn Iterator<Item = Step> + Send>,
    flush: Flush,
}

/// A command of these steps. `lba` is its first block, for sense data. On success it moves `moved` of `wanted` bytes.
pub(super) fn command(
    steps: impl IntoIterator<Item = Step, IntoIter: Send + 'static>,
    flush: Flush,
    lba: u64,
    (moved, wanted): (u64, u64),
) -> Outcome {
    let mut steps = steps.into_iter();
    match steps.next() {
        Some(step) => {
            let entry = Entry::new(State::Steps, lba, moved, wanted);
            Outcome::Steps(Steps { step, rest: Box::new(steps), flush }, entry)
        }
        None => Outcome::good(moved, wanted),
    }
}

/// The commands of several steps of a unit, and memory for the data of the first command, which is the running one.
#[derive(Default)]
pub(super) struct Commands {
    queue: VecDeque<(u32, Steps)>,
    /// The request of the running task is to be pushed.
    to_push: bool,
    scratch: Option<Scratch>,
    /// A list of buffers, kept to reuse its memory.
    list: Vec<IoBuf>,
}

impl Commands {
    /// Add a task.
    pub(super) fn add(&mut self, id: u32, steps: Steps) {
        self.queue.push_back((id, steps));
        self.to_push |= self.queue.len() == 1;
    }

    fn is_running(&self, id: u32) -> bool {
        self.queue.front().is_some_and(|(running, _)| *running == id)
    }

    /// Whether a request of this task is in the disk's queue, or has just completed.
    pub(super) fn has_request(&self, id: u32) -> bool {
        self.is_running(id) && !self.to_push
    }

    /// A task has ended.
    pub(super) fn remove(&mut self, id: u32) {
        if self.is_running(id) {
            self.queue.pop_front();
            self.to_push = !self.queue.is_empty();
        } else {
            self.queue.retain(|(other, _)| *other != id);
        }
    }

    /// Whether a request is to be [pushed](Self::push).
    #[inline]
    pub(super) fn to_push(&self) -> bool {
        self.to_push
    }

    /// Push the next request of the running task, if there is one and the queue has a free slot.
    pub(super) fn push(&mut self, medium: &mut Medium, tasks: &Tasks) {
        let Some((id, Steps { step, .. })) = self.queue.front().filter(|_| self.to_push) else { return };
        let Step { op, offset, len, data } = *step;
        let scratch = self.scratch.get_or_insert_with(|| Scratch::new(limits::SCRATCH_BYTES));
        let bufs = tasks.bufs(*id);
        let taken = match data {
            Data::None => medium.push(*id, op, offset, len, &[]),
            Data::Task(start) => medium.push_part(*id, op, (offset, len), bufs, start),
            Data::Pattern { first } => {
                if first {
                    fill(scratch, bufs, 1 << medium.shift());
                }
                medium.push(*id, op, offset, len, &[scratch.buf(0, len as usize)])
            }
            Data::Scratch(_) => medium.push(*id, op, offset, len, &[scratch.buf(0, len as usize)]),
        };
        self.to_push = !taken;
    }

    /// The request of the running task, which has this entry, has completed. True: it was the last one.
    ///
    /// # Errors
    /// The command has failed.
    pub(super) fn completed(
        &mut self,
        result: Result<(), IoError>,
        entry: &Entry,
        medium: &Medium,
        tasks: &Tasks,
    ) -> Result<bool, Sense> {
        let (Some((id, steps)), Some(scratch)) = (self.queue.front_mut(), &self.scratch) else {
            debug_assert!(false, "a step of no task has ended");
            return Err(Sense::new(Key::HardwareError, asc::INTERNAL_TARGET_FAILURE));
        };
        let (step, shift) = (steps.step, medium.shift());
        let read = scratch.buf(0, step.len as usize);
        result.map_err(|error| step.error(error, entry, shift))?;
        step.finish(read, tasks.bufs(*id), shift, &mut self.list)?;
        let next = steps.rest.next().or_else(|| {
            let flush = std::mem::replace(&mut steps.flush, Flush::Never);
            (flush == Flush::WriteThrough && medium.write_through()).then(Step::flush)
        });
        let Some(next) = next else { return Ok(true) };
        steps.step = next;
        self.to_push = true;
        Ok(false)
    }
}

/// Fill the scratch memory with the first block of `bufs`.
fn fill(scratch: &Scratch, bufs: &[IoBuf], block: usize) {
    let mut pattern = [0; 4096];
    let pattern = pattern.get_mut(..block).unwrap_or_default();
    gather::gather(bufs, pattern);
    for start in (0..limits::SCRATCH_BYTES).step_by(block) {
        scratch.buf(start, block).write(pattern);
    }
}
