//! A channel: two drives, of which one is selected, the control register, the bus master and the interrupt.
//!
//! Writes to the command block reach both drives. Commands, the data port and reads reach the selected drive alone. If the selected drive
//! is absent, commands are ignored, and registers read as zeros (ones if the channel has no drive at all).

use std::os::fd::BorrowedFd;

use paradisk_disk_formats::QueueStats;
use vm_memory::GuestAddressSpace;

use super::drive::Drive;
use super::engine::{Change, Engine, TableError};
use super::spec::{Control, DEVICE_DEV, Status, command, reg};
use super::work::{Counts, DmaRequest, Intrq};
use crate::dma::{Dma, Footprint};

/// A channel.
pub(super) struct Channel {
    drives: [Option<Drive>; 2],
    selected: usize,
    control: Control,
    /// A software reset has begun and is not over.
    resetting: bool,
    /// INTRQ of the selected drive.
    intrq: bool,
    /// Level of the line: `intrq`, unless the guest has masked it.
    line: bool,
    engine: Engine,
}

impl Channel {
    pub(super) fn new(drives: [Option<Drive>; 2]) -> Self {
        Self {
            drives,
            selected: 0,
            control: Control::empty(),
            resetting: false,
            intrq: false,
            line: false,
            engine: Engine::new(),
        }
    }

    /// The drives that are there.
    pub(super) fn drives(&self) -> impl Iterator<Item = &Drive> {
        self.drives.iter().flatten()
    }

    fn drives_mut(&mut self) -> impl Iterator<Item = &mut Drive> {
        self.drives.iter_mut().flatten()
    }

    fn drive(&self) -> Option<&Drive> {
        self.drives.get(self.selected)?.as_ref()
    }

    fn drive_mut(&mut self) -> Option<&mut Drive> {
        self.drives.get_mut(self.selected)?.as_mut()
    }

    /// The value of registers while the selected drive is absent.
    fn absent_value(&self) -> u8 {
        if self.drives().next().is_some() { 0 } else { 0xff }
    }

    /// Read a register of the command block other than data. A read of status clears INTRQ.
    pub(super) fn read(&mut self, offset: u64) -> u8 {
        if offset == reg::STATUS {
            self.intrq = false;
        }
        let previous = self.control.contains(Control::HOB);
        self.drive().map_or_else(|| self.absent_value(), |drive| drive.read(offset, previous))
    }

    /// Read alternate status: status, without effect on INTRQ.
    pub(super) fn alternate_status(&self) -> u8 {
        self.drive().map_or_else(|| self.absent_value(), |drive| drive.status().bits())
    }

    /// Write a register of the command block other than data and command. Starts nothing and does not change INTRQ.
    pub(super) fn write(&mut self, offset: u64, value: u8) {
        self.control.remove(Control::HOB);
        if !self.accepts_writes() {
            return;
        }
        if offset == reg::DEVICE {
            self.selected = usize::from(value & DEVICE_DEV != 0);
        }
        self.drives_mut().for_each(|drive| drive.write(offset, value));
    }

    /// Whether the command block accepts writes: not during a command or a reset.
    fn accepts_writes(&self) -> bool {
        let busy = Status::BSY | Status::DRQ;
        !self.resetting && self.drive().is_none_or(|drive| !drive.status().intersects(busy))
    }

    /// Called before a command is executed: clears INTRQ, so that the command's own interrupt is a new edge. False: the channel ignores the
    /// command.
    pub(super) fn begin_command(&mut self) -> bool {
        self.control.remove(Control::HOB);
        let accepts = self.accepts_writes();
        self.intrq &= !accepts;
        accepts
    }

    /// Execute a command.
    pub(super) fn execute(&mut self, code: u8) {
        if code == command::DIAGNOSTIC {
            self.selected = 0;
            self.drives_mut().for_each(Drive::pass_diagnostic);
            let any = self.drives().next().is_some();
            self.intrq = any;
            return;
        }
        if let Some(drive) = self.drive_mut() {
            let intrq = drive.execute(code);
            self.raise(intrq);
        }
    }

    /// Write the control register.
    pub(super) fn write_control(&mut self, value: u8) {
        let before = std::mem::replace(&mut self.control, Control::from_bits_truncate(value));
        if self.control.contains(Control::SRST) && !before.contains(Control::SRST) {
            self.resetting = true;
            self.intrq = false;
            self.selected = 0;
            self.drives_mut().for_each(Drive::begin_reset);
            self.engine.transfer_aborted();
        }
    }

    /// Read from the data port. Returns the number of bytes; 0: the port has no data.
    pub(super) fn read_data(&mut self, data: &mut [u8]) -> usize {
        let Some(drive) = self.drive_mut() else { return 0 };
        let (moved, intrq) = drive.read_data(data);
        self.raise(intrq);
        moved
    }

    /// Write to the data port. Returns the number of bytes accepted; 0: the port accepts none.
    pub(super) fn write_data(&mut self, data: &[u8]) -> usize {
        let Some(drive) = self.drive_mut() else { return 0 };
        let (moved, intrq) = drive.write_data(data);
        self.raise(intrq);
        moved
    }

    /// The value of the data port while it has no data.
    pub(super) fn no_data_value(&self) -> u8 {
        self.absent_value()
    }

    /// Read the bus master block.
    pub(super) fn engine_read(&self, offset: u64, data: &mut [u8]) {
        self.engine.read(offset, data);
    }

    /// Write the bus master block. True: [`serve`](Self::serve) may have work. A write that stops a transfer waits for the disk: the driver
    /// may reuse the memory when the write returns.
    pub(super) fn engine_write(&mut self, offset: u64, data: &[u8]) -> bool {
        match self.engine.write(offset, data) {
            Change::None => false,
            Change::Start => true,
            Change::Stop => {
                let has_waited = self.stop_dma();
                self.engine.stopped();
                has_waited
            }
        }
    }

    /// Whether a write to the bus master's command register neither starts anything nor waits.
    pub(super) fn stops_at_once(&self) -> bool {
        self.engine.is_started() && self.footprint() == Footprint::NONE
    }

    /// Wait until no disk request uses guest memory. False: none did.
    pub(super) fn stop_dma(&mut self) -> bool {
        let has_memory = self.footprint() != Footprint::NONE;
        if has_memory {
            tracing::debug!("IDE transfer stopped, with a request in flight");
            let intrqs = self.drives.each_mut().map(|drive| drive.as_mut().map(Drive::stop_dma));
            intrqs.into_iter().flatten().for_each(|intrq| self.raise(intrq));
        }
        has_memory
    }

    /// Reap the completions of the disks' queues.
    pub(super) fn reap(&mut self) {
        self.drives_mut().for_each(Drive::reap);
    }

    /// Advance commands, by a bounded number of steps. `may_dma`: bus mastering is enabled.
    pub(super) fn serve<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>, may_dma: bool) {
        self.serve_disks();
        if may_dma && self.engine.is_armed() {
            self.start_dma(dma);
            self.serve_disks();
        }
        if self.resetting && !self.control.contains(Control::SRST) && !self.drives().any(Drive::is_busy) {
            self.resetting = false;
            self.drives_mut().for_each(Drive::end_reset);
        }
    }

    fn serve_disks(&mut self) {
        // A drive that is not selected may have a disk request from before a reset. Its completion raises no interrupt.
        let intrqs = self.drives.each_mut().map(|drive| drive.as_mut().map(Drive::serve));
        intrqs.into_iter().flatten().for_each(|intrq| self.raise(intrq));
    }

    /// Start a DMA transfer if the drive waits for one. The engine is armed.
    fn start_dma<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) {
        let Self { drives, selected, engine, .. } = self;
        let Some(drive) = drives.get_mut(*selected).and_then(Option::as_mut) else { return };
        let Some(DmaRequest { bytes, access }) = drive.dma_request() else { return };
        let bufs = drive.dma_bufs();
        bufs.clear();
        let intrq = match engine.walk_table(bytes, access, dma, bufs) {
            Ok(footprint) => drive.start_dma(footprint),
            Err(TableError::NotMemory) => drive.fail_dma(),
            Err(TableError::Short) => {
                drive.abandon_dma();
                Intrq::Unchanged
            }
        };
        self.raise(intrq);
    }

    /// Wait for the disks, and advance commands.
    pub(super) fn drain(&mut self) {
        let intrqs = self.drives.each_mut().map(|drive| drive.as_mut().map(Drive::drain));
        intrqs.into_iter().flatten().for_each(|intrq| self.raise(intrq));
    }

    /// Whether a command can be advanced without waiting for a disk.
    pub(super) fn has_next_step(&self) -> bool {
        self.drives().any(Drive::has_next_step)
    }

    /// Fail requests that the disks' queues have lost. True: there was one. Call it when nothing is left to serve.
    pub(super) fn fail_lost(&mut self) -> bool {
        self.drives_mut().fold(false, |any, drive| drive.fail_lost() | any)
    }

    /// Apply a step's effect on INTRQ. A raised INTRQ also ends the engine's transfer.
    fn raise(&mut self, intrq: Intrq) {
        if intrq == Intrq::Raise {
            self.intrq = true;
            self.engine.ended();
        }
    }

    /// The level of the channel's interrupt line. A rising edge sets the bus master's interrupt bit.
    pub(super) fn update_line(&mut self) -> bool {
        let line = self.intrq && !self.control.contains(Control::NIEN);
        if line && !self.line {
            self.engine.interrupted();
        }
        self.line = line;
        line
    }

    /// Wait for the disks, then set the power-on state.
    pub(super) fn power_on(&mut self) {
        self.drives_mut().for_each(Drive::begin_reset);
        self.drain();
        self.drives_mut().for_each(Drive::power_on);
        self.selected = 0;
        self.control = Control::empty();
        (self.resetting, self.intrq, self.line) = (false, false, false);
        self.engine = Engine::new();
    }

    /// Guest memory that disk requests use.
    pub(super) fn footprint(&self) -> Footprint {
        self.drives().fold(Footprint::NONE, |all, drive| all | drive.footprint())
    }

    pub(super) fn events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.drives().map(Drive::event)
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (Counts, QueueStats)> {
        self.drives().map(|drive| (drive.counts(), drive.queue_stats()))
    }
}
