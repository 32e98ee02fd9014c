//! A request in flight, and its transfers.

use std::ops::Range;

use rustix::io::Errno;

use crate::contract::error::IoError;
use crate::contract::iobuf::{IoBuf, for_each_part};
use crate::contract::queue::{Op, Request};
use crate::map::extent::{Extent, Place};
use crate::map::format::Format;
use crate::queue::engine::{MAX_BUFS, MAX_LEN};

pub(super) const BAD_MAP: IoError = IoError::Damaged("the mapping does not cover the range");

/// A transfer between one run of a file and memory; after a short transfer, what is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The memory, if it is one buffer (`count` is 0).
    pub(super) buf: IoBuf,
    /// The memory, if it is several buffers: `iovs[first..first + count]` of the slot.
    pub(super) first: u32,
    pub(super) count: u32,
    /// Index of the file.
    pub(super) file: u32,
    /// Byte offset in the file.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) len: u64,
    /// Number of its bounce buffer.
    pub(super) bounce: Option<u32>,
    /// Its offset in the request and its length before any transfer, for bounced pieces.
    pub(super) start: u64,
    pub(super) total: u64,
}

impl Piece {
    /// A piece of one buffer and one run of a file.
    #[inline]
    pub(super) fn single(buf: IoBuf, file: u32, offset: u64) -> Self {
        let len = buf.len() as u64;
        Self { buf, first: 0, count: 0, file, offset, len, bounce: None, start: 0, total: len }
    }
}

/// A request in flight. The slot reuses the vectors' memory for later requests.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) tag: u64,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Pieces whose transfer has started and not ended.
    pub(super) outstanding: u32,
    /// The next piece to start.
    pub(super) next: u32,
    /// The payload goes through bounce buffers.
    pub(super) bounced: bool,
    /// A flush follows the transfer of the payload.
    pub(super) sync_after: bool,
    /// Number of retries after EAGAIN.
    pub(super) retries: u32,
    /// The error of the write with RWF_DSYNC. The write was then repeated without RWF_DSYNC.
    pub(super) dsync_failed: Option<Errno>,
    pub(super) error: Option<IoError>,
    /// Parity of its epoch ([`Participant::begin`](crate::map::epochs::Participant::begin)).
    pub(super) epoch_parity: u8,
    pub(super) pieces: Vec<Piece>,
    /// Buffers of the pieces; of a bounced request, the request's buffers.
    pub(super) iovs: Vec<IoBuf>,
    /// Registered writes in units of direct I/O: the file, and its range.
    pub(super) in_units: Vec<(u32, Range<u64>)>,
    /// The request's buffers while the helper maps it.
    pub(super) bufs: Vec<IoBuf>,
}

impl Slot {
    pub(super) fn new() -> Self {
        Self {
            tag: 0,
            op: Op::Flush,
            offset: 0,
            len: 0,
            outstanding: 0,
            next: 0,
            bounced: false,
            sync_after: false,
            retries: 0,
            dsync_failed: None,
            error: None,
            epoch_parity: 0,
            pieces: Vec::with_capacity(1),
            iovs: Vec::new(),
            in_units: Vec::new(),
            bufs: Vec::new(),
        }
    }

    /// Initialize the slot for a request. The queue then sets `sync_after` and `epoch_parity`, and sets `next` and the pieces when it starts
    /// the request.
    #[inline]
    pub(super) fn occupy(&mut self, request: &Request<'_>) {
        self.tag = request.tag;
        self.op = request.op;
        self.offset = request.offset;
        self.len = request.len;
        self.outstanding = 0;
        self.bounced = false;
        self.retries = 0;
        self.dsync_failed = None;
        self.error = None;
    }

    /// Split the request into transfers straight to and from its buffers. Zero-fills the buffers of extents without
    /// storage.
    ///
    /// # Errors
    /// If buffers and extents do not cover the same length; the queue has checked that they do.
    pub(super) fn plan_direct(&mut self, bufs: &[IoBuf], extents: &[Extent]) -> Result<(), IoError> {
        self.pieces.clear();
        self.iovs.clear();
        let mut rest = bufs.iter().copied().filter(|buf| !buf.is_empty());
        let mut buf = rest.next();
        let mut start = 0;
        for extent in extents {
            let mut left = extent.len;
            while left > 0 {
                let first = self.iovs.len();
                let mut len = 0;
                // One piece: as many buffers as one transfer can have.
                while left > 0 && len < MAX_LEN && self.iovs.len() - first < MAX_BUFS {
                    let Some(from) = buf else { break };
                    let take = (from.len() as u64).min(left).min(MAX_LEN - len);
                    let part = from.slice(0, take as usize);
                    match extent.place {
                        Place::Zeros => part.zero(),
                        Place::File { .. } => self.iovs.push(part),
                    }
                    len += take;
                    left -= take;
                    let remains = from.slice(take as usize, from.len());
                    buf = if remains.is_empty() { rest.next() } else { Some(remains) };
                }
                if let (Place::File { file, offset }, Some(only)) = (extent.place, self.iovs.get(first)) {
                    let count = self.iovs.len() - first;
                    self.pieces.push(Piece {
                        buf: *only,
                        first: first as u32,
                        count: if count == 1 { 0 } else { count as u32 },
                        file,
                        offset: offset + (extent.len - left - len),
                        len,
                        bounce: None,
                        start,
                        total: len,
                    });
                }
                start += len;
                if len == 0 {
                    return Err(IoError::Damaged("the buffers do not cover the range"));
                }
            }
        }
        Ok(())
    }

    /// Split the request into transfers of at most one bounce buffer (`unit` bytes) each.
    pub(super) fn plan_bounced(&mut self, bufs: &[IoBuf], extents: &[Extent], unit: u64) {
        self.pieces.clear();
        self.iovs.clear();
        self.iovs.extend_from_slice(bufs);
        let mut start = 0;
        for extent in extents {
            match extent.place {
                Place::Zeros => for_each_part(bufs, start, extent.len, |part| part.zero()),
                Place::File { file, offset } => {
                    let mut done = 0;
                    while done < extent.len {
                        let len = (extent.len - done).min(unit);
                        self.pieces.push(Piece {
                            buf: IoBuf::empty(),
                            first: 0,
                            count: 0,
                            file,
                            offset: offset + done,
                            len,
                            bounce: None,
                            start: start + done,
                            total: len,
                        });
                        done += len;
                    }
                }
            }
            start += extent.len;
        }
    }

    /// `done` bytes of a piece were transferred: drop them from the piece.
    pub(super) fn advance(&mut self, index: usize, done: u64) {
        let piece = &mut self.pieces[index];
        piece.offset += done;
        piece.len -= done.min(piece.len);
        if piece.count == 0 {
            piece.buf = piece.buf.slice(done as usize, piece.buf.len());
            return;
        }
        let mut left = done as usize;
        while let Some(buf) = self.iovs.get_mut(piece.first as usize).filter(|_| piece.count > 0) {
            if left < buf.len() {
                *buf = buf.slice(left, buf.len());
                return;
            }
            left -= buf.len();
            piece.first += 1;
            piece.count -= 1;
        }
    }

    /// The buffers of a piece.
    #[inline]
    pub(super) fn piece_bufs<'a>(&'a self, piece: &'a Piece) -> &'a [IoBuf] {
        match piece.count {
            0 => std::slice::from_ref(&piece.buf),
            count => &self.iovs[piece.first as usize..(piece.first + count) as usize],
        }
    }

    /// Register the extents of a write; `false` if the helper has to make the transfer, because an extent does not fill its units or a
    /// partial write excludes it.
    pub(super) fn register_units(&mut self, format: &dyn Format, extents: &[Extent], writes: bool) -> bool {
        for extent in extents {
            let Place::File { file, offset } = extent.place else { continue };
            let Some(units) = format.files().get(file as usize).and_then(|file| file.units()) else {
                continue;
            };
            let range = offset..offset.saturating_add(extent.len);
            if !units.filled_by(offset, extent.len) || writes && !units.try_begin(&range) {
                self.unregister_units(format);
                return false;
            }
            if writes {
                self.in_units.push((file, range));
            }
        }
        true
    }

    /// The transfers of the request have ended.
    pub(super) fn unregister_units(&mut self, format: &dyn Format) {
        for (file, range) in self.in_units.drain(..) {
            if let Some(units) = format.files().get(file as usize).and_then(|file| file.units()) {
                units.end(&range);
            }
        }
    }
}
