//! A channel: two drives, of which one is selected, the control register, the bus master and the interrupt.
//!
//! Writes to the command block reach both drives; commands, the data port and reads are the selected one's. Where the selected drive is absent,
//! registers read as zeros beside a drive, and as ones on an empty channel, and commands are ignored.

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
    /// The drive wants to interrupt.
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

    /// What registers read as where the selected drive is absent.
    fn nothing(&self) -> u8 {
        if self.drives().next().is_some() { 0 } else { 0xff }
    }

    /// Read a register of the command block, but data. Status takes the interrupt back.
    pub(super) fn read(&mut self, offset: u64) -> u8 {
        if offset == reg::STATUS {
            self.intrq = false;
        }
        let previous = self.control.contains(Control::HOB);
        self.drive().map_or_else(|| self.nothing(), |drive| drive.read(offset, previous))
    }

    /// The control block: status, without effect on the interrupt.
    pub(super) fn alternate_status(&self) -> u8 {
        self.drive().map_or_else(|| self.nothing(), |drive| drive.status().bits())
    }

    /// Write a register of the command block, but data and command. Starts nothing, and leaves the interrupt as it is.
    pub(super) fn write(&mut self, offset: u64, value: u8) {
        self.control.remove(Control::HOB);
        if !self.takes_writes() {
            return;
        }
        if offset == reg::DEVICE {
            self.selected = usize::from(value & DEVICE_DEV != 0);
        }
        self.drives_mut().for_each(|drive| drive.write(offset, value));
    }

    /// Whether the command block takes writes: not while a command or a reset is under way.
    fn takes_writes(&self) -> bool {
        let busy = Status::BSY | Status::DRQ;
        !self.resetting && self.drive().is_none_or(|drive| !drive.status().intersects(busy))
    }

    /// A command is about to be written: what interrupted before is over, so that the command's own interrupt is a new edge. False: the channel
    /// ignores the command.
    pub(super) fn begin_command(&mut self) -> bool {
        self.control.remove(Control::HOB);
        let takes = self.takes_writes();
        self.intrq &= !takes;
        takes
    }

    /// Execute a command.
    pub(super) fn execute(&mut self, code: u8) {
        if code == command::DIAGNOSTIC {
            self.selected = 0;
            self.drives_mut().for_each(Drive::pass);
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
            self.engine.command_lost();
        }
    }

    /// Read from the data port; how many bytes. 0: there are none.
    pub(super) fn read_data(&mut self, data: &mut [u8]) -> usize {
        let Some(drive) = self.drive_mut() else { return 0 };
        let (moved, intrq) = drive.read_data(data);
        self.raise(intrq);
        moved
    }

    /// Write to the data port; how many bytes. 0: none are taken.
    pub(super) fn write_data(&mut self, data: &[u8]) -> usize {
        let Some(drive) = self.drive_mut() else { return 0 };
        let (moved, intrq) = drive.write_data(data);
        self.raise(intrq);
        moved
    }

    /// What the data port reads as where there are no data.
    pub(super) fn no_data(&self) -> u8 {
        self.nothing()
    }

    /// Read the bus master block.
    pub(super) fn engine_read(&self, offset: u64, data: &mut [u8]) {
        self.engine.read(offset, data);
    }

    /// Write it; true: there may be something to [serve](Self::serve). Where the driver stops a transfer, this waits for the disk: memory is the
    /// driver's again when the write is done.
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

    /// Wait until the disks have no guest memory any more. False: they had none.
    pub(super) fn stop_dma(&mut self) -> bool {
        let has_memory = self.footprint() != Footprint::NONE;
        if has_memory {
            let intrqs = self.drives.each_mut().map(|drive| drive.as_mut().map(Drive::stop_dma));
            intrqs.into_iter().flatten().for_each(|intrq| self.raise(intrq));
        }
        has_memory
    }

    /// Take what the disks' queues have completed.
    pub(super) fn collect(&mut self) {
        self.drives_mut().for_each(Drive::collect);
    }

    /// Bring commands on as far as they go, and not too far for one call. `may_dma`: memory may be accessed.
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
        // Of drives that are not selected, the disk may have a request of before a reset: it ends silently.
        let intrqs = self.drives.each_mut().map(|drive| drive.as_mut().map(Drive::serve));
        intrqs.into_iter().flatten().for_each(|intrq| self.raise(intrq));
    }

    /// Start the transfer that the engine is ready for, if the drive is.
    fn start_dma<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) {
        let Self { drives, selected, engine, .. } = self;
        let Some(drive) = drives.get_mut(*selected).and_then(Option::as_mut) else { return };
        let Some(DmaRequest { bytes, access }) = drive.dma_request() else { return };
        let bufs = drive.dma_bufs();
        bufs.clear();
        let intrq = match engine.begin(bytes, access, dma, bufs) {
            Ok(footprint) => drive.start_dma(footprint),
            Err(TableError::NotMemory) => drive.fail_dma(),
            Err(TableError::Short) => {
                drive.abandon_dma();
                Intrq::Same
            }
        };
        self.raise(intrq);
    }

    /// Wait for the disks, and bring commands on.
    pub(super) fn drain(&mut self) {
        let intrqs = self.drives.each_mut().map(|drive| drive.as_mut().map(Drive::drain));
        intrqs.into_iter().flatten().for_each(|intrq| self.raise(intrq));
    }

    /// Whether a command can be brought on at once.
    pub(super) fn has_next_step(&self) -> bool {
        self.drives().any(Drive::has_next_step)
    }

    /// Fail what the disks' queues do not have. True: there was some. To be called with everything served.
    pub(super) fn end_lost(&mut self) -> bool {
        self.drives_mut().fold(false, |any, drive| drive.end_lost() | any)
    }

    /// The drive says that data or a result are there. A transfer of the engine is over then.
    fn raise(&mut self, intrq: Intrq) {
        if intrq == Intrq::Raise {
            self.intrq = true;
            self.engine.ended();
        }
    }

    /// The interrupt as it leaves the channel; the bus master takes note of it.
    pub(super) fn update_line(&mut self) -> bool {
        let line = self.intrq && !self.control.contains(Control::NIEN);
        if line && !self.line {
            self.engine.interrupted();
        }
        self.line = line;
        line
    }

    /// As after power-on, once the disks have completed their requests.
    pub(super) fn power_on(&mut self) {
        self.drives_mut().for_each(Drive::begin_reset);
        self.drain();
        self.drives_mut().for_each(Drive::power_on);
        self.selected = 0;
        self.control = Control::empty();
        (self.resetting, self.intrq, self.line) = (false, false, false);
        self.engine = Engine::new();
    }

    /// Guest memory that the disks use.
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
