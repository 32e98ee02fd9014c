//! A task of an adapter, and its end (SAM-5, 5).

use paradisk_disk_formats::IoBuf;

use super::sense::{Sense, SenseData};

/// Address of a logical unit on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Target.
    pub target: u8,
    /// Logical unit number.
    pub lun: u16,
}

/// A single-level logical unit number, in peripheral device or flat space addressing (SAM-5, 4.7). `None`: several
/// levels, or another addressing method.
#[inline]
#[must_use]
pub fn single_level_lun(lun: &[u8; 8]) -> Option<u16> {
    if *lun == [0; 8] {
        return Some(0);
    }
    let [first, second, rest @ ..] = *lun;
    if rest != [0; 6] {
        return None;
    }
    match first >> 6 {
        0 if first == 0 => Some(second.into()),
        1 => Some(u16::from(first & 0x3f) << 8 | u16::from(second)),
        _ => None,
    }
}

/// Task attribute (SAM-5, 8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attribute {
    /// SIMPLE: any order.
    #[default]
    Simple,
    /// HEAD OF QUEUE: before all waiting tasks.
    HeadOfQueue,
    /// ORDERED: after all earlier ones, before all later ones.
    Ordered,
}

/// Direction of the data that the initiator expects; a bit for each possible direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// No data.
    None = 0,
    /// Device to memory (Data-In).
    In = 1,
    /// Memory to device (Data-Out).
    Out = 2,
    /// Not stated by the adapter's request: the command determines it.
    Either = 3,
}

impl Direction {
    /// Whether READ (or with `write`, WRITE) may move data.
    #[inline(always)]
    pub(super) const fn allows(self, write: bool) -> bool {
        self as u8 & (1 + write as u8) != 0
    }
}

/// A task that an adapter submits.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// Task number, chosen by the adapter: below the bus's limit, unique among the tasks in flight.
    pub id: u32,
    /// The addressed unit.
    pub address: Address,
    /// Command descriptor block. Its operation code determines its length, 6 to 32 bytes; the slice may be longer.
    pub cdb: &'a [u8],
    /// Task attribute.
    pub attribute: Attribute,
    /// Expected direction.
    pub direction: Direction,
    /// Memory for the data, already checked. The memory stays valid until the task has ended; the slice is used during the call only.
    pub bufs: &'a [IoBuf],
    /// Total length of the buffers in bytes: the initiator's expected data transfer length.
    pub len: u64,
}

/// SCSI status (SAM-5, 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// GOOD.
    Good = 0x00,
    /// CHECK CONDITION: sense data follow.
    CheckCondition = 0x02,
    /// CONDITION MET.
    ConditionMet = 0x04,
    /// BUSY.
    Busy = 0x08,
    /// RESERVATION CONFLICT.
    ReservationConflict = 0x18,
    /// TASK SET FULL.
    TaskSetFull = 0x28,
    /// TASK ABORTED.
    TaskAborted = 0x40,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskEnd {
    /// The device server answered.
    Answered {
        /// Status.
        status: Status,
        /// Bytes moved to or from the buffers.
        transferred: u64,
        /// Bytes that the command would move with large enough buffers. If above the task's `len`, this is an overrun.
        wanted: u64,
        /// With CHECK CONDITION.
        sense: Option<SenseData>,
    },
    /// There is no such target.
    NoTarget,
    /// The command moves data in the opposite direction of the initiator's.
    WrongDirection,
    /// Ended by an abort.
    Aborted,
    /// Ended by a reset of its unit, target or bus.
    Reset,
}

impl TaskEnd {
    /// GOOD.
    pub(super) const fn good(transferred: u64, wanted: u64) -> Self {
        Self::Answered { status: Status::Good, transferred, wanted, sense: None }
    }

    /// A status without data and sense.
    pub(super) const fn status(status: Status) -> Self {
        Self::Answered { status, transferred: 0, wanted: 0, sense: None }
    }

    /// CHECK CONDITION of a target. A target has no control mode page, so the format is fixed.
    pub(super) fn check(sense: Sense) -> Self {
        let sense = Some(sense.encode(false));
        Self::Answered { status: Status::CheckCondition, transferred: 0, wanted: 0, sense }
    }
}

/// Why a command was not executed.
#[derive(Debug)]
pub(super) enum Failure {
    /// CHECK CONDITION, and the number of bytes that the command would have moved.
    Check(Sense, u64),
    /// Anything else.
    End(TaskEnd),
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Self::Check(sense, 0)
    }
}
