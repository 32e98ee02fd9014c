//! The I/O queue of all disks with files: the format maps requests to file extents, an engine transfers the data.
//!
//! The queue validates a request, maps it to extents, splits it into pieces of at most one transfer each, and starts them. The request
//! completes when all its pieces have ended. If the format cannot map the request without blocking, a helper thread maps it and returns the
//! extents. Pieces wait in order until the engine has a free slot and, if they need one, the pool has a free bounce buffer.
//!
//! ```text
//! push -> check -> Format::map_* --Ready----> pieces -> engine (io_uring, threads) -> reap
//!                         |             ^     pieces -> inline I/O (if allowed) ----^
//!                         `--Blocked-> helper thread: prepare_* and map_*, discard, write_zeroes
//!                                      flusher thread: flush
//! ```
//!
//! If direct I/O has units that are larger than 512 bytes, a helper thread makes the transfers that do not fill them ([`part`]).
//!
//! Flushes run on their own thread, by [`Format::flush`] or [`BackingFile::sync`](crate::BackingFile::sync). One flush completes all flush
//! requests that wait when it starts. A write with force unit access is a write with RWF_DSYNC if the files are open for direct I/O and the
//! format has no metadata to record, else a write and a flush.
//!
//! If an invariant of the queue is broken ([`FileQueue::fault`]), the requests in flight end with an error as soon as neither engine nor
//! helpers use their buffers. All later requests fail at once.
#![allow(unsafe_code, reason = "promises the engine that a slot's buffers stay in place")]

mod bounce;
mod create;
mod helper;
mod inline_io;
mod part;
mod retry;
mod slot;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{self, Arc};
use std::thread;

use rustix::io::Errno;

use crate::contract::error::{IoError, OpenError, PushError};
use crate::contract::info::DiskInfo;
use crate::contract::iobuf::IoBuf;
use crate::contract::queue::{Completion, DiskQueue, Op, QueueStats, Request, check};
use crate::host::backing::BackingFile;
use crate::host::backing::units::Units;
use crate::host::threads;
use crate::map::epochs::{Epochs, Participant};
use crate::map::extent::{Extent, Extents, Place};
use crate::map::format::{Flush, Format, Mapping, path_of};
use crate::queue::engine::{Direction, Engine, MAX_LEN, Signal, Transfer};

use bounce::Bounce;
pub(crate) use create::check_depth;
pub use create::file_queue;
#[cfg(test)]
pub(crate) use create::file_queue_with;
use helper::{Helpers, Job, JobKind};
use inline_io::Inline;
use part::PartialWork;
use retry::{AfterFailure, queue_faulted, request_failed};
use slot::{BAD_MAP, Piece, Slot};

// `helper` imports `sync`, `thread`, `threads` and `Signal` from here, because `interleavings` includes that module with a checker's types in
// their place.

/// The action that errors of the host name when a queue is made.
const REFUSED: &str = "cannot make an I/O queue";

struct FileQueue<E: Engine> {
    /// The first field, so dropped first: its drop waits until nothing uses the memory below.
    engine: E,
    helpers: Helpers,
    format: Arc<dyn Format>,
    /// As many as the queue is deep.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose next piece waits for the engine or for a bounce buffer, in order.
    waiting: VecDeque<u32>,
    /// Pieces (slot, number) that are to be transferred again, and wait for the engine.
    again: VecDeque<(u32, usize)>,
    ready: Vec<Completion>,
    extents: Extents,
    bounce: Bounce,
    /// The epochs of the requests in flight, for formats that reclaim blocks.
    participant: Option<Participant>,
    in_flight: usize,
    /// RWF_DSYNC is not used: a write with force unit access is a plain write and a flush.
    no_dsync: bool,
    /// The error of all requests, after an invariant of the queue was broken.
    faulted: Option<IoError>,
    /// The queue itself has staged operations, and must submit them: the owner does not know of them, and may never call `submit`.
    needs_submit: bool,
    /// A file has units of direct I/O that are larger than 512 bytes.
    has_units: bool,
    /// Transfers that the queue's own thread makes: none before [`DiskQueue::allow_blocking`].
    inline: Inline,
    /// Jobs sent to the helper and the flusher, except pauses.
    slow: u64,
}

impl<E: Engine> FileQueue<E> {
    fn new(format: &Arc<dyn Format>, engine: E, depth: u32) -> Result<Self, OpenError> {
        let info = format.info();
        let cached = format.files().iter().any(|file| file.writable() && file.direct().is_none());
        let unit = format.files().iter().filter_map(|file| file.units()).map(Units::bytes).max();
        let depth = depth as usize;
        Ok(Self {
            engine,
            helpers: Helpers::default(),
            format: Arc::clone(format),
            slots: std::iter::repeat_with(Slot::new).take(depth).collect(),
            free: (0..depth as u32).rev().collect(),
            waiting: VecDeque::with_capacity(depth),
            again: VecDeque::new(),
            ready: Vec::with_capacity(depth),
            extents: Extents::new(),
            bounce: Bounce::new(info, unit.unwrap_or(1))
                .map_err(OpenError::os(path_of(&**format), REFUSED))?,
            participant: format.epochs().map(Epochs::enter),
            in_flight: 0,
            no_dsync: cached,
            faulted: None,
            needs_submit: false,
            has_units: unit.is_some(),
            inline: Inline::default(),
            slow: 0,
        })
    }

    /// Map the request of a slot, and start it.
    #[inline]
    fn map_and_start(&mut self, index: u32, bufs: &[IoBuf]) {
        let slot = &self.slots[index as usize];
        self.extents.clear();
        let (offset, len, writes) = (slot.offset, slot.len, slot.op != Op::Read);
        let mapping = match writes {
            false => self.format.map_read(offset, len, &mut self.extents),
            true => self.format.map_write(offset, len, &mut self.extents),
        };
        match mapping {
            Ok(Mapping::Ready) => self.start_mapped(index, bufs, writes),
            Ok(Mapping::Blocked) => self.map_on_helper(index, bufs, writes),
            Err(error) => self.finish(index, Err(error)),
        }
    }

    /// Let the helper thread map the request. `reap_helpers` then starts it.
    fn map_on_helper(&mut self, index: u32, bufs: &[IoBuf], writes: bool) {
        if writes && bufs.iter().all(IoBuf::is_zero) {
            // If the parent reads as zeros, too, nothing has to be allocated.
            return self.help(index, JobKind::WriteZeroes { may_unmap: false });
        }
        let slot = &mut self.slots[index as usize];
        slot.bufs.clear();
        slot.bufs.extend_from_slice(bufs);
        self.help(index, JobKind::Map { writes });
    }

    /// Start a request that is mapped (`extents`).
    #[inline]
    fn start_mapped(&mut self, index: u32, bufs: &[IoBuf], writes: bool) {
        let slot = &mut self.slots[index as usize];
        let len = slot.len;
        if self.has_units && !slot.register_units(&*self.format, self.extents.as_slice(), writes) {
            let nowhere = writes && self.extents.as_slice().iter().any(|extent| extent.place == Place::Zeros);
            if self.extents.total() != len || nowhere {
                return self.finish(index, Err(BAD_MAP));
            }
            let work = PartialWork { writes, bufs: bufs.to_vec(), extents: self.extents.as_slice().to_vec() };
            // The helper writes without RWF_DSYNC.
            slot.sync_after |= slot.op == (Op::Write { fua: true });
            return self.help(index, JobKind::Partial(Arc::new(work)));
        }
        slot.next = 0;
        slot.bounced = false;
        // One buffer in one extent, as nearly all requests are.
        if let ([buf], [Extent { len: mapped, place: Place::File { file, offset } }]) =
            (bufs, self.extents.as_slice())
            && *mapped == len
            && len <= MAX_LEN
            && self.bounce.address_fits(buf)
        {
            slot.pieces.clear();
            slot.pieces.push(Piece::single(*buf, *file, *offset));
        } else if let Err(error) = self.plan(index, bufs, writes) {
            return self.finish(index, Err(error));
        }
        if self.waiting.is_empty() {
            self.start_pieces(index);
        } else {
            self.waiting.push_back(index);
        }
    }

    /// Split a request into pieces: any number of buffers, any number of extents.
    fn plan(&mut self, index: u32, bufs: &[IoBuf], writes: bool) -> Result<(), IoError> {
        let direct = bufs.iter().all(|buf| self.bounce.fits(buf));
        let extents = self.extents.as_slice();
        let slot = &mut self.slots[index as usize];
        let nowhere = writes && extents.iter().any(|extent| extent.place == Place::Zeros);
        if self.extents.total() != slot.len || nowhere {
            return Err(BAD_MAP);
        }
        if direct {
            slot.plan_direct(bufs, extents)?;
        } else {
            self.bounce.requests += 1;
            slot.bounced = true;
            slot.plan_bounced(bufs, extents, bounce::UNIT);
        }
        Ok(())
    }

    /// Send a job for the request to the helper or the flusher.
    fn help(&mut self, index: u32, kind: JobKind) {
        let slot = &self.slots[index as usize];
        let job = Job { slot: index, kind, offset: slot.offset, len: slot.len };
        self.slow += 1;
        if let Err(errno) = self.send(job) {
            self.finish(index, Err(errno.into()));
        }
    }

    /// Send a job to the helper or the flusher.
    fn send(&mut self, job: Job) -> Result<(), Errno> {
        self.helpers.send(job, &self.format, self.engine.signal())?;
        self.engine.watch();
        self.needs_submit = true;
        Ok(())
    }

    /// Start the slot's next pieces; `false` if the slot now waits for the engine or a bounce buffer.
    #[inline]
    fn start_pieces(&mut self, index: u32) -> bool {
        loop {
            let slot = &mut self.slots[index as usize];
            let next = slot.next as usize;
            let Some(piece) = slot.pieces.get_mut(next) else { break };
            let ready = self.engine.has_capacity()
                && (!slot.bounced || self.bounce.assign(piece, &slot.iovs, slot.op != Op::Read));
            if !ready {
                self.waiting.push_front(index);
                return false;
            }
            slot.next += 1;
            slot.outstanding += 1;
            self.transfer_piece(index, next);
        }
        if self.slots[index as usize].outstanding == 0 {
            self.ended(index);
        }
        true
    }

    /// Transfer what is left of a piece, by inline I/O or by the engine.
    #[inline]
    fn transfer_piece(&mut self, index: u32, number: usize) {
        let slot = &self.slots[index as usize];
        let piece = &slot.pieces[number];
        let token = u64::from(index) | (number as u64) << 32;
        let direction = match slot.op {
            Op::Write { fua } => Direction::Write { dsync: fua && !slot.sync_after },
            _ => Direction::Read,
        };
        let bufs = slot.piece_bufs(piece);
        let transfer = Transfer { token, file: piece.file, offset: piece.offset, direction, bufs };
        if self.inline.transfer(&*self.format, &transfer) {
            return;
        }
        // SAFETY: the slice lies in the slot's `pieces` or `iovs`. They change only when the slot is planned, when a piece is advanced after
        // its transfer ended, and when a bounced piece gets its buffer before it starts: never while the engine has the piece. `engine` is
        // the first field, so it is dropped, and waits, before the slots.
        unsafe { self.engine.stage(&transfer) };
    }

    /// Transfer what is left of a piece that has started before. Its own place in the engine may be another's by now.
    #[cold]
    fn transfer_again(&mut self, index: u32, number: usize) {
        self.needs_submit = true;
        if self.engine.has_capacity() {
            self.transfer_piece(index, number);
        } else {
            self.again.push_back((index, number));
        }
    }

    /// A transfer of a piece ended. The token comes from the engine: it is checked.
    #[inline]
    fn piece_ended(&mut self, token: u64, result: Result<u32, Errno>) {
        let (index, number) = (token as u32, (token >> 32) as usize);
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return self.fault("the queue has no such slot");
        };
        let Some(piece) = slot.pieces.get(number) else {
            return self.fault("a request has no such piece");
        };
        let Some(outstanding) = slot.outstanding.checked_sub(1) else {
            return self.fault("a transfer ended twice");
        };
        match result {
            Ok(moved) if u64::from(moved) == piece.len => {}
            other => match slot.piece_failed(number, other, self.format.zeros_past_end()) {
                next @ (AfterFailure::Again | AfterFailure::AgainWithoutDsync) => {
                    self.no_dsync |= next == AfterFailure::AgainWithoutDsync;
                    return self.transfer_again(index, number);
                }
                AfterFailure::Later => {
                    let kind = JobKind::Pause { piece: number as u32 };
                    match self.send(Job { slot: index, kind, offset: 0, len: 0 }) {
                        Ok(()) => return,
                        Err(errno) => {
                            self.slots[index as usize].error.get_or_insert(errno.into());
                        }
                    }
                }
                AfterFailure::Done => {}
            },
        }
        let slot = &mut self.slots[index as usize];
        if slot.bounced {
            let read = slot.op == Op::Read && slot.error.is_none();
            if !self.bounce.release(&mut slot.pieces[number], &slot.iovs, read) {
                return self.fault("a piece has no bounce buffer");
            }
        }
        slot.outstanding = outstanding;
        if outstanding == 0 && slot.next as usize >= slot.pieces.len() {
            self.ended(index);
        }
    }

    /// All pieces of a request have ended.
    #[inline]
    fn ended(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        if let Some(error) = slot.error {
            return self.finish(index, Err(error));
        }
        if slot.op != Op::Read {
            self.format.written(slot.offset, slot.len);
            if let Some(errno) = slot.dsync_failed {
                // The repeated plain write succeeded. So the error of the write with RWF_DSYNC was that of its flush.
                for file in self.writable() {
                    let _ = file.flush_failed(errno);
                }
            }
            // RWF_DSYNC covers the data, but not the metadata that the format has to record about them.
            let fua = slot.op == (Op::Write { fua: true });
            if slot.sync_after || fua && self.format.flush_kind() == Flush::Format {
                return self.flush(index);
            }
        }
        self.finish(index, Ok(()));
    }

    fn writable(&self) -> impl Iterator<Item = &BackingFile> {
        self.format.files().iter().map(|file| &**file).filter(|file| file.writable())
    }

    /// Flush for the request: it completes when all completed writes are on stable storage.
    fn flush(&mut self, index: u32) {
        if self.format.flush_kind() == Flush::SyncFiles && self.writable().next().is_none() {
            return self.finish(index, Ok(()));
        }
        self.help(index, JobKind::Flush);
    }

    #[inline]
    fn finish(&mut self, index: u32, result: Result<(), IoError>) {
        let slot = &mut self.slots[index as usize];
        if let Some(participant) = &mut self.participant {
            participant.end(slot.epoch_parity);
        }
        if self.has_units {
            slot.unregister_units(&*self.format);
        }
        let result = result.inspect_err(|error| request_failed(&*self.format, slot, *error));
        self.ready.push(Completion { tag: slot.tag, result });
        self.free.push(index);
    }

    /// Process the results of engine and helpers, and start pieces that waited for the engine or a bounce buffer.
    #[inline]
    fn advance(&mut self) {
        loop {
            self.advance_once();
            // Inline transfers do not wake the queue, so collect them here.
            if self.inline.is_empty() {
                return;
            }
        }
    }

    #[inline]
    fn advance_once(&mut self) {
        if let Some(error) = self.faulted {
            return self.advance_faulted(error);
        }
        while let Some((token, result)) = self.inline.next().or_else(|| self.engine.next()) {
            self.piece_ended(token, result);
        }
        if let Some(errno) = self.engine.lost() {
            self.fail_all(errno);
        }
        if self.helpers.busy() {
            self.reap_helpers();
        }
        while self.engine.has_capacity()
            && let Some((index, number)) = self.again.pop_front()
        {
            self.transfer_again(index, number);
        }
        while let Some(index) = self.waiting.pop_front() {
            self.needs_submit = true;
            if !self.start_pieces(index) {
                break;
            }
        }
        if self.needs_submit {
            self.needs_submit = false;
            self.engine.submit();
        }
        if let Some(error) = self.faulted {
            self.advance_faulted(error);
        }
    }

    fn reap_helpers(&mut self) {
        while let Some((job, result)) = self.helpers.next() {
            let index = job.slot;
            let slot = &mut self.slots[index as usize];
            match (job.kind, result) {
                (JobKind::Pause { piece }, _) => self.transfer_again(index, piece as usize),
                (JobKind::Map { writes }, Ok(extents)) => {
                    let bufs = std::mem::take(&mut slot.bufs);
                    self.extents.clear();
                    self.extents.append(&extents);
                    self.start_mapped(index, &bufs, writes);
                    self.slots[index as usize].bufs = bufs;
                    self.needs_submit = true;
                }
                (JobKind::Partial(_), Ok(_)) => self.ended(index),
                // A write of zeros, with force unit access.
                (JobKind::WriteZeroes { .. }, Ok(_)) if slot.op == (Op::Write { fua: true }) => {
                    self.flush(index)
                }
                (_, result) => self.finish(index, result.map(drop)),
            }
        }
        if self.helpers.busy() {
            self.engine.watch();
            self.needs_submit = true;
        }
    }

    /// An invariant is broken: a request might never end, or end with another one's data. All requests fail from now on.
    #[cold]
    fn fault(&mut self, what: &'static str) {
        self.faulted.get_or_insert_with(|| queue_faulted(what));
    }

    /// Complete all requests with an error, after engine and helpers have released all buffers.
    #[cold]
    fn advance_faulted(&mut self, error: IoError) {
        self.waiting.clear();
        self.again.clear();
        self.inline.clear();
        while self.engine.next().is_some() {}
        let _ = self.engine.lost();
        while self.helpers.next().is_some() {}
        if self.helpers.busy() {
            self.engine.watch();
        }
        if self.engine.in_flight() > 0 || self.helpers.busy() {
            return self.engine.submit();
        }
        let idle: BTreeSet<u32> = self.free.iter().copied().collect();
        (0..self.slots.len() as u32).filter(|index| !idle.contains(index)).for_each(|index| {
            self.finish(index, Err(error));
        });
        self.in_flight = self.ready.len();
    }

    /// The engine failed, and all its operations have ended. Fail their requests.
    #[cold]
    fn fail_all(&mut self, errno: Errno) {
        let waiting = std::mem::take(&mut self.waiting);
        self.again.clear();
        for index in 0..self.slots.len() as u32 {
            let slot = &mut self.slots[index as usize];
            // Other requests are with the helpers.
            if slot.outstanding == 0 && !waiting.contains(&index) {
                continue;
            }
            if slot.pauses() {
                // The helper may be pausing for one of the slot's pieces. A fault waits for the helper.
                return self.fault("the I/O engine was lost while transfers are repeated");
            }
            slot.outstanding = 0;
            slot.pieces.iter_mut().for_each(|piece| self.bounce.reclaim(piece));
            self.finish(index, Err(errno.into()));
        }
    }
}

impl<E: Engine> DiskQueue for FileQueue<E> {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        if self.in_flight >= self.slots.len() {
            return Err(PushError::Full);
        }
        let info: &DiskInfo = self.format.info();
        if let Err(error) = self.faulted.map_or(Ok(()), Err).and_then(|()| check(info, request)) {
            self.in_flight += 1;
            self.ready.push(Completion { tag: request.tag, result: Err(error) });
            return Ok(());
        }
        // After a failed flush of a file, a write with RWF_DSYNC might succeed, although every flush must fail. So the queue makes a plain
        // write and a flush, and the flush fails.
        let flush_lost = request.op == (Op::Write { fua: true })
            && !self.no_dsync
            && self.writable().any(|file| file.check_flushes().is_err());
        // Fewer than `depth` requests are in flight, so a slot is free.
        let Some(index) = self.free.pop() else { return Err(PushError::Full) };
        self.in_flight += 1;
        let slot = &mut self.slots[index as usize];
        slot.occupy(request);
        if let (Some(participant), Some(epochs)) = (&mut self.participant, self.format.epochs()) {
            slot.epoch_parity = participant.begin(epochs);
        }
        slot.sync_after = request.op == (Op::Write { fua: true })
            && (self.no_dsync || flush_lost || self.format.flush_kind() == Flush::Format);
        match request.op {
            Op::Read | Op::Write { .. } if request.len > 0 => self.map_and_start(index, request.bufs),
            Op::Flush => self.flush(index),
            Op::Discard if request.len > 0 => self.help(index, JobKind::Discard),
            Op::WriteZeroes { may_unmap } if request.len > 0 => {
                self.help(index, JobKind::WriteZeroes { may_unmap })
            }
            _ => self.finish(index, Ok(())),
        }
        Ok(())
    }

    fn submit(&mut self) {
        self.engine.submit();
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        self.advance();
        self.in_flight -= self.ready.len();
        out.append(&mut self.ready);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn allow_blocking(&mut self) {
        self.inline.allow(self.format.files(), self.slots.len());
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.engine.event()
    }

    fn eventfd(&mut self) -> Result<OwnedFd, IoError> {
        Ok(self.engine.eventfd()?)
    }

    fn wait(&mut self) {
        self.engine.submit();
        self.advance();
        while self.ready.is_empty() && self.in_flight > 0 {
            self.engine.wait();
            self.advance();
        }
    }

    fn engine(&self) -> &'static str {
        self.engine.name()
    }

    fn stats(&self) -> QueueStats {
        let engine = self.engine.stats();
        QueueStats {
            submits: engine.submits,
            submit_ticks: engine.ticks,
            bounced: self.bounce.requests,
            slow: self.slow,
        }
    }
}

impl<E: Engine> Drop for FileQueue<E> {
    /// Waits for the requests in flight. No buffer is accessed afterwards.
    fn drop(&mut self) {
        while self.engine.in_flight() > 0 || !self.waiting.is_empty() || self.helpers.busy() {
            self.engine.wait();
            self.advance();
        }
    }
}

#[cfg(test)]
mod helper_tests;
#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
