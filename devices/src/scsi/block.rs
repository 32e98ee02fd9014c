//! The I/O path of most tasks: READ, WRITE and the flushes, as one disk request or two (SBC-3, 5.10 and following).

use disk_formats::{IoBuf, Op, Request};

use super::cdb::{Blocks, Transfer};
use super::commands::buffer_len;
use super::sense::{Sense, asc};
use super::slow::Work;
use super::tasks::{Entry, Fate, State, Tasks};
use super::unit::{Failure, LogicalUnit, Outcome, good};
use super::{Direction, Task, TaskEnd};

/// Tag of flushes whose command has already ended; task numbers have 32 bits.
pub(super) const BACKGROUND: u64 = u64::MAX;

impl LogicalUnit {
    /// READ or WRITE.
    #[inline]
    pub(super) fn transfer(
        &mut self,
        task: &Task<'_>,
        transfer: Transfer,
        tasks: &mut Tasks,
    ) -> Result<Outcome, Failure> {
        let Blocks { lba, count } = transfer.blocks;
        let (offset, wanted) = self.range(transfer.blocks)?;
        if u64::from(count) > self.max_blocks {
            return Err(Sense::illegal(asc::INVALID_FIELD_IN_CDB).into());
        }
        if transfer.write && self.protected {
            self.protection()?;
        }
        let wrong = if transfer.write { Direction::In } else { Direction::Out };
        if task.direction == wrong && wanted > 0 {
            return Err(Failure::End(TaskEnd::WrongDirection));
        }
        if wanted != buffer_len(task) {
            return self.uneven(task, transfer, wanted, tasks);
        }
        if wanted == 0 {
            return Ok(Outcome::Ended(good(0, 0)));
        }
        let entry = self.entry(State::Read, lba, wanted, wanted);
        Ok(self.begin(task.id, transfer, entry, offset, task.bufs, tasks))
    }

    /// READ or WRITE with a buffer of another length than the command's.
    #[cold]
    fn uneven(
        &mut self,
        task: &Task<'_>,
        transfer: Transfer,
        wanted: u64,
        tasks: &mut Tasks,
    ) -> Result<Outcome, Failure> {
        let lba = transfer.blocks.lba;
        let offset = lba << self.shift;
        let fits = wanted.min(buffer_len(task));
        let whole = fits >> self.shift << self.shift;
        if !transfer.write && fits > whole {
            // The last block is read whole, and only its start handed out.
            let sectors = whole + (1 << self.shift);
            let entry = self.entry(State::Job, lba, fits, wanted);
            return Ok(self.job(task.id, Work::Copy { bytes: fits }, (offset, sectors), entry, tasks));
        }
        if whole == 0 {
            return Ok(Outcome::Ended(good(0, wanted)));
        }
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        super::gather::slice(task.bufs, 0, whole, &mut list);
        let entry = self.entry(State::Read, lba, whole, wanted);
        let outcome = self.begin(task.id, transfer, entry, offset, &list, tasks);
        self.list = list;
        Ok(outcome)
    }

    /// Push a transfer's first request. `entry` says Read; the state becomes what the transfer needs.
    #[inline]
    fn begin(
        &mut self,
        id: u32,
        transfer: Transfer,
        mut entry: Entry,
        offset: u64,
        bufs: &[IoBuf],
        tasks: &mut Tasks,
    ) -> Outcome {
        let op = if transfer.write {
            let durable = self.volatile && (transfer.fua || self.write_through);
            entry.state = if durable && !self.native_fua { State::WriteThenFlush } else { State::Write };
            Op::Write { fua: durable && self.native_fua }
        } else {
            if transfer.fua && self.volatile {
                // What the cache holds must reach the medium before it is read from there (SBC-3, 4.15.4).
                entry.state = State::FlushThenRead;
                return match self.push_flush(id) {
                    true => self.started(id, entry, tasks, Outcome::Kept),
                    false => Outcome::Full,
                };
            }
            Op::Read
        };
        match self.push(id, op, offset, entry.transferred, bufs) {
            true => self.started(id, entry, tasks, Outcome::Started),
            false => Outcome::Full,
        }
    }

    /// A task's entry in this unit.
    #[inline]
    pub(super) fn entry(&self, state: State, lba: u64, transferred: u64, wanted: u64) -> Entry {
        Entry { state, fate: Fate::Answer, unit: self.index, lba, transferred, wanted }
    }

    /// Note that a task is in flight.
    #[inline]
    pub(super) fn started(&mut self, id: u32, entry: Entry, tasks: &mut Tasks, outcome: Outcome) -> Outcome {
        tasks.set(id, entry);
        self.running += 1;
        outcome
    }

    /// Push a disk request of a task; false: the queue is full.
    #[inline]
    pub(super) fn push(&mut self, id: u32, op: Op, offset: u64, len: u64, bufs: &[IoBuf]) -> bool {
        let taken = self.queue.push(&Request { tag: u64::from(id), op, offset, len, bufs }).is_ok();
        self.pushed |= taken;
        taken
    }

    /// Push a flush for a task; false: the queue is full.
    pub(super) fn push_flush(&mut self, id: u32) -> bool {
        self.push(id, Op::Flush, 0, 0, &[])
    }

    /// End the task when the cache is on the medium, or at once and flush behind it.
    pub(super) fn flush(
        &mut self,
        task: &Task<'_>,
        immediate: bool,
        tasks: &mut Tasks,
    ) -> Result<Outcome, Failure> {
        if self.volatile && immediate {
            let flush = Request { tag: BACKGROUND, op: Op::Flush, offset: 0, len: 0, bufs: &[] };
            if self.queue.push(&flush).is_ok() {
                self.pushed = true;
                self.background += 1;
                return Ok(Outcome::Ended(good(0, 0)));
            }
        }
        Ok(self.flush_for(task, 0, tasks))
    }

    /// End the task, which has moved `transferred` bytes, when the cache is on the medium.
    pub(super) fn flush_for(&mut self, task: &Task<'_>, transferred: u64, tasks: &mut Tasks) -> Outcome {
        if !self.volatile {
            return Outcome::Ended(good(transferred, transferred));
        }
        if !self.push_flush(task.id) {
            return Outcome::Full;
        }
        let entry = self.entry(State::Flush, 0, transferred, transferred);
        self.started(task.id, entry, tasks, Outcome::Started)
    }

    /// Push the next request of a task that has several and is no job; false: the queue is full.
    pub(super) fn push_next(&mut self, id: u32, tasks: &mut Tasks) -> bool {
        let Some(entry) = tasks.get(id) else { return true };
        let entry = *entry;
        let (state, taken) = match entry.state {
            State::PendingFlush => (State::Flush, self.push_flush(id)),
            State::PendingRead => {
                let mut list = std::mem::take(&mut self.list);
                list.clear();
                if let Some(kept) = tasks.kept(id) {
                    super::gather::slice(&kept.bufs, 0, entry.transferred, &mut list);
                }
                let taken = self.push(id, Op::Read, entry.lba << self.shift, entry.transferred, &list);
                self.list = list;
                (State::Read, taken)
            }
            _ => return true,
        };
        if taken {
            tasks.set(id, Entry { state, ..entry });
        }
        taken
    }
}
