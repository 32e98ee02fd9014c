//! The commands: which does what, and those that need no disk I/O (SPC-4, 6; SBC-3, 5).

use std::time::Duration;

use disk_formats::{Allocation, AllocationLimits, Status as Provision, allocations};
use zerocopy::IntoBytes;

use super::cdb::Command;
use super::mode::{Medium, Modes};
use super::reservations::{Refusal, Reservations};
use super::sense::{Key, Sense, asc};
use super::spec::{Capacity10, Capacity16, LbaStatusDescriptor, LbaStatusHeader};
use super::tasks::Tasks;
use super::unit::{Failure, LogicalUnit, Outcome, gate, good};
use super::{Direction, Status, Task, TaskEnd, gather, inquiry, limits, log, opcodes};

impl LogicalUnit {
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
        if self.reservations.kept_out().is_some_and(|kept_out| kept_out.conflicts(&command)) {
            return Err(refused(Refusal::Conflict, 0));
        }
        if self.stopped {
            needs_medium(&command)?;
        }
        Ok(Outcome::Ended(match command {
            Command::Transfer(transfer) => return self.transfer(task, transfer, tasks),
            Command::Verify { blocks, against } => return self.verify(task, blocks, against, tasks),
            Command::WriteAndVerify { blocks, against } => {
                return self.write_and_verify(task, blocks, against, tasks);
            }
            Command::WriteSame(same) => return self.write_same(task, same, tasks),
            Command::Unmap { len } => return self.unmap(task, len, tasks),
            Command::CompareAndWrite { blocks, fua } => {
                return self.compare_and_write(task, blocks, fua, tasks);
            }
            Command::SynchronizeCache { blocks, immediate } => {
                self.range(blocks)?;
                return self.flush(task, immediate, tasks);
            }
            Command::SendDiagnostic { self_test: true } => return Ok(self.self_test(task, tasks)),
            Command::SendDiagnostic { self_test: false } => good(0, 0),
            Command::LogSense { page, subpage, alloc } => data_in(task, &log::page(page, subpage)?, alloc),
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
                    // What the cache holds must be on stable storage before the initiator is told that there is none.
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
                if !Reservations::takes(action, len) {
                    return Err(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR).into());
                }
                let list = data_out(task, len)?;
                let moved = u64::from(len);
                self.reservations
                    .out(action, scope_type, &list)
                    .map_err(|refusal| refused(refusal, moved))?;
                self.regate();
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

    fn medium(&self) -> Medium {
        let info = self.disk.info();
        Medium {
            blocks: self.sectors,
            block_len: info.logical_sector.bytes(),
            volatile_cache: info.volatile_cache,
            read_only: info.read_only,
        }
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

    /// GET LBA STATUS (SBC-4): as many descriptors as fit, at least one. They may end before the medium does, and two commands may get
    /// different numbers of them (GET LBA STATUS parameter data overview), so the work has a limit.
    fn lba_status(&self, start: u64, alloc: u32) -> Result<Vec<u8>, Sense> {
        if start >= self.sectors {
            return Err(Sense::illegal(asc::LBA_OUT_OF_RANGE));
        }
        let fit = (alloc.saturating_sub(8) / 16).clamp(1, limits::STATUS_DESCRIPTORS);
        let limits = AllocationLimits {
            pieces: fit as usize,
            look_ups: limits::STATUS_LOOK_UPS,
            window: limits::STATUS_WINDOW,
            time: Duration::MAX,
        };
        // No piece is longer than all of it, so each fits into 32 bits.
        let blocks = (self.sectors - start).min(u32::MAX.into());
        let found = allocations(&*self.disk, start << self.shift, blocks << self.shift, limits)
            .map_err(|error| Sense::from_io(error, asc::UNRECOVERED_READ_ERROR, Some(start)))?;
        let mut lba = start;
        let descriptor = |piece: Allocation| {
            let blocks = piece.len >> self.shift;
            let descriptor = LbaStatusDescriptor {
                lba: lba.into(),
                blocks: (blocks as u32).into(),
                status: match piece.status {
                    Provision::Mapped => 0,
                    Provision::Zeros => 1,
                },
                ..LbaStatusDescriptor::default()
            };
            lba += blocks;
            descriptor
        };
        let list: Vec<_> = found.into_iter().map(descriptor).collect();
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
        | Command::WriteAndVerify { .. }
        | Command::SendDiagnostic { self_test: true }
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
pub(super) fn buffer_len(task: &Task<'_>) -> u64 {
    if task.direction == Direction::None { 0 } else { task.len }
}

/// GOOD with parameter data, cut at the allocation length.
pub(super) fn data_in(task: &Task<'_>, data: &[u8], alloc: u32) -> TaskEnd {
    let data = data.get(..alloc as usize).unwrap_or(data);
    let wanted = data.len() as u64;
    if wanted > 0 && task.direction == Direction::Out {
        return TaskEnd::WrongDirection;
    }
    let fits = usize::try_from(buffer_len(task)).unwrap_or(usize::MAX).min(data.len());
    good(gather::scatter(task.bufs, data.get(..fits).unwrap_or_default()), wanted)
}

/// A parameter list of exactly `len` bytes.
pub(super) fn data_out(task: &Task<'_>, len: u32) -> Result<Vec<u8>, Failure> {
    if len > 0 && task.direction == Direction::In {
        return Err(Failure::End(TaskEnd::WrongDirection));
    }
    if u64::from(len) > buffer_len(task) || len as usize > limits::LIST_BYTES {
        return Err(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    let mut data = vec![0; len as usize];
    if gather::gather(task.bufs, &mut data) < data.len() {
        return Err(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    Ok(data)
}
