//! Commands of several disk requests, run one at a time: VERIFY, WRITE AND VERIFY, WRITE SAME with a pattern, UNMAP, COMPARE AND
//! WRITE, the self-test, and READ into a buffer that ends inside a block (SBC-3, 5).

use disk_formats::{IoBuf, Op};
use zerocopy::FromBytes;

use super::cdb::{Against, Blocks, Same};
use super::commands::{buffer_len, data_out};
use super::gather;
use super::limits;
use super::scratch::Scratch;
use super::sense::{Key, Sense, asc};
use super::spec::{UnmapDescriptor, UnmapHeader};
use super::tasks::{Entry, State, Tasks};
use super::unit::{Failure, LogicalUnit, Outcome, good};
use super::{Direction, Task, TaskEnd};

/// What a job does.
#[derive(Debug)]
pub(super) enum Work {
    /// VERIFY.
    Verify(Against),
    /// First step of WRITE AND VERIFY.
    WriteFirst(Against),
    /// Second step, where the write is not on the medium yet.
    FlushFirst(Against),
    /// Default self-test: read the blocks at these byte offsets.
    SelfTest([u64; 2]),
    /// READ of which only the first `bytes` are wanted.
    Copy {
        /// Not whole blocks.
        bytes: u64,
    },
    /// First half of COMPARE AND WRITE.
    Compare { fua: bool },
    /// Second half of COMPARE AND WRITE.
    Exchange { fua: bool },
    /// WRITE SAME.
    Fill,
    /// UNMAP: byte offsets and lengths.
    Unmap(Vec<(u64, u64)>),
}

/// A task of several steps.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: u32,
    work: Work,
    /// Bytes on the disk.
    offset: u64,
    len: u64,
    /// Bytes (UNMAP: ranges, self-test: blocks) that are over.
    done: u64,
}

/// Where a job stands after a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Another request is to be pushed.
    More,
    /// All is written; `flush`: a flush must still follow.
    Done { flush: bool },
    /// It failed.
    Failed(Sense),
}

impl Job {
    /// Bytes of the next step through the scratch memory.
    fn step(&self) -> u64 {
        (self.len - self.done).min(limits::SCRATCH_BYTES as u64)
    }
}

impl LogicalUnit {
    /// VERIFY.
    pub(super) fn verify(
        &mut self,
        task: &Task<'_>,
        blocks: Blocks,
        against: Against,
        tasks: &mut Tasks,
    ) -> Result<Outcome, Failure> {
        let (offset, len) = self.verified_range(blocks)?;
        let needed = match against {
            Against::Nothing => 0,
            Against::Data => len,
            Against::OneBlock => len.min(1 << self.shift),
        };
        self.whole_data_out(task, needed)?;
        if len == 0 {
            return Ok(Outcome::Ended(good(0, 0)));
        }
        let entry = self.entry(State::Job, blocks.lba, needed, needed);
        Ok(self.job(task.id, Work::Verify(against), (offset, len), entry, tasks))
    }

    /// WRITE AND VERIFY: the blocks are on the medium before they are read back.
    pub(super) fn write_and_verify(
        &mut self,
        task: &Task<'_>,
        blocks: Blocks,
        against: Against,
        tasks: &mut Tasks,
    ) -> Result<Outcome, Failure> {
        let (offset, len) = self.verified_range(blocks)?;
        self.protection()?;
        self.whole_data_out(task, len)?;
        if len == 0 {
            return Ok(Outcome::Ended(good(0, 0)));
        }
        let entry = self.entry(State::Job, blocks.lba, len, len);
        Ok(self.job(task.id, Work::WriteFirst(against), (offset, len), entry, tasks))
    }

    /// Byte offset and length of blocks that one command may verify.
    fn verified_range(&self, blocks: Blocks) -> Result<(u64, u64), Sense> {
        let (offset, len) = self.range(blocks)?;
        if len > limits::TRANSFER_BYTES {
            return Err(Sense::illegal(asc::INVALID_FIELD_IN_CDB));
        }
        Ok((offset, len))
    }

    /// The default self-test of SEND DIAGNOSTIC reads the first and the last block.
    pub(super) fn self_test(&mut self, task: &Task<'_>, tasks: &mut Tasks) -> Outcome {
        let offsets = [0, self.sectors.saturating_sub(1) << self.shift];
        let entry = self.entry(State::Job, 0, 0, 0);
        self.job(task.id, Work::SelfTest(offsets), (0, offsets.len() as u64), entry, tasks)
    }

    /// COMPARE AND WRITE. The scheduler has seen to it that nothing else of the unit runs.
    pub(super) fn compare_and_write(
        &mut self,
        task: &Task<'_>,
        blocks: Blocks,
        fua: bool,
        tasks: &mut Tasks,
    ) -> Result<Outcome, Failure> {
        let (offset, len) = self.range(blocks)?;
        if len > limits::COMPARE_BYTES {
            return Err(Sense::cdb(13).into());
        }
        self.protection()?;
        exact_data_out(task, 2 * len)?;
        if len == 0 {
            return Ok(Outcome::Ended(good(0, 0)));
        }
        let entry = self.entry(State::Job, blocks.lba, 2 * len, 2 * len);
        Ok(self.job(task.id, Work::Compare { fua }, (offset, len), entry, tasks))
    }

    /// WRITE SAME: zeros are one disk request, any other pattern is written in steps.
    pub(super) fn write_same(
        &mut self,
        task: &Task<'_>,
        same: Same,
        tasks: &mut Tasks,
    ) -> Result<Outcome, Failure> {
        let (offset, len) = self.range(same.blocks)?;
        // WSNZ: zero does not mean "to the end of the medium" here.
        if len == 0 || len > limits::SAME_BYTES {
            let ten = task.cdb.first() == Some(&super::spec::opcode::WRITE_SAME_10);
            return Err(Sense::cdb(if ten { 7 } else { 10 }).into());
        }
        if same.unmap && self.disk.info().discard.is_none() {
            return Err(Sense::cdb_bit(1, 3).into());
        }
        self.protection()?;
        let block = 1 << self.shift;
        let needed = if same.ndob { 0 } else { block };
        exact_data_out(task, needed)?;
        let mut pattern = [0; 4096];
        let pattern = pattern.get_mut(..needed as usize).unwrap_or_default();
        gather::gather(task.bufs, pattern);
        let mut entry = self.entry(State::Job, same.blocks.lba, needed, needed);
        if pattern.iter().any(|byte| *byte != 0) {
            return Ok(self.job(task.id, Work::Fill, (offset, len), entry, tasks));
        }
        entry.state = if self.write_through { State::WriteThenFlush } else { State::Write };
        if !self.push(task.id, Op::WriteZeroes { may_unmap: same.unmap }, offset, len, &[]) {
            return Ok(Outcome::Full);
        }
        Ok(self.started(task.id, entry, tasks, Outcome::Started))
    }

    /// UNMAP: the whole list is checked before anything is done.
    pub(super) fn unmap(&mut self, task: &Task<'_>, len: u32, tasks: &mut Tasks) -> Result<Outcome, Failure> {
        self.protection()?;
        if len == 0 {
            return Ok(Outcome::Ended(good(0, 0)));
        }
        let list = data_out(task, len)?;
        let (header, rest) = UnmapHeader::ref_from_prefix(&list)
            .map_err(|_| Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR))?;
        // A descriptor that is cut short by either length is ignored (SBC-3, 5.28.2).
        let descriptors = usize::from(header.descriptors.get());
        let rest = rest.get(..descriptors).unwrap_or(rest);
        let (descriptors, _) = rest.as_chunks::<{ size_of::<UnmapDescriptor>() }>();
        if descriptors.len() > limits::UNMAP_DESCRIPTORS as usize {
            return Err(Sense::list(2).into());
        }
        let mut ranges = Vec::new();
        let mut total = 0u64;
        for descriptor in descriptors {
            let descriptor: UnmapDescriptor = zerocopy::transmute!(*descriptor);
            let blocks = Blocks { lba: descriptor.lba.get(), count: descriptor.blocks.get() };
            // No blocks are no error, at the end of the medium as well (SBC-3, 5.28.2).
            if blocks.count == 0 && blocks.lba <= self.sectors {
                continue;
            }
            ranges.push(self.range(blocks)?);
            total += u64::from(blocks.count);
        }
        if total > limits::UNMAP_BLOCKS.into() {
            return Err(Sense::illegal(asc::INVALID_FIELD_IN_PARAMETER_LIST).into());
        }
        let moved = u64::from(len);
        let Some((first, _)) = ranges.first().copied() else {
            return Ok(Outcome::Ended(good(moved, moved)));
        };
        let entry = self.entry(State::Job, first >> self.shift, moved, moved);
        let count = ranges.len() as u64;
        Ok(self.job(task.id, Work::Unmap(ranges), (0, count), entry, tasks))
    }

    /// Take a job in; it runs at once where it is the only one. The task is kept by the caller.
    pub(super) fn job(
        &mut self,
        id: u32,
        work: Work,
        (offset, len): (u64, u64),
        entry: Entry,
        tasks: &mut Tasks,
    ) -> Outcome {
        self.jobs.push_back(Job { id, work, offset, len, done: 0 });
        if self.jobs.len() == 1 {
            // Its first step needs the kept buffers: the scheduler pushes it when the task is kept.
            self.stalled.push_back(id);
        }
        self.started(id, entry, tasks, Outcome::Kept)
    }

    /// Push the next request of the first job; false: the queue is full.
    pub(super) fn push_job(&mut self, tasks: &mut Tasks) -> bool {
        let Some(job) = self.jobs.pop_front() else { return true };
        let scratch = self.scratch.take().unwrap_or_else(|| Scratch::new(limits::SCRATCH_BYTES));
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        let bufs = tasks.kept(job.id).map_or(&[][..], |kept| &kept.bufs);
        let step = job.step();
        let at = job.offset + job.done;
        let (op, offset, len) = match &job.work {
            Work::Verify(_) | Work::Copy { .. } | Work::Compare { .. } => {
                list.push(scratch.buf(0, step as usize));
                (Op::Read, at, step)
            }
            Work::Exchange { fua } => {
                gather::slice(bufs, job.len, job.len, &mut list);
                (Op::Write { fua: self.durable(*fua) && self.native_fua }, job.offset, job.len)
            }
            Work::WriteFirst(_) => {
                gather::slice(bufs, 0, job.len, &mut list);
                (Op::Write { fua: self.volatile && self.native_fua }, job.offset, job.len)
            }
            Work::FlushFirst(_) => (Op::Flush, 0, 0),
            Work::SelfTest(offsets) => {
                let block = 1 << self.shift;
                list.push(scratch.buf(0, block));
                let offset = usize::try_from(job.done).ok().and_then(|done| offsets.get(done));
                (Op::Read, offset.copied().unwrap_or(0), block as u64)
            }
            Work::Fill => {
                if job.done == 0 {
                    fill(&scratch, bufs, 1 << self.shift);
                }
                list.push(scratch.buf(0, step as usize));
                (Op::Write { fua: false }, at, step)
            }
            Work::Unmap(ranges) => {
                let range = usize::try_from(job.done).ok().and_then(|done| ranges.get(done));
                let (offset, len) = range.copied().unwrap_or((0, 0));
                (Op::Discard, offset, len)
            }
        };
        let taken = self.push(job.id, op, offset, len, &list);
        self.list = list;
        self.scratch = Some(scratch);
        self.jobs.push_front(job);
        taken
    }

    /// The first job's request has ended well.
    pub(super) fn advance_job(&mut self, tasks: &Tasks) -> Progress {
        let (write_through, shift) = (self.write_through, self.shift);
        let volatile_fua = |fua: bool| self.volatile && (fua || write_through);
        let (Some(job), Some(scratch)) = (self.jobs.front_mut(), self.scratch.as_ref()) else {
            debug_assert!(false, "a step of no job has ended");
            return Progress::Failed(Sense::new(Key::HardwareError, asc::INTERNAL_TARGET_FAILURE));
        };
        let step = job.step();
        let read = scratch.buf(0, step as usize);
        let list = &mut self.list;
        list.clear();
        let bufs = tasks.kept(job.id).map_or(&[][..], |kept| &kept.bufs);
        match &job.work {
            Work::Unmap(_) | Work::SelfTest(_) => job.done += 1,
            Work::WriteFirst(against) | Work::FlushFirst(against) => {
                let written = matches!(job.work, Work::WriteFirst(_));
                let against = *against;
                let flush = written && self.volatile && !self.native_fua;
                job.work = if flush { Work::FlushFirst(against) } else { Work::Verify(against) };
                return Progress::More;
            }
            Work::Exchange { fua } => {
                let flush = volatile_fua(*fua) && !self.native_fua;
                return Progress::Done { flush };
            }
            Work::Compare { fua } => {
                gather::slice(bufs, 0, job.len, list);
                if let Some(offset) = gather::mismatch(list, read) {
                    return Progress::Failed(miscompare(offset));
                }
                job.work = Work::Exchange { fua: *fua };
                return Progress::More;
            }
            Work::Fill => job.done += step,
            Work::Copy { bytes } => {
                gather::slice(bufs, job.done, (bytes - job.done).min(step), list);
                gather::copy(list, read);
                job.done += step;
            }
            Work::Verify(against) => {
                let block = 1 << shift;
                let differs = match against {
                    Against::Nothing => None,
                    Against::Data => {
                        gather::slice(bufs, job.done, step, list);
                        gather::mismatch(list, read)
                    }
                    Against::OneBlock => {
                        gather::slice(bufs, 0, block, list);
                        let blocks = (0..step).step_by(1 << shift);
                        blocks.filter_map(|at| Some(at + mismatch_block(list, read, at, block)?)).next()
                    }
                };
                if let Some(offset) = differs {
                    return Progress::Failed(miscompare((job.offset + job.done + offset) >> shift));
                }
                job.done += step;
            }
        }
        if job.done < job.len {
            return Progress::More;
        }
        let writes = matches!(job.work, Work::Fill | Work::Unmap(_));
        Progress::Done { flush: writes && write_through }
    }

    /// What a failed request of the first job means.
    pub(super) fn job_error(&self, error: disk_formats::IoError) -> Sense {
        let Some(job) = self.jobs.front() else {
            debug_assert!(false, "a step of no job has failed");
            return Sense::new(Key::HardwareError, asc::INTERNAL_TARGET_FAILURE);
        };
        let (medium, offset) = match &job.work {
            Work::Verify(_) | Work::Copy { .. } | Work::Compare { .. } => {
                (asc::UNRECOVERED_READ_ERROR, job.offset + job.done)
            }
            Work::Exchange { .. } | Work::WriteFirst(_) | Work::FlushFirst(_) => {
                (asc::WRITE_ERROR, job.offset)
            }
            Work::SelfTest(_) => return Sense::new(Key::HardwareError, asc::FAILED_SELF_TEST),
            Work::Fill => (asc::WRITE_ERROR, job.offset + job.done),
            Work::Unmap(ranges) => {
                let range = usize::try_from(job.done).ok().and_then(|done| ranges.get(done));
                (asc::WRITE_ERROR, range.map_or(0, |range| range.0))
            }
        };
        Sense::from_io(error, medium, Some(offset >> self.shift))
    }

    /// Commands that need all of their data: what is missing is a bad field.
    fn whole_data_out(&self, task: &Task<'_>, needed: u64) -> Result<(), Failure> {
        if needed > 0 && task.direction == Direction::In {
            return Err(Failure::End(TaskEnd::WrongDirection));
        }
        if needed > buffer_len(task) {
            let sense = Sense::illegal(asc::INVALID_FIELD_IN_CDB);
            return Err(Failure::End(self.check_moved(sense, 0, needed)));
        }
        Ok(())
    }

    /// Whether a write must be on stable storage when it ends.
    fn durable(&self, fua: bool) -> bool {
        self.volatile && (fua || self.write_through)
    }
}

/// Commands whose data have one length alone. A longer buffer belongs to a command that is not this one: of COMPARE AND WRITE of
/// 256 blocks, whose number has 8 bits, it is all that is left.
fn exact_data_out(task: &Task<'_>, needed: u64) -> Result<(), Failure> {
    if needed > 0 && task.direction == Direction::In {
        return Err(Failure::End(TaskEnd::WrongDirection));
    }
    match buffer_len(task) == needed {
        true => Ok(()),
        false => Err(Sense::illegal(asc::INVALID_FIELD_IN_CDB).into()),
    }
}

/// MISCOMPARE; INFORMATION is the byte offset in the Data-Out Buffer for COMPARE AND WRITE, else the block.
fn miscompare(information: u64) -> Sense {
    Sense::new(Key::Miscompare, asc::MISCOMPARE_DURING_VERIFY).information(information)
}

fn mismatch_block(bufs: &[IoBuf], read: IoBuf, at: u64, block: u64) -> Option<u64> {
    gather::mismatch(bufs, read.slice(at as usize, block as usize))
}

/// Repeat the first block of `bufs` through all of the scratch memory.
fn fill(scratch: &Scratch, bufs: &[IoBuf], block: usize) {
    let mut pattern = [0; 4096];
    let pattern = pattern.get_mut(..block).unwrap_or_default();
    gather::gather(bufs, pattern);
    for start in (0..limits::SCRATCH_BYTES).step_by(block) {
        scratch.buf(start, block).write(pattern);
    }
}
