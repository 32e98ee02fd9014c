//! A logical unit: a disk as a direct-access block device, its state, and the commands that need no disk I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use disk_formats::{Disk, DiskQueue, IoBuf, Status as Provision};
use zerocopy::IntoBytes;

use super::cdb::{Blocks, Command};
use super::mode::{Medium, Modes};
use super::reservations::{self, Refusal, Reservations};
use super::scratch::Scratch;
use super::sense::{Key, Sense, asc};
use super::slow::Job;
use super::spec::{Capacity10, Capacity16, LbaStatusDescriptor, LbaStatusHeader};
use super::tasks::Tasks;
use super::{Direction, Status, Task, TaskEnd, gather, inquiry, limits, opcodes};

/// Who a logical unit says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// T10 vendor identification: ASCII, padded with spaces.
    pub vendor: [u8; 8],
    /// Product identification: ASCII, padded with spaces.
    pub product: [u8; 16],
    /// Product revision level: ASCII, padded with spaces.
    pub revision: [u8; 4],
    /// Serial number: what tells units of the same vendor and product apart. The first 64 bytes count.
    pub serial: String,
}

impl Default for Identity {
    fn default() -> Self {
        let mut revision = [b' '; 4];
        for (to, from) in revision.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
            *to = from;
        }
        Self { vendor: *b"PARADISK", product: *b"VIRTUAL DISK    ", revision, serial: String::new() }
    }
}

impl Identity {
    /// The serial number as the pages give it.
    pub(super) fn serial_bytes(&self) -> &[u8] {
        let bytes = self.serial.as_bytes();
        bytes.get(..64).unwrap_or(bytes)
    }
}

/// Why a task cannot take the short way at once: bits of [`LogicalUnit::gate`].
pub(super) mod gate {
    /// A unit attention or a deferred error is to be reported.
    pub(in super::super) const ATTENTION: u8 = 1;
    /// Stopped by START STOP UNIT.
    pub(in super::super) const STOPPED: u8 = 2;
    /// Tasks wait, or one runs that others wait for.
    pub(in super::super) const QUEUE: u8 = 4;
}

/// Pending unit attention conditions, a bit each; the lowest is reported first.
pub(super) mod attention {
    pub(in super::super) const POWER_ON: u8 = 0x01;
    pub(in super::super) const BUS_RESET: u8 = 0x02;
    pub(in super::super) const DEVICE_RESET: u8 = 0x04;
    pub(in super::super) const CAPACITY: u8 = 0x08;
    pub(in super::super) const LUNS: u8 = 0x10;
}

/// What became of a task that was begun.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is over.
    Ended(TaskEnd),
    /// Its only disk request is in flight.
    Started,
    /// Disk requests are in flight, and the task is needed for the next ones.
    Kept,
    /// The disk's queue is full; nothing was done.
    Full,
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(super) enum Failure {
    /// CHECK CONDITION.
    Check(Sense),
    /// Anything else.
    End(TaskEnd),
}

/// GOOD.
pub(super) const fn good(transferred: u64, wanted: u64) -> TaskEnd {
    TaskEnd::Answered { status: Status::Good, transferred, wanted, sense: None }
}

/// A status without data and sense.
pub(super) const fn plain(status: Status) -> TaskEnd {
    TaskEnd::Answered { status, transferred: 0, wanted: 0, sense: None }
}

/// A disk as a SCSI direct-access block device.
pub struct LogicalUnit {
    // Dropped first: that waits for its requests, which may use `scratch`.
    pub(super) queue: Box<dyn DiskQueue>,
    pub(super) gate: u8,
    /// Power of two of the logical block length.
    pub(super) shift: u32,
    pub(super) sectors: u64,
    /// Maximum transfer length, in blocks.
    pub(super) max_blocks: u64,
    /// Writes are refused: by the disk, or by SWP.
    pub(super) protected: bool,
    /// A write may be lost until a flush.
    pub(super) volatile: bool,
    /// Every write must be durable when it ends: WCE is off on a disk with a volatile cache.
    pub(super) write_through: bool,
    pub(super) native_fua: bool,
    pub(super) index: u16,
    /// Tasks whose disk requests are in flight, or that are among the jobs.
    pub(super) running: u32,
    /// Requests were pushed since the last submit.
    pub(super) pushed: bool,
    /// Flushes of commands that ended at once.
    pub(super) background: u32,
    /// The task that all later ones wait for.
    pub(super) exclusive: Option<u32>,
    /// It also keeps HEAD OF QUEUE tasks waiting.
    pub(super) atomic: bool,
    /// Tasks not begun, in the order in which they will be.
    pub(super) waiting: VecDeque<u32>,
    /// Tasks whose next request found the queue full.
    pub(super) stalled: VecDeque<u32>,
    /// Tasks of several steps; the first one runs.
    pub(super) jobs: VecDeque<Job>,
    pub(super) scratch: Option<Scratch>,
    /// A list of buffers being built; kept for its memory.
    pub(super) list: Vec<IoBuf>,
    pub(super) disk: Arc<dyn Disk>,
    identity: Identity,
    pub(super) modes: Modes,
    pub(super) attention: u8,
    pub(super) deferred: Option<Sense>,
    pub(super) stopped: bool,
    pub(super) reservations: Reservations,
}

impl std::fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogicalUnit")
            .field("identity", &self.identity)
            .field("disk", self.disk.info())
            .finish()
    }
}

impl LogicalUnit {
    /// A unit over `disk` that does its I/O through `queue`, one of the disk's.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, queue: Box<dyn DiskQueue>, identity: Identity) -> Self {
        let info = disk.info();
        let shift = info.logical_sector.shift();
        let mut unit = Self {
            queue,
            gate: 0,
            shift,
            sectors: info.sectors(),
            max_blocks: limits::TRANSFER_BYTES >> shift,
            protected: info.read_only,
            volatile: info.volatile_cache,
            write_through: false,
            native_fua: info.fua,
            index: 0,
            running: 0,
            pushed: false,
            background: 0,
            exclusive: None,
            atomic: false,
            waiting: VecDeque::new(),
            stalled: VecDeque::new(),
            jobs: VecDeque::new(),
            scratch: None,
            list: Vec::new(),
            modes: Modes::new(info.volatile_cache),
            disk,
            identity,
            attention: attention::POWER_ON,
            deferred: None,
            stopped: false,
            reservations: Reservations::default(),
        };
        unit.regate();
        unit
    }

    /// It is unit `index` of a bus with `tasks` task numbers: all of them may come to wait in it.
    pub(super) fn attached(&mut self, index: u16, tasks: usize) {
        self.index = index;
        self.waiting.reserve(tasks);
        self.stalled.reserve(tasks);
    }

    /// Units were attached to or detached from its target. Means nothing beside a reset that is yet to be reported.
    pub(super) fn luns_changed(&mut self) {
        if self.attention & (attention::POWER_ON | attention::BUS_RESET | attention::DEVICE_RESET) == 0 {
            self.attention |= attention::LUNS;
            self.regate();
        }
    }

    /// REPORT LUNS was answered.
    pub(super) fn luns_reported(&mut self) {
        self.attention &= !attention::LUNS;
        self.regate();
    }

    /// Bring `gate` and what depends on the mode parameters up to date.
    pub(super) fn regate(&mut self) {
        self.protected = self.disk.info().read_only || self.modes.write_protect;
        self.write_through = self.volatile && !self.modes.write_cache;
        let attention = self.attention != 0 || self.deferred.is_some();
        self.gate = if attention { gate::ATTENTION } else { 0 }
            | if self.stopped { gate::STOPPED } else { 0 }
            | if self.exclusive.is_some() || !self.waiting.is_empty() { gate::QUEUE } else { 0 };
    }

    /// Look whether the capacity is still what the initiator was told.
    pub(super) fn refresh(&mut self) {
        let sectors = self.disk.info().sectors();
        if sectors != self.sectors {
            self.sectors = sectors;
            self.attention |= attention::CAPACITY;
            self.regate();
        }
    }

    /// The most urgent condition to be reported, which is cleared.
    pub(super) fn take_attention(&mut self) -> Option<Sense> {
        let first = self.attention & self.attention.wrapping_neg();
        self.attention &= !first;
        let code = match first {
            attention::POWER_ON => asc::POWER_ON,
            attention::BUS_RESET => asc::SCSI_BUS_RESET,
            attention::DEVICE_RESET => asc::BUS_DEVICE_RESET,
            attention::CAPACITY => asc::CAPACITY_CHANGED,
            attention::LUNS => asc::REPORTED_LUNS_CHANGED,
            _ => {
                let deferred = self.deferred.take();
                self.regate();
                return deferred;
            }
        };
        self.regate();
        Some(Sense::new(Key::UnitAttention, code))
    }

    /// Why the medium may not be written.
    pub(super) fn protection(&self) -> Result<(), Sense> {
        if self.disk.info().read_only {
            Err(Sense::new(Key::DataProtect, asc::WRITE_PROTECTED))
        } else if self.modes.write_protect {
            Err(Sense::new(Key::DataProtect, asc::SOFTWARE_WRITE_PROTECTED))
        } else {
            Ok(())
        }
    }

    /// Byte offset and length of a run of blocks that lies on the medium.
    pub(super) fn range(&self, blocks: Blocks) -> Result<(u64, u64), Sense> {
        let count = u64::from(blocks.count);
        if blocks.lba >= self.sectors || count > self.sectors - blocks.lba {
            return Err(Sense::illegal(asc::LBA_OUT_OF_RANGE));
        }
        Ok((blocks.lba << self.shift, count << self.shift))
    }

    fn medium(&self) -> Medium {
        let info = self.disk.info();
        Medium {
            blocks: self.sectors,
            block_len: info.logical_sector.bytes(),
            volatile_cache: info.volatile_cache,
            read_only: info.read_only,
        }
    }

    /// CHECK CONDITION.
    pub(super) fn check(&self, sense: Sense) -> TaskEnd {
        self.check_moved(sense, 0, 0)
    }

    /// CHECK CONDITION after data were moved, or should have been.
    pub(super) fn check_moved(&self, sense: Sense, transferred: u64, wanted: u64) -> TaskEnd {
        let sense = Some(sense.encode(self.modes.descriptor_sense));
        TaskEnd::Answered { status: Status::CheckCondition, transferred, wanted, sense }
    }

    /// Begin a task whose turn it is. Unit attention, errors and commands without disk I/O end here.
    pub(super) fn execute(&mut self, task: &Task<'_>, tasks: &mut Tasks) -> Outcome {
        match self.try_execute(task, tasks) {
            Ok(outcome) => outcome,
            Err(Failure::Check(sense)) => Outcome::Ended(self.check(sense)),
            Err(Failure::End(end)) => Outcome::Ended(end),
        }
    }

    fn try_execute(&mut self, task: &Task<'_>, tasks: &mut Tasks) -> Result<Outcome, Failure> {
        let always = matches!(task.cdb.first(), Some(code) if super::schedule::at_once(*code));
        if self.gate & gate::ATTENTION != 0
            && !always
            && let Some(sense) = self.take_attention()
        {
            return Err(sense.into());
        }
        let discards = self.disk.info().discard.is_some();
        let command = Command::parse(task.cdb, discards)?;
        if self.stopped {
            needs_medium(&command)?;
        }
        Ok(Outcome::Ended(match command {
            Command::Transfer(transfer) => return self.transfer(task, transfer, tasks),
            Command::Verify { blocks, against } => return self.verify(task, blocks, against, tasks),
            Command::WriteSame(same) => return self.write_same(task, same, tasks),
            Command::Unmap { len } => return self.unmap(task, len, tasks),
            Command::CompareAndWrite { blocks, fua } => {
                return self.compare_and_write(task, blocks, fua, tasks);
            }
            Command::SynchronizeCache { blocks, immediate } => {
                self.range(blocks)?;
                return self.flush(task, immediate, tasks);
            }
            Command::StartStop { immediate, start, flush } => {
                if !start && flush {
                    let outcome = self.flush(task, immediate, tasks)?;
                    self.stopped = !matches!(outcome, Outcome::Full);
                    self.regate();
                    return Ok(outcome);
                }
                self.stopped = !start;
                self.regate();
                good(0, 0)
            }
            Command::ModeSelect { ten, len } => {
                let (modes, transferred) = self.mode_select(task, ten, len)?;
                let to_flush = self.modes.write_cache && !modes.write_cache;
                if to_flush {
                    // What the cache holds must be durable before the initiator is told that there is none.
                    let outcome = self.flush_for(task, transferred, tasks);
                    if !matches!(outcome, Outcome::Full) {
                        self.modes = modes;
                        self.regate();
                    }
                    return Ok(outcome);
                }
                self.modes = modes;
                self.regate();
                good(transferred, transferred)
            }
            Command::TestUnitReady => {
                self.refresh();
                good(0, 0)
            }
            Command::RequestSense { descriptor, alloc } => {
                let sense = self.take_attention().unwrap_or(Sense::new(Key::NoSense, asc::NONE));
                data_in(task, sense.encode(descriptor).as_slice(), alloc)
            }
            Command::Inquiry { page, alloc } => {
                data_in(task, &inquiry::data(page, &self.identity, self.disk.info())?, alloc)
            }
            Command::ModeSense(command) => {
                data_in(task, &self.modes.sense(&command, &self.medium())?, command.alloc)
            }
            Command::ReadCapacity10 => {
                self.refresh();
                let last = u32::try_from(self.sectors.saturating_sub(1)).unwrap_or(u32::MAX);
                let block_len = self.medium().block_len.into();
                data_in(task, Capacity10 { last_lba: last.into(), block_len }.as_bytes(), u32::MAX)
            }
            Command::ReadCapacity16 { alloc } => {
                self.refresh();
                data_in(task, self.capacity_16().as_bytes(), alloc)
            }
            Command::GetLbaStatus { lba, alloc } => data_in(task, &self.lba_status(lba, alloc)?, alloc),
            Command::PersistentReserveIn { action, alloc } => {
                let data = self.reservations.report(action).map_err(|refusal| refused(refusal, 0))?;
                data_in(task, &data, alloc)
            }
            Command::PersistentReserveOut { action, scope_type, len } => {
                if len != reservations::OUT_BYTES {
                    return Err(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR).into());
                }
                let list = data_out(task, len)?;
                let moved = u64::from(len);
                self.reservations
                    .out(action, scope_type, &list)
                    .map_err(|refusal| refused(refusal, moved))?;
                good(moved, moved)
            }
            Command::Reserve => {
                self.reservations.reserve(true).map_err(|refusal| refused(refusal, 0))?;
                good(0, 0)
            }
            Command::Release => {
                self.reservations.reserve(false).map_err(|refusal| refused(refusal, 0))?;
                good(0, 0)
            }
            Command::ReportOpcodes { query, timeouts, alloc } => {
                data_in(task, &opcodes::report(query, timeouts, discards)?, alloc)
            }
            Command::ReportTaskManagement { extended, alloc } => {
                // ATS, LURS and TRS: abort task, logical unit reset, target reset.
                let mut data = vec![0x8a, 0, 0, 0];
                if extended {
                    data = [0x8a, 0, 0, 0x0c].iter().copied().chain([0; 12]).collect();
                }
                data_in(task, &data, alloc)
            }
            // The bus answers it, which knows the other units.
            Command::ReportLuns { .. } => return Err(Sense::illegal(asc::INVALID_OPERATION_CODE).into()),
        }))
    }

    fn mode_select(&self, task: &Task<'_>, ten: bool, len: u32) -> Result<(Modes, u64), Failure> {
        if len == 0 {
            return Ok((self.modes, 0));
        }
        let list = data_out(task, len)?;
        Ok((self.modes.select(ten, &list, &self.medium())?, u64::from(len)))
    }

    fn capacity_16(&self) -> Capacity16 {
        let info = self.disk.info();
        let physical = (info.physical_sector >> self.shift).max(1);
        // LBPME, and LBPRZ where unmapped blocks read as zeros.
        let provisioning =
            info.discard.map_or(0, |discard| 0x8000 | if discard.reads_zero { 0x4000 } else { 0 });
        Capacity16 {
            last_lba: self.sectors.saturating_sub(1).into(),
            block_len: info.logical_sector.bytes().into(),
            exponent: (physical.ilog2() as u8).min(15),
            provisioning: provisioning.into(),
            ..Capacity16::default()
        }
    }

    /// GET LBA STATUS (SBC-3, 5.8): as many descriptors as fit, at least one.
    fn lba_status(&self, start: u64, alloc: u32) -> Result<Vec<u8>, Sense> {
        if start >= self.sectors {
            return Err(Sense::illegal(asc::LBA_OUT_OF_RANGE));
        }
        let fit = (alloc.saturating_sub(8) / 16).clamp(1, limits::STATUS_DESCRIPTORS);
        let mut list: Vec<LbaStatusDescriptor> = Vec::new();
        let mut lba = start;
        while lba < self.sectors && list.len() < fit as usize {
            let limit = (self.sectors - lba).min(u64::from(u32::MAX));
            let found = self
                .disk
                .status(lba << self.shift, limit << self.shift)
                .map_err(|error| Sense::from_io(error, asc::UNRECOVERED_READ_ERROR, Some(lba)))?;
            let blocks = (found.len >> self.shift).clamp(1, limit);
            list.push(LbaStatusDescriptor {
                lba: lba.into(),
                blocks: (blocks as u32).into(),
                status: match found.status {
                    Provision::Mapped => 0,
                    Provision::Zeros => 1,
                },
                ..LbaStatusDescriptor::default()
            });
            lba += blocks;
        }
        let len = (4 + list.len() * size_of::<LbaStatusDescriptor>()) as u32;
        let header = LbaStatusHeader { len: len.into(), ..LbaStatusHeader::default() };
        Ok([header.as_bytes(), list.as_bytes()].concat())
    }
}

/// NOT READY for the commands that a stopped unit refuses.
fn needs_medium(command: &Command) -> Result<(), Sense> {
    match command {
        Command::TestUnitReady
        | Command::Transfer(_)
        | Command::Verify { .. }
        | Command::WriteSame(_)
        | Command::Unmap { .. }
        | Command::SynchronizeCache { .. }
        | Command::CompareAndWrite { .. }
        | Command::GetLbaStatus { .. } => Err(Sense::new(Key::NotReady, asc::INITIALIZING_COMMAND_REQUIRED)),
        _ => Ok(()),
    }
}

fn refused(refusal: Refusal, transferred: u64) -> Failure {
    match refusal {
        Refusal::Conflict => Failure::End(TaskEnd::Answered {
            status: Status::ReservationConflict,
            transferred,
            wanted: transferred,
            sense: None,
        }),
        Refusal::Check(sense) => Failure::Check(sense),
    }
}

/// The buffers that a task lets be used.
pub(super) fn room(task: &Task<'_>) -> u64 {
    if task.direction == Direction::None { 0 } else { task.len }
}

/// GOOD with parameter data, cut at the allocation length.
pub(super) fn data_in(task: &Task<'_>, data: &[u8], alloc: u32) -> TaskEnd {
    let data = data.get(..alloc as usize).unwrap_or(data);
    let wanted = data.len() as u64;
    if wanted > 0 && task.direction == Direction::Out {
        return TaskEnd::WrongDirection;
    }
    let fits = usize::try_from(room(task)).unwrap_or(usize::MAX).min(data.len());
    good(gather::scatter(task.bufs, data.get(..fits).unwrap_or_default()), wanted)
}

/// A parameter list of exactly `len` bytes.
pub(super) fn data_out(task: &Task<'_>, len: u32) -> Result<Vec<u8>, Failure> {
    if len > 0 && task.direction == Direction::In {
        return Err(Failure::End(TaskEnd::WrongDirection));
    }
    if u64::from(len) > room(task) || len as usize > limits::LIST_BYTES {
        return Err(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    let mut data = vec![0; len as usize];
    if gather::gather(task.bufs, &mut data) < data.len() {
        return Err(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    Ok(data)
}
