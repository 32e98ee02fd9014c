//! The bus master of a channel (SFF-8038i): its registers, and the table of physical region descriptors.
//!
//! The start bit arms the engine. A transfer starts when the engine is armed and the drive waits for DMA, in either order. The engine then
//! walks the table and passes guest memory to the disk as its buffers, so no data are copied. How a transfer ends:
//!
//! | table | active | error | command |
//! | --- | --- | --- | --- |
//! | as long as the command's data | 0 | 0 | interrupt |
//! | longer | 1 | 0 | interrupt |
//! | shorter | 0 | 0 | no interrupt |
//! | outside memory, or with a region outside memory | 0 | 1 | aborted, interrupt |

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;

use super::spec::{BmCommand, BmStatus, MAX_PRDS, Prd, bm};
use crate::dma::{Access, Dma, Footprint};

/// The effect of a write to the command register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// No effect.
    None,
    /// Armed: a transfer may start.
    Start,
    /// Stopped: the driver may reuse the memory after the write.
    Stop,
}

/// Why a transfer cannot use the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableError {
    /// The table is shorter than the command's data.
    Short,
    /// The table or one of its regions is outside memory.
    NotMemory,
}

/// How much of the table a transfer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Used {
    All,
    Part,
}

/// The bus master of a channel.
pub(super) struct Engine {
    command: BmCommand,
    status: BmStatus,
    table: u32,
    /// Started, and no transfer has used the table since.
    armed: bool,
    /// The transfer in flight.
    transfer: Option<Used>,
}

impl Engine {
    pub(super) const fn new() -> Self {
        Self {
            command: BmCommand::empty(),
            status: BmStatus::empty(),
            table: 0,
            armed: false,
            transfer: None,
        }
    }

    pub(super) const fn is_armed(&self) -> bool {
        self.armed
    }

    /// Whether the start bit is set, so that a write to the command register cannot start a transfer.
    pub(super) const fn is_started(&self) -> bool {
        self.command.contains(BmCommand::START)
    }

    /// Read the channel's half of the bus master block. Unknown registers and other access widths read as ones.
    pub(super) fn read(&self, offset: u64, data: &mut [u8]) {
        let table = self.table.to_le_bytes();
        let start = offset.checked_sub(bm::TABLE).map_or(usize::MAX, |at| at as usize);
        match (offset, &mut *data) {
            (bm::COMMAND, [byte]) => *byte = self.command.bits(),
            (bm::STATUS, [byte]) => *byte = self.status.bits(),
            _ => match start.checked_add(data.len()).and_then(|end| table.get(start..end)) {
                Some(bytes) => data.copy_from_slice(bytes),
                None => data.fill(0xff),
            },
        }
    }

    /// Write the channel's half of the bus master block.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Change {
        match (offset, data) {
            (bm::COMMAND, [value]) => return self.write_command(BmCommand::from_bits_truncate(*value)),
            (bm::STATUS, [value]) => self.write_status(BmStatus::from_bits_truncate(*value)),
            _ => {
                let mut table = self.table.to_le_bytes();
                let start = offset.checked_sub(bm::TABLE).map_or(usize::MAX, |at| at as usize);
                let place = start.checked_add(data.len()).and_then(|end| table.get_mut(start..end));
                if let Some(bytes) = place {
                    bytes.copy_from_slice(data);
                    self.table = u32::from_le_bytes(table) & !3;
                }
            }
        }
        Change::None
    }

    fn write_command(&mut self, command: BmCommand) -> Change {
        let before = std::mem::replace(&mut self.command, command);
        match (before.contains(BmCommand::START), command.contains(BmCommand::START)) {
            (false, true) => {
                self.armed = true;
                self.status.insert(BmStatus::ACTIVE);
                Change::Start
            }
            (true, false) => Change::Stop,
            _ => Change::None,
        }
    }

    fn write_status(&mut self, value: BmStatus) {
        let kept = BmStatus::DRIVE0_DMA | BmStatus::DRIVE1_DMA;
        self.status.remove(value & (BmStatus::ERROR | BmStatus::INTERRUPT));
        self.status = (self.status - kept) | (value & kept);
    }

    /// The driver has cleared the start bit, and no disk request uses guest memory.
    pub(super) fn stopped(&mut self) {
        self.armed = false;
        self.transfer = None;
        self.status.remove(BmStatus::ACTIVE);
    }

    /// The channel's interrupt is raised.
    pub(super) fn interrupted(&mut self) {
        self.status.insert(BmStatus::INTERRUPT);
    }

    /// Walk the table for a transfer of `bytes` bytes: append the memory to `bufs`, and return its footprint.
    ///
    /// # Errors
    /// [`TableError`]: the engine has stopped.
    pub(super) fn walk_table<A: GuestAddressSpace>(
        &mut self,
        bytes: u64,
        access: Access,
        dma: &mut Dma<A>,
        bufs: &mut Vec<IoBuf>,
    ) -> Result<Footprint, TableError> {
        self.armed = false;
        dma.next_request();
        match walk(self.table, bytes, access, dma, bufs) {
            Ok(used) => {
                self.transfer = Some(used);
                Ok(dma.footprint())
            }
            Err(error) => {
                bufs.clear();
                self.status.remove(BmStatus::ACTIVE);
                if error == TableError::NotMemory {
                    self.status.insert(BmStatus::ERROR);
                }
                Err(error)
            }
        }
    }

    /// The transfer has completed or failed.
    pub(super) fn ended(&mut self) {
        if self.transfer.take() == Some(Used::All) {
            self.status.remove(BmStatus::ACTIVE);
        }
    }

    /// The drive was reset, which aborted its transfer.
    pub(super) fn transfer_aborted(&mut self) {
        self.transfer = None;
    }
}

/// Map the table's regions. Contiguous regions are joined: drivers split memory at 64 KiB.
fn walk<A: GuestAddressSpace>(
    table: u32,
    bytes: u64,
    access: Access,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<Used, TableError> {
    let mut left = bytes;
    let (mut start, mut len) = (0, 0);
    for index in 0..MAX_PRDS {
        let at = u64::from(table) + index * size_of::<Prd>() as u64;
        let prd: Prd = dma.read(at).map_err(|_| TableError::NotMemory)?;
        let part = prd.bytes().min(left);
        if start + len != prd.start() {
            map((start, len), access, dma, bufs)?;
            (start, len) = (prd.start(), 0);
        }
        len += part;
        left -= part;
        if left == 0 {
            map((start, len), access, dma, bufs)?;
            let all = prd.is_last() && part == prd.bytes();
            return Ok(if all { Used::All } else { Used::Part });
        }
        if prd.is_last() {
            break;
        }
    }
    Err(TableError::Short)
}

fn map<A: GuestAddressSpace>(
    (start, len): (u64, u64),
    access: Access,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<(), TableError> {
    match len {
        0 => Ok(()),
        _ => dma.translate(start, len, access, bufs).map_err(|_| TableError::NotMemory),
    }
}
