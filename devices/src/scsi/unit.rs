//! A logical unit: a disk as a direct-access block device, and its state.

use std::collections::VecDeque;
use std::sync::Arc;

use disk_formats::{Disk, DiskQueue, IoBuf};

use super::cdb::Blocks;
use super::limits;
use super::mode::Modes;
use super::reservations::Reservations;
use super::scratch::Scratch;
use super::sense::{Key, Sense, asc};
use super::slow::Job;
use super::{Address, Status, TaskEnd};
use crate::AdapterKind;
use crate::fault::Fault;

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
    /// UUID of the disk, where it has one: tells it from all others.
    pub uuid: Option<[u8; 16]>,
}

impl Default for Identity {
    fn default() -> Self {
        let mut revision = [b' '; 4];
        for (to, from) in revision.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
            *to = from;
        }
        let (vendor, product) = (*b"PARADISK", *b"VIRTUAL DISK    ");
        Self { vendor, product, revision, serial: String::new(), uuid: None }
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
    /// Tasks wait, or one runs that others wait for, or the unit is being reset.
    pub(in super::super) const QUEUE: u8 = 4;
    /// Another nexus holds a reservation.
    pub(in super::super) const RESERVED: u8 = 8;
    /// It is faulted.
    pub(in super::super) const FAULTED: u8 = 16;
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
    /// Every write must be on stable storage when it ends: WCE is off on a disk with a volatile cache.
    pub(super) write_through: bool,
    pub(super) native_fua: bool,
    pub(super) index: u16,
    /// Tasks whose disk requests are in flight, or that are among the jobs.
    pub(super) running: u32,
    /// Requests were pushed since the last submit.
    pub(super) pushed: bool,
    /// Flushes of commands that ended at once.
    pub(super) background: u32,
    /// It was reset while disk requests were in flight. No task begins before the last of them is over: what the initiator
    /// sends after the reset must neither be overtaken nor be overwritten by what it sent before.
    pub(super) resetting: bool,
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
    pub(super) identity: Identity,
    pub(super) modes: Modes,
    pub(super) attention: u8,
    /// Its capacity has changed, which only a sense code may have told so far.
    unreported: bool,
    pub(super) deferred: Option<Sense>,
    pub(super) stopped: bool,
    pub(super) reservations: Reservations,
    pub(super) fault: Fault,
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
            resetting: false,
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
            unreported: false,
            deferred: None,
            stopped: false,
            reservations: Reservations::default(),
            fault: Fault::default(),
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

    /// Where it has no serial number, it gets the one of its place in an adapter.
    #[must_use]
    pub(crate) fn named(mut self, kind: AdapterKind, address: Address) -> Self {
        if self.identity.serial.is_empty() {
            self.identity.serial = kind.serial_of_place(address);
        }
        self
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
            | if self.fault.is_set() { gate::FAULTED } else { 0 }
            | if self.reservations.kept_out().is_some() { gate::RESERVED } else { 0 }
            | if self.exclusive.is_some() || self.resetting || !self.waiting.is_empty() {
                gate::QUEUE
            } else {
                0
            };
    }

    /// Compare the capacity with what was reported to the initiator. True: it has changed.
    pub(super) fn refresh(&mut self) -> bool {
        let sectors = self.disk.info().sectors();
        let changed = sectors != self.sectors;
        if changed {
            self.sectors = sectors;
            self.attention |= attention::CAPACITY;
            self.unreported = true;
            self.regate();
        }
        changed
    }

    /// The same for adapters that tell the guest in a way of their own, also of what a command has found since the last call.
    pub(super) fn refresh_to_tell(&mut self) -> bool {
        self.refresh();
        std::mem::take(&mut self.unreported)
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

    /// CHECK CONDITION.
    pub(super) fn check(&self, sense: Sense) -> TaskEnd {
        self.check_moved(sense, 0, 0)
    }

    /// CHECK CONDITION after data were moved, or should have been.
    pub(super) fn check_moved(&self, sense: Sense, transferred: u64, wanted: u64) -> TaskEnd {
        let sense = Some(sense.encode(self.modes.descriptor_sense));
        TaskEnd::Answered { status: Status::CheckCondition, transferred, wanted, sense }
    }
}
