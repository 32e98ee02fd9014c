//! An ATA drive. It executes one command at a time.
//!
//! ```text
//!                      +-- DRQ: the guest reads the port <--- disk reads a block <--+
//!   command -- parse --+-- DRQ: the guest fills the port ---> disk writes a block --+--> good, failed
//!                      +-- waits for the bus master --------> disk request ---------+
//!                      +-- flush, trim, verify -------------> disk request ---------+
//! ```
//!
//! BSY is set from the command until data or status are available. With the write cache off, on a disk with a volatile cache, a write
//! completes when its data are on stable storage.

use std::os::fd::BorrowedFd;

use paradisk_disk_formats::{IoBuf, IoError, Op, QueueStats};

use super::command::{Command, DriveData, Operation, Protocol, Transfer};
use super::identify;
use super::medium::{Ended, Medium};
use super::port::Port;
use super::search::{Next, Search};
use super::settings::Settings;
use super::spec::{BLOCK, Error, MAX_MULTIPLE, MAX_TRIM_BLOCKS, Status, reg, smart};
use super::taskfile::{Addressing, Sectors, Taskfile};
use super::trim::{self, Range};
use super::work::{Counts, DmaRequest, Intrq, Work};
use crate::dma::{Access, Footprint};
use crate::scsi::gather;

/// Steps of a command that one call makes. A command may take thousands of disk requests, and the disk may complete each at once.
const STEPS: usize = 64;

/// A drive.
pub(super) struct Drive {
    /// First, so that it is dropped first: requests in flight are waited for while their memory is kept.
    medium: Medium,
    port: Port,
    taskfile: Taskfile,
    status: Status,
    error: Error,
    settings: Settings,
    serial: String,
    work: Work,
    /// Guest memory of the DMA transfer in flight.
    footprint: Footprint,
    /// The pieces of that memory.
    bufs: Vec<IoBuf>,
    /// Scratch list for a subset of `bufs`.
    part: Vec<IoBuf>,
    counts: Counts,
}

/// The drive accepts commands.
const READY: Status = Status::DRDY.union(Status::DSC);

impl Drive {
    /// After power-on.
    pub(super) fn new(medium: Medium, serial: String) -> Self {
        let sector = medium.info().logical_sector.bytes() as usize;
        let block = (sector * usize::from(MAX_MULTIPLE)).max(BLOCK * usize::from(MAX_TRIM_BLOCKS));
        let settings = Settings::new(medium.info().volatile_cache);
        let mut drive = Self {
            medium,
            port: Port::new(block),
            taskfile: Taskfile::default(),
            status: READY,
            error: Error::empty(),
            settings,
            serial,
            work: Work::Idle,
            footprint: Footprint::NONE,
            bufs: Vec::new(),
            part: Vec::new(),
            counts: Counts::default(),
        };
        drive.pass_diagnostic();
        drive
    }

    pub(super) const fn status(&self) -> Status {
        self.status
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn queue_stats(&self) -> QueueStats {
        self.medium.stats()
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.medium.event()
    }

    /// Guest memory that the disk request in flight uses.
    pub(super) const fn footprint(&self) -> Footprint {
        if self.medium.is_busy() { self.footprint } else { Footprint::NONE }
    }

    /// Read a register of the command block other than data.
    pub(super) fn read(&self, offset: u64, previous: bool) -> u8 {
        match offset {
            reg::STATUS => self.status.bits(),
            _ => self.taskfile.read(offset, self.error, previous),
        }
    }

    /// Write a register of the command block other than data and command.
    pub(super) fn write(&mut self, offset: u64, value: u8) {
        self.taskfile.write(offset, value);
    }

    /// Execute a command, other than EXECUTE DEVICE DIAGNOSTIC.
    pub(super) fn execute(&mut self, code: u8) -> Intrq {
        self.counts.commands += 1;
        self.status = READY | Status::BSY;
        self.error = Error::empty();
        self.footprint = Footprint::NONE;
        match Command::parse(code, &self.taskfile, &self.settings, self.medium.info()) {
            Ok(command) => self.dispatch(command),
            Err(error) => self.fail(error),
        }
    }

    fn dispatch(&mut self, command: Command) -> Intrq {
        match command {
            Command::Transfer(transfer) => match (transfer.protocol, transfer.operation) {
                (Protocol::Dma, _) => self.wait_for(Work::AwaitDma(transfer)),
                // The first DRQ of a write comes without an interrupt.
                (Protocol::Pio(_), Operation::Write) => {
                    let _ = self.offer_block(transfer);
                    Intrq::Unchanged
                }
                (Protocol::Pio(_), _) => self.disk_block(transfer),
            },
            Command::Trim(blocks) => self.wait_for(Work::AwaitRanges(usize::from(blocks) * BLOCK)),
            Command::Flush => self.flush(None),
            Command::DriveData(data) => self.offer_drive_data(data),
            Command::Set(settings) => {
                self.settings = settings;
                self.succeed()
            }
            Command::SetAndFlush(settings) => self.flush(Some(settings)),
            Command::CheckPower => {
                self.taskfile.set_count(0xff);
                self.succeed()
            }
            Command::SmartStatus => {
                self.taskfile.set_mid_high(smart::SIGNATURE);
                self.succeed()
            }
            Command::NativeMax(addressing) => {
                let most = match addressing {
                    Addressing::Lba48 => u64::MAX,
                    _ => identify::LBA28_SECTORS,
                };
                let lba = self.medium.info().sectors().min(most).saturating_sub(1);
                self.taskfile.set_sectors(addressing, Sectors { lba, count: 0 });
                self.succeed()
            }
            Command::Nothing => self.succeed(),
        }
    }

    fn wait_for(&mut self, work: Work) -> Intrq {
        self.work = work;
        Intrq::Unchanged
    }

    /// The DMA transfer that the drive waits for, if any.
    pub(super) fn dma_request(&self) -> Option<DmaRequest> {
        match &self.work {
            Work::AwaitDma(transfer) => {
                let access =
                    if transfer.operation == Operation::Write { Access::Read } else { Access::Write };
                let bytes = self.bytes(transfer.sectors.count);
                Some(DmaRequest { bytes, access })
            }
            Work::AwaitRanges(len) => Some(DmaRequest { bytes: *len as u64, access: Access::Read }),
            _ => None,
        }
    }

    /// The bus master appends the guest memory of a transfer here.
    pub(super) const fn dma_bufs(&mut self) -> &mut Vec<IoBuf> {
        &mut self.bufs
    }

    /// Start the awaited DMA transfer with the memory in [`dma_bufs`](Self::dma_bufs).
    pub(super) fn start_dma(&mut self, footprint: Footprint) -> Intrq {
        match std::mem::replace(&mut self.work, Work::Idle) {
            Work::AwaitDma(transfer) => {
                self.footprint = footprint;
                let bufs = std::mem::take(&mut self.bufs);
                self.push(&transfer, transfer.sectors, &bufs);
                self.bufs = bufs;
                self.wait_for(Work::Dma(transfer))
            }
            Work::AwaitRanges(len) => match trim::ranges(&self.bufs, len, self.medium.info()) {
                Some(ranges) => self.discard(ranges),
                None => self.fail(Error::IDNF),
            },
            other => {
                debug_assert!(false, "no DMA is awaited");
                self.wait_for(other)
            }
        }
    }

    /// The bus master's table is too short: the command ends without an interrupt. As on hardware, the driver's timeout expires.
    pub(super) fn abandon_dma(&mut self) {
        self.end(READY);
        self.counts.failed += 1;
    }

    /// The bus master's table or a region of it is outside memory: fail the command.
    pub(super) fn fail_dma(&mut self) -> Intrq {
        self.fail(Error::ABRT)
    }

    /// Read from the data port. Returns the number of bytes; 0: the port has no data.
    pub(super) fn read_data(&mut self, data: &mut [u8]) -> (usize, Intrq) {
        if !matches!(self.work, Work::DriveData | Work::Port(Transfer { operation: Operation::Read, .. })) {
            return (0, Intrq::Unchanged);
        }
        let moved = self.port.read(data);
        (moved, self.block_moved())
    }

    /// Write to the data port. Returns the number of bytes accepted; 0: the port accepts none.
    pub(super) fn write_data(&mut self, data: &[u8]) -> (usize, Intrq) {
        if !matches!(self.work, Work::Port(Transfer { operation: Operation::Write, .. })) {
            return (0, Intrq::Unchanged);
        }
        let moved = self.port.write(data);
        (moved, self.block_moved())
    }

    fn block_moved(&mut self) -> Intrq {
        if !self.port.is_done() {
            return Intrq::Unchanged;
        }
        self.port.close();
        match std::mem::replace(&mut self.work, Work::Idle) {
            Work::Port(transfer) if transfer.operation == Operation::Write => {
                self.status = READY | Status::BSY;
                self.disk_block(transfer)
            }
            Work::Port(transfer) => match self.advance(transfer) {
                Some(transfer) => {
                    self.status = READY | Status::BSY;
                    self.disk_block(transfer)
                }
                // The last block of a read ends without an interrupt.
                None => self.succeed_silently(),
            },
            _ => self.succeed_silently(),
        }
    }

    /// Reap the completions of the disk's queue.
    pub(super) fn reap(&mut self) {
        self.medium.reap();
    }

    /// Advance the command by at most [`STEPS`] steps, while its disk requests complete at once.
    pub(super) fn serve(&mut self) -> Intrq {
        let mut intrq = Intrq::Unchanged;
        for _ in 0..STEPS {
            let Some(ended) = self.medium.take() else { return intrq };
            if self.step_ended(ended) == Intrq::Raise {
                intrq = Intrq::Raise;
            }
        }
        // Submit the last request before returning.
        self.medium.reap();
        intrq
    }

    /// Whether [`serve`](Self::serve) can make another step without waiting for the disk.
    pub(super) const fn has_next_step(&self) -> bool {
        self.medium.has_ended()
    }

    /// The bus master was stopped: wait until no disk request uses guest memory. Flushes, discards and blocks of programmed I/O continue.
    pub(super) fn stop_dma(&mut self) -> Intrq {
        if self.footprint() == Footprint::NONE {
            return Intrq::Unchanged;
        }
        self.medium.wait();
        let Some(ended) = self.medium.take() else { return Intrq::Unchanged };
        match (&self.work, ended) {
            // A further read would use guest memory after the stop.
            (Work::Search(search), _) => {
                let transfer = *search.transfer();
                self.cannot_read(&transfer, transfer.sectors.lba)
            }
            (Work::Dma(transfer), Err(error)) => {
                let transfer = *transfer;
                self.disk_failed(Some(&transfer), error)
            }
            (_, ended) => self.step_ended(ended),
        }
    }

    /// Wait for the disk, and advance the command until no disk request is in flight.
    pub(super) fn drain(&mut self) -> Intrq {
        let mut intrq = self.serve();
        while self.medium.is_busy() {
            self.medium.wait();
            if self.serve() == Intrq::Raise {
                intrq = Intrq::Raise;
            }
        }
        intrq
    }

    /// Fail a request that the disk's queue has lost. True: there was one. Call it when nothing is left to serve.
    pub(super) fn fail_lost(&mut self) -> bool {
        self.medium.fail_lost()
    }

    fn step_ended(&mut self, ended: Ended) -> Intrq {
        let work = std::mem::replace(&mut self.work, Work::Idle);
        match (work, ended) {
            (Work::Reset, _) => Intrq::Unchanged,
            (Work::Search(search), ended) => self.search(search.after(ended.is_ok())),
            (Work::Dma(transfer) | Work::Block(transfer), Err(error)) => {
                if is_unreadable(error) && Search::is_possible(&transfer) {
                    self.search(Search::after_error(transfer, block_of(&transfer)))
                } else {
                    self.disk_failed(Some(&transfer), error)
                }
            }
            (_, Err(error)) => self.disk_failed(None, error),
            (Work::Block(transfer), Ok(())) => match transfer.operation {
                Operation::Read => self.offer_block(transfer),
                Operation::Write => match self.advance(transfer) {
                    Some(transfer) => self.offer_block(transfer),
                    None => self.succeed(),
                },
                Operation::Verify => match self.advance(transfer) {
                    Some(transfer) => self.disk_block(transfer),
                    None => self.succeed(),
                },
            },
            (Work::Dma(transfer), Ok(())) => {
                self.footprint = Footprint::NONE;
                let _ = self.advance(transfer);
                self.succeed()
            }
            (Work::Discard(ranges), Ok(())) => self.discard(ranges),
            (Work::Flush(settings), Ok(())) => {
                self.settings = settings.unwrap_or(self.settings);
                self.succeed()
            }
            (work, Ok(())) => {
                debug_assert!(false, "{work:?} has no disk request");
                self.fail(Error::ABRT)
            }
        }
    }

    /// Start the disk request of a transfer's next block.
    fn disk_block(&mut self, transfer: Transfer) -> Intrq {
        let count = block_of(&transfer);
        let block = self.port.block(self.bytes(count) as usize);
        self.push(&transfer, Sectors { count, ..transfer.sectors }, &[block]);
        self.wait_for(Work::Block(transfer))
    }

    /// Set DRQ: the guest transfers the next block through the data port.
    fn offer_block(&mut self, transfer: Transfer) -> Intrq {
        self.port.open(self.bytes(block_of(&transfer)) as usize);
        self.status = READY | Status::DRQ;
        self.work = Work::Port(transfer);
        Intrq::Raise
    }

    fn offer_drive_data(&mut self, data: DriveData) -> Intrq {
        let data = match data {
            DriveData::Identify => identify::identify(self.medium.info(), &self.settings, &self.serial),
            DriveData::SmartAttributes => identify::smart_attributes(),
            DriveData::SmartLog => identify::smart_log(),
        };
        self.port.fill(&data);
        self.port.open(data.len());
        self.status = READY | Status::DRQ;
        self.work = Work::DriveData;
        Intrq::Raise
    }

    /// Make the next step of a search for the first unreadable sector.
    fn search(&mut self, next: Next) -> Intrq {
        match next {
            Next::Read(search) => {
                self.read_again(&search);
                self.wait_for(Work::Search(search))
            }
            Next::Found(transfer, lba) => self.cannot_read(&transfer, lba),
            Next::AllRead(transfer) => {
                self.work = match transfer.protocol {
                    Protocol::Dma => Work::Dma(transfer),
                    Protocol::Pio(_) => Work::Block(transfer),
                };
                self.step_ended(Ok(()))
            }
        }
    }

    fn read_again(&mut self, search: &Search) {
        let (transfer, sectors) = (search.transfer(), search.piece());
        let len = self.bytes(sectors.count);
        let mut part = std::mem::take(&mut self.part);
        part.clear();
        match transfer.protocol {
            Protocol::Dma => {
                let start = (sectors.lba - transfer.sectors.lba) << self.medium.info().logical_sector.shift();
                gather::slice(&self.bufs, start, len, &mut part);
            }
            Protocol::Pio(_) => part.push(self.port.block(len as usize)),
        }
        self.push(transfer, sectors, &part);
        self.part = part;
    }

    fn push(&mut self, transfer: &Transfer, sectors: Sectors, bufs: &[IoBuf]) {
        let op = match transfer.operation {
            Operation::Write => Op::Write { fua: self.is_write_through() },
            _ => Op::Read,
        };
        let shift = self.medium.info().logical_sector.shift();
        self.medium.push(op, sectors.lba << shift, self.bytes(sectors.count), bufs);
    }

    /// Whether each write must be on stable storage when it completes.
    const fn is_write_through(&self) -> bool {
        self.medium.info().volatile_cache && !self.settings.write_cache
    }

    fn flush(&mut self, then: Option<Settings>) -> Intrq {
        self.medium.push(Op::Flush, 0, 0, &[]);
        self.wait_for(Work::Flush(then))
    }

    /// Discard the last of these ranges; the others follow.
    fn discard(&mut self, mut ranges: Vec<Range>) -> Intrq {
        match ranges.pop() {
            Some(Range { offset, len }) => {
                self.medium.push(Op::Discard, offset, len, &[]);
                self.wait_for(Work::Discard(ranges))
            }
            None if self.is_write_through() => self.flush(None),
            None => self.succeed(),
        }
    }

    /// One block of a transfer is done (with DMA: all of it). Returns the remaining transfer, if any.
    fn advance(&mut self, transfer: Transfer) -> Option<Transfer> {
        let done = block_of(&transfer);
        let Sectors { lba, count } = transfer.sectors;
        let sectors = Sectors { lba: lba + u64::from(done), count: count - done };
        self.taskfile.set_sectors(transfer.addressing, sectors);
        (sectors.count > 0).then_some(Transfer { sectors, ..transfer })
    }

    fn bytes(&self, sectors: u32) -> u64 {
        u64::from(sectors) << self.medium.info().logical_sector.shift()
    }

    /// Fail the command after a disk error. For a transfer, the address registers get its first sector.
    fn disk_failed(&mut self, transfer: Option<&Transfer>, error: IoError) -> Intrq {
        if let Some(transfer) = transfer {
            self.taskfile.set_sectors(transfer.addressing, transfer.sectors);
        }
        match (error, transfer) {
            (IoError::OutOfRange, _) => self.fail(Error::IDNF),
            (error, _) if !is_unreadable(error) => self.fail(Error::ABRT),
            (_, Some(transfer)) if transfer.operation != Operation::Write => {
                self.cannot_read(transfer, transfer.sectors.lba)
            }
            _ => {
                let intrq = self.fail(Error::ABRT);
                self.status.insert(Status::DF);
                intrq
            }
        }
    }

    /// Fail the command: `lba` is the first unreadable sector. The sectors before it are in guest memory.
    fn cannot_read(&mut self, transfer: &Transfer, lba: u64) -> Intrq {
        let Sectors { lba: first, count } = transfer.sectors;
        self.taskfile.set_sectors(transfer.addressing, Sectors { lba, count: count - (lba - first) as u32 });
        self.fail(Error::UNC)
    }

    fn succeed(&mut self) -> Intrq {
        self.end(READY);
        Intrq::Raise
    }

    fn succeed_silently(&mut self) -> Intrq {
        self.end(READY);
        Intrq::Unchanged
    }

    fn fail(&mut self, error: Error) -> Intrq {
        self.error = error;
        self.counts.failed += 1;
        self.end(READY | Status::ERR);
        Intrq::Raise
    }

    fn end(&mut self, status: Status) {
        self.counts.ended += 1;
        self.status = status;
        self.work = Work::Idle;
        self.port.close();
    }

    /// A software reset aborts the command without an interrupt. A disk request in flight continues, and the drive is busy until that
    /// completes.
    pub(super) fn begin_reset(&mut self) {
        self.port.close();
        // The aborted command counts as ended.
        self.counts.ended = self.counts.commands;
        self.work = if self.medium.is_busy() { Work::Reset } else { Work::Idle };
        self.status = READY | Status::BSY;
    }

    /// Whether a disk request from before the reset is still in flight.
    pub(super) const fn is_busy(&self) -> bool {
        self.medium.is_busy()
    }

    /// The guest has cleared SRST, and no disk request is in flight.
    pub(super) fn end_reset(&mut self) {
        self.settings.software_reset();
        self.pass_diagnostic();
    }

    /// Set the power-on state. Nothing may be in flight.
    pub(super) fn power_on(&mut self) {
        self.medium.power_on();
        self.settings = Settings::new(self.medium.info().volatile_cache);
        self.work = Work::Idle;
        self.port.close();
        self.pass_diagnostic();
    }

    /// Set the state after a passed diagnostic.
    pub(super) fn pass_diagnostic(&mut self) {
        self.taskfile.set_signature();
        self.error = Error::PASSED;
        self.status = READY;
    }
}

/// Whether this is an error of the medium, not a rejected request.
const fn is_unreadable(error: IoError) -> bool {
    use IoError::{Misaligned, OutOfRange, ReadOnly, Unsupported};
    !matches!(error, OutOfRange | Misaligned | ReadOnly | Unsupported)
}

/// Sectors of a transfer's next disk request.
fn block_of(transfer: &Transfer) -> u32 {
    match transfer.protocol {
        Protocol::Pio(block) => transfer.sectors.count.min(block.into()),
        Protocol::Dma => transfer.sectors.count,
    }
}
