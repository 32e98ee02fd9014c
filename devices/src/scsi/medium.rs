//! The medium of a unit: the disk, its queue, the block geometry, and the mode parameters, which determine how blocks
//! are written.

use std::sync::Arc;

use paradisk_disk_formats::{Completion, Disk, DiskInfo, DiskQueue, IoBuf, Op, Request};

use super::cdb::Blocks;
use super::mode::{MediumInfo, Modes};
use super::sense::{Key, Sense, asc};
use super::{gather, limits};

/// Tag of flushes whose command has already ended; task numbers have 32 bits.
pub(super) const BACKGROUND: u64 = u64::MAX;

/// A disk with its SCSI properties.
pub(super) struct Medium {
    queue: Box<dyn DiskQueue>,
    disk: Arc<dyn Disk>,
    /// Base-2 logarithm of the logical block length.
    shift: u32,
    blocks: u64,
    /// Maximum transfer length, in blocks.
    max_blocks: u64,
    /// The disk or SWP refuses writes.
    protected: bool,
    /// Completed writes may be lost until a flush.
    volatile: bool,
    /// Every write must be on stable storage when it ends: WCE is off on a disk with a volatile cache.
    write_through: bool,
    modes: Modes,
    /// Requests were pushed since the last submit.
    pushed: bool,
    /// Flushes in flight whose command has ended.
    background: u32,
    /// A list of buffers, kept to reuse its memory.
    list: Vec<IoBuf>,
}

impl Medium {
    /// A medium with `disk`; `queue` is a queue of this disk.
    pub(super) fn new(disk: Arc<dyn Disk>, queue: Box<dyn DiskQueue>) -> Self {
        let info = disk.info();
        let shift = info.logical_sector.shift();
        Self {
            shift,
            blocks: info.sectors(),
            max_blocks: limits::TRANSFER_BYTES >> shift,
            protected: info.read_only,
            volatile: info.volatile_cache,
            write_through: false,
            modes: Modes::new(info.volatile_cache),
            pushed: false,
            background: 0,
            list: Vec::new(),
            queue,
            disk,
        }
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    pub(super) fn info(&self) -> &DiskInfo {
        self.disk.info()
    }

    pub(super) fn queue(&self) -> &dyn DiskQueue {
        &*self.queue
    }

    #[inline]
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// The reported capacity, in blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Compare the capacity with what was reported. True: it has changed.
    pub(super) fn refresh(&mut self) -> bool {
        let reported = std::mem::replace(&mut self.blocks, self.disk.info().sectors());
        reported != self.blocks
    }

    /// The values for mode pages.
    pub(super) fn mode_info(&self) -> MediumInfo {
        let info = self.disk.info();
        MediumInfo {
            blocks: self.blocks,
            block_len: info.logical_sector.bytes(),
            volatile_cache: info.volatile_cache,
            read_only: info.read_only,
        }
    }

    pub(super) fn modes(&self) -> Modes {
        self.modes
    }

    pub(super) fn set_modes(&mut self, modes: Modes) {
        self.modes = modes;
        self.protected = self.disk.info().read_only || modes.write_protect;
        self.write_through = self.volatile && !modes.write_cache;
    }

    /// The mode parameters after power on.
    pub(super) fn reset_modes(&mut self) {
        self.set_modes(Modes::new(self.volatile));
    }

    /// Byte offset and length of a block range. Fails if it is not on the medium.
    #[inline]
    pub(super) fn range(&self, blocks: Blocks) -> Result<(u64, u64), Sense> {
        let count = u64::from(blocks.count);
        if blocks.lba >= self.blocks || count > self.blocks - blocks.lba {
            return Err(Sense::illegal(asc::LBA_OUT_OF_RANGE));
        }
        Ok((blocks.lba << self.shift, count << self.shift))
    }

    /// As [`range`](Self::range). Fails also above the maximum transfer length.
    #[inline]
    pub(super) fn transfer_range(&self, blocks: Blocks) -> Result<(u64, u64), Sense> {
        let range = self.range(blocks)?;
        match u64::from(blocks.count) > self.max_blocks {
            true => Err(Sense::illegal(asc::INVALID_FIELD_IN_CDB)),
            false => Ok(range),
        }
    }

    /// Fails if the medium is write-protected.
    #[inline]
    pub(super) fn writable(&self) -> Result<(), Sense> {
        if self.protected { Err(self.protection()) } else { Ok(()) }
    }

    #[cold]
    fn protection(&self) -> Sense {
        let by_disk = self.disk.info().read_only;
        Sense::new(
            Key::DataProtect,
            if by_disk { asc::WRITE_PROTECTED } else { asc::SOFTWARE_WRITE_PROTECTED },
        )
    }

    /// Whether a completed write may be lost until a flush.
    #[inline]
    pub(super) fn volatile(&self) -> bool {
        self.volatile
    }

    /// Whether every write must be on stable storage when it ends.
    pub(super) fn write_through(&self) -> bool {
        self.write_through
    }

    /// The operation of a write.
    #[inline]
    pub(super) fn write_op(&self, fua: bool) -> Op {
        Op::Write { fua: self.volatile && (fua || self.write_through) }
    }

    /// Push a disk request of a task; false: the queue is full.
    #[inline]
    pub(super) fn push(&mut self, id: u32, op: Op, offset: u64, len: u64, bufs: &[IoBuf]) -> bool {
        self.push_request(&Request { tag: u64::from(id), op, offset, len, bufs })
    }

    /// As [`push`](Self::push), with the range `[start, start + len)` of the buffers.
    pub(super) fn push_part(
        &mut self,
        id: u32,
        op: Op,
        (offset, len): (u64, u64),
        bufs: &[IoBuf],
        start: u64,
    ) -> bool {
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        gather::slice(bufs, start, len, &mut list);
        let taken = self.push(id, op, offset, len, &list);
        self.list = list;
        taken
    }

    /// Push a flush for a task; false: the queue is full.
    pub(super) fn push_flush(&mut self, id: u32) -> bool {
        self.push(id, Op::Flush, 0, 0, &[])
    }

    /// Push a flush for a command that ends before the flush; false: the queue is full.
    pub(super) fn push_background_flush(&mut self) -> bool {
        let flush = Request { tag: BACKGROUND, op: Op::Flush, offset: 0, len: 0, bufs: &[] };
        let taken = self.push_request(&flush);
        self.background += u32::from(taken);
        taken
    }

    #[inline]
    fn push_request(&mut self, request: &Request<'_>) -> bool {
        let taken = self.queue.push(request).is_ok();
        self.pushed |= taken;
        taken
    }

    /// Whether there are flushes in flight whose command has ended.
    pub(super) fn flushes(&self) -> bool {
        self.background > 0
    }

    /// A flush whose command has ended has completed. False: no such flush was in flight.
    pub(super) fn flush_completed(&mut self) -> bool {
        let any = self.background > 0;
        self.background -= u32::from(any);
        any
    }

    /// The queue has lost the flushes whose command has ended.
    pub(super) fn flushes_lost(&mut self) {
        self.background = 0;
    }

    /// Whether requests were pushed since the last submit.
    #[inline]
    pub(super) fn pushed(&self) -> bool {
        self.pushed
    }

    /// Submit the pushed requests.
    #[inline]
    pub(super) fn submit(&mut self) {
        if self.pushed {
            self.pushed = false;
            self.queue.submit();
        }
    }

    /// Take the disk's completions.
    #[inline]
    pub(super) fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.queue.reap(completions);
    }

    /// Submit, and block until a request has completed.
    pub(super) fn wait(&mut self) {
        self.pushed = false;
        self.queue.wait();
    }
}
