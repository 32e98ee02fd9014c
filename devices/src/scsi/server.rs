//! The device server of a unit (SAM-5, 4.7): dispatches commands, and executes those that need no disk I/O (SPC-4, 6; SBC-3, 5).

use std::time::Duration;

use paradisk_disk_formats::{Allocation, AllocationLimits, Status as Provision, allocations};
use zerocopy::IntoBytes;

use super::attention::Attention;
use super::cdb::Command;
use super::data::{data_in, data_out};
use super::inquiry::{self, Identity};
use super::medium::Medium;
use super::mode::{MediumInfo, Modes};
use super::opcodes::{self, LONGEST_CDB, Supported};
use super::reservations::{Refusal, Reservations};
use super::sense::{Key, Sense, asc};
use super::spec::{Capacity10, Capacity16, LbaStatusDescriptor, LbaStatusHeader};
use super::steps::Outcome;
use super::task::{Failure, Status, Task, TaskEnd};
use super::{block, limits, log, order, slow};

/// The state of a unit, except its tasks.
pub(super) struct DeviceServer {
    pub(super) medium: Medium,
    pub(super) attention: Attention,
    identity: Identity,
    reservations: Reservations,
    /// Stopped by START STOP UNIT.
    stopped: bool,
    /// Bytes of the longest CDB that reaches the unit.
    longest_cdb: u8,
}

impl DeviceServer {
    /// After power on.
    pub(super) fn new(medium: Medium, identity: Identity) -> Self {
        let (attention, reservations) = (Attention::new(), Reservations::default());
        Self { medium, attention, identity, reservations, stopped: false, longest_cdb: LONGEST_CDB }
    }

    /// Go back to the state after power on; `condition` is the unit attention to be reported.
    pub(super) fn reset(&mut self, condition: u8) {
        self.medium.reset_modes();
        self.stopped = false;
        self.reservations.reset();
        self.attention.reset(condition);
    }

    /// Limit CDBs to `bytes`.
    pub(super) fn limit_cdbs(&mut self, bytes: u8) {
        self.longest_cdb = bytes;
    }

    /// The commands that the unit supports.
    fn supported(&self) -> Supported {
        Supported { discards: self.medium.info().discard.is_some(), longest_cdb: self.longest_cdb }
    }

    /// Set the serial number, unless the unit has one.
    pub(super) fn name(&mut self, serial: impl FnOnce() -> String) {
        if self.identity.serial.is_empty() {
            self.identity.serial = serial();
        }
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether READ and WRITE need no check: no condition is to be reported first, and the medium may be accessed.
    pub(super) fn ready(&self) -> bool {
        !self.attention.pending() && !self.stopped && self.reservations.kept_out().is_none()
    }

    /// Compare the capacity with what was reported to the initiator.
    pub(super) fn refresh(&mut self) {
        if self.medium.refresh() {
            self.attention.capacity_changed();
        }
    }

    /// CHECK CONDITION of a command that has moved `transferred` of `wanted` bytes.
    pub(super) fn check(&self, sense: Sense, transferred: u64, wanted: u64) -> TaskEnd {
        let sense = Some(sense.encode(self.medium.modes().descriptor_sense));
        TaskEnd::Answered { status: Status::CheckCondition, transferred, wanted, sense }
    }

    /// The end of a command that was not executed.
    pub(super) fn failure(&self, failure: Failure) -> TaskEnd {
        match failure {
            Failure::Check(sense, wanted) => self.check(sense, 0, wanted),
            Failure::End(end) => end,
        }
    }

    /// Execute a task. Tasks with unit attention, with errors or without disk I/O end here.
    pub(super) fn execute(&mut self, task: &Task<'_>) -> Outcome {
        self.try_execute(task).unwrap_or_else(|failure| Outcome::Ended(self.failure(failure)))
    }

    fn try_execute(&mut self, task: &Task<'_>) -> Result<Outcome, Failure> {
        let always = matches!(task.cdb.first(), Some(code) if order::at_once(*code));
        if !always && let Some(sense) = self.attention.take() {
            return Err(sense.into());
        }
        let supported = self.supported();
        let command = Command::parse(task.cdb, supported)?;
        if self.reservations.kept_out().is_some_and(|kept_out| kept_out.conflicts(&command)) {
            return Err(refused(Refusal::Conflict, 0));
        }
        if self.stopped {
            needs_medium(&command)?;
        }
        let medium = &mut self.medium;
        Ok(Outcome::Ended(match command {
            Command::Transfer(transfer) => return block::transfer(medium, task, transfer),
            Command::Verify { blocks, against } => return slow::verify(medium, task, blocks, against),
            Command::WriteAndVerify { blocks, against } => {
                return slow::write_and_verify(medium, task, blocks, against);
            }
            Command::WriteSame(same) => return slow::write_same(medium, task, same),
            Command::Unmap { len } => return slow::unmap(medium, task, len),
            Command::CompareAndWrite { blocks, fua } => {
                return slow::compare_and_write(medium, task, blocks, fua);
            }
            Command::SynchronizeCache { blocks, immediate } => {
                medium.range(blocks)?;
                return Ok(block::flush(medium, task.id, immediate));
            }
            Command::SendDiagnostic { self_test: true } => return Ok(slow::self_test(medium)),
            Command::SendDiagnostic { self_test: false } => TaskEnd::good(0, 0),
            Command::LogSense { page, subpage, alloc } => data_in(task, &log::page(page, subpage)?, alloc),
            Command::StartStop { immediate, start, flush } => {
                if !start && flush {
                    let outcome = block::flush(medium, task.id, immediate);
                    self.stopped = !matches!(outcome, Outcome::Full);
                    return Ok(outcome);
                }
                self.stopped = !start;
                TaskEnd::good(0, 0)
            }
            Command::ModeSelect { ten, len } => {
                let (modes, transferred) = self.mode_select(task, ten, len)?;
                let medium = &mut self.medium;
                if medium.modes().write_cache && !modes.write_cache {
                    // The cache must be flushed before the initiator learns that it is disabled.
                    let outcome = block::flush_for(medium, task.id, transferred);
                    if !matches!(outcome, Outcome::Full) {
                        medium.set_modes(modes);
                    }
                    return Ok(outcome);
                }
                medium.set_modes(modes);
                TaskEnd::good(transferred, transferred)
            }
            Command::TestUnitReady => {
                self.refresh();
                TaskEnd::good(0, 0)
            }
            Command::RequestSense { descriptor, alloc } => {
                let sense = self.attention.take().unwrap_or(Sense::new(Key::NoSense, asc::NONE));
                data_in(task, sense.encode(descriptor).as_slice(), alloc)
            }
            Command::Inquiry { page, alloc } => {
                data_in(task, &inquiry::data(page, &self.identity, self.medium.info(), supported)?, alloc)
            }
            Command::ModeSense(command) => {
                data_in(task, &medium.modes().sense(&command, &medium.mode_info())?, command.alloc)
            }
            Command::ReadCapacity10 => {
                self.refresh();
                let MediumInfo { blocks, block_len, .. } = self.medium.mode_info();
                let last = u32::try_from(blocks.saturating_sub(1)).unwrap_or(u32::MAX);
                data_in(
                    task,
                    Capacity10 { last_lba: last.into(), block_len: block_len.into() }.as_bytes(),
                    u32::MAX,
                )
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
                TaskEnd::good(moved, moved)
            }
            Command::Reserve => {
                self.reservations.reserve(true).map_err(|refusal| refused(refusal, 0))?;
                TaskEnd::good(0, 0)
            }
            Command::Release => {
                self.reservations.reserve(false).map_err(|refusal| refused(refusal, 0))?;
                TaskEnd::good(0, 0)
            }
            Command::ReportOpcodes { query, timeouts, alloc } => {
                data_in(task, &opcodes::report(query, timeouts, supported)?, alloc)
            }
            Command::ReportTaskManagement { extended, alloc } => {
                // ATS, LURS and TRS: abort task, logical unit reset, target reset.
                let mut data = vec![0x8a, 0, 0, 0];
                if extended {
                    data = [0x8a, 0, 0, 0x0c].iter().copied().chain([0; 12]).collect();
                }
                data_in(task, &data, alloc)
            }
            // The bus answers this, because it knows the other units.
            Command::ReportLuns { .. } => return Err(Sense::illegal(asc::INVALID_OPERATION_CODE).into()),
        }))
    }

    fn mode_select(&self, task: &Task<'_>, ten: bool, len: u32) -> Result<(Modes, u64), Failure> {
        if len == 0 {
            return Ok((self.medium.modes(), 0));
        }
        let list = data_out(task, len)?;
        let medium = &self.medium;
        Ok((medium.modes().select(ten, &list, &medium.mode_info())?, u64::from(len)))
    }

    fn capacity_16(&self) -> Capacity16 {
        let (medium, info) = (&self.medium, self.medium.info());
        let physical = (info.physical_sector >> medium.shift()).max(1);
        // LBPME, and LBPRZ if unmapped blocks read as zeros.
        let provisioning =
            info.discard.map_or(0, |discard| 0x8000 | if discard.reads_zero { 0x4000 } else { 0 });
        Capacity16 {
            last_lba: medium.blocks().saturating_sub(1).into(),
            block_len: info.logical_sector.bytes().into(),
            exponent: (physical.ilog2() as u8).min(15),
            provisioning: provisioning.into(),
            ..Capacity16::default()
        }
    }

    /// GET LBA STATUS (SBC-4): as many descriptors as fit, at least one. They may end before the medium does, and two commands may get
    /// different numbers of them (GET LBA STATUS parameter data overview), so the work has a limit.
    fn lba_status(&self, start: u64, alloc: u32) -> Result<Vec<u8>, Sense> {
        let (shift, capacity) = (self.medium.shift(), self.medium.blocks());
        if start >= capacity {
            return Err(Sense::illegal(asc::LBA_OUT_OF_RANGE));
        }
        let fit = (alloc.saturating_sub(8) / 16).clamp(1, limits::STATUS_DESCRIPTORS);
        let limits = AllocationLimits {
            pieces: fit as usize,
            look_ups: limits::STATUS_LOOK_UPS,
            window: limits::STATUS_WINDOW,
            time: Duration::MAX,
        };
        // No extent is longer than the range, so each fits into 32 bits.
        let blocks = (capacity - start).min(u32::MAX.into());
        let found = allocations(self.medium.disk(), start << shift, blocks << shift, limits)
            .map_err(|error| Sense::from_io(error, asc::UNRECOVERED_READ_ERROR, Some(start)))?;
        let mut lba = start;
        let descriptor = |piece: Allocation| {
            let blocks = piece.len >> shift;
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
        Refusal::Check(sense) => sense.into(),
    }
}
