//! The runs of a disk: mapped or zeros, and in which file.

use std::sync::atomic::{AtomicBool, Ordering};

use super::content::{Content, ImageError, LastStatus};
use crate::contract::disk::Status;
use crate::map::extent::{Extent, Extents, Place};

/// Bytes that are mapped at a time. Bounds the memory for disks of any size.
pub(crate) const WINDOW: u64 = 16 << 20;
/// Maximum window while windows have few extents, so that large holes are fast.
const WIDEST: u64 = 4 << 30;
/// Maximum number of extents of a window that count as few.
const FEW: usize = 64;

/// A run of a disk: adjacent sectors with the same status, and adjacent in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Byte offset on the disk.
    pub offset: u64,
    /// Bytes; whole logical sectors.
    pub len: u64,
    /// Mapped, or reads as zeros.
    pub status: Status,
    /// Location in the format's files. [`Status::Zeros`] in a file is a hole of that file.
    pub place: Place,
}

/// The runs of a disk in ascending order, for files that are not written meanwhile. Memory is bounded; after an error the iterator ends.
pub struct Runs<'a> {
    content: Content<'a>,
    at: u64,
    end: u64,
    /// Size of the next window in bytes.
    width: u64,
    /// The mapped window, the number of its extents that were used, and the remainder of the last of these.
    window: Extents,
    taken: usize,
    rest: Option<Extent>,
    /// The current run, which the next piece may extend.
    open: Option<Run>,
    last_status: LastStatus,
}

impl<'a> Runs<'a> {
    /// The runs of a whole disk.
    #[must_use]
    pub fn new(content: Content<'a>) -> Self {
        Self::between(content, 0, content.capacity())
    }

    /// The runs from byte `start` to `end`; whole sectors, clamped to the end of the disk.
    #[must_use]
    pub fn between(content: Content<'a>, start: u64, end: u64) -> Self {
        let end = end.min(content.capacity());
        Self {
            content,
            at: start,
            end,
            width: WINDOW,
            window: Extents::new(),
            taken: 0,
            rest: None,
            open: None,
            last_status: LastStatus::new(),
        }
    }

    /// Go on with the runs from byte `start` to `end` of the same content, which has not changed.
    pub(crate) fn restart(&mut self, start: u64, end: u64) {
        (self.at, self.end, self.width) = (start, end.min(self.content.capacity()), WINDOW);
        (self.taken, self.rest, self.open) = (self.window.as_slice().len(), None, None);
    }

    /// The next piece, before merging with its neighbors.
    fn step(&mut self) -> Result<Option<Run>, ImageError> {
        if self.at >= self.end {
            return Ok(None);
        }
        let Some(extent) = self.next_extent()? else { return Ok(None) };
        let (status, len) = match extent.place {
            Place::Zeros => (Status::Zeros, extent.len),
            Place::File { file, offset } => {
                let part = self.content.allocation(file, offset, extent.len, &mut self.last_status)?;
                (part.status, part.len)
            }
        };
        if len < extent.len {
            self.rest = Some(Extent { len: extent.len - len, place: extent.place.advanced(len) });
        }
        let run = Run { offset: self.at, len, status, place: extent.place };
        self.at += len;
        Ok(Some(run))
    }

    fn next_extent(&mut self) -> Result<Option<Extent>, ImageError> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(rest));
        }
        if self.taken == self.window.as_slice().len() {
            let len = (self.end - self.at).min(self.width);
            self.taken = 0;
            self.content.pieces(self.at, len, &mut self.window)?;
            let few = self.window.as_slice().len() <= FEW;
            self.width = if few { (2 * self.width).min(WIDEST) } else { WINDOW };
        }
        let extent = self.window.as_slice().get(self.taken).copied();
        self.taken += 1;
        Ok(extent)
    }
}

impl Iterator for Runs<'_> {
    type Item = Result<Run, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.step() {
                Ok(Some(piece)) => match &mut self.open {
                    Some(run) if run.status == piece.status && run.place.advanced(run.len) == piece.place => {
                        run.len += piece.len;
                    }
                    open => {
                        if let Some(run) = open.replace(piece) {
                            return Some(Ok(run));
                        }
                    }
                },
                Ok(None) => return self.open.take().map(Ok),
                Err(error) => {
                    (self.at, self.open) = (self.end, None);
                    return Some(Err(error));
                }
            }
        }
    }
}

/// Offset at which the zeros that begin at `start` end, by the map: `start` if there are none, `u64::MAX` if they reach
/// the end.
///
/// # Errors
/// Errors of mapping; [`ImageError::Cancelled`]: there may be very many of them.
pub(crate) fn zeros_until(content: Content<'_>, start: u64, cancel: &AtomicBool) -> Result<u64, ImageError> {
    let mut runs = Runs::between(content, start, content.capacity());
    while let Some(piece) = runs.step()? {
        if cancel.load(Ordering::Relaxed) {
            return Err(ImageError::Cancelled);
        }
        if piece.status == Status::Mapped {
            return Ok(piece.offset);
        }
    }
    Ok(u64::MAX)
}

#[cfg(test)]
mod tests;
