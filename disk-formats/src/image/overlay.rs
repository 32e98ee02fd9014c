//! What one image of a chain holds, written over the one below it.

use std::ops::{AddAssign, Range};

use super::buffer::Buffer;
use super::chunks::CHUNK;
use super::content::Content;
use super::error::ImageError;
use super::map::{Run, Runs, WINDOW};
use super::offload::Offload;
use super::zeros::all_zeros;
use crate::disk::Status;
use crate::map::extent::{Extents, Place};

/// Bytes by the way they were copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlaid {
    /// Shares its storage with the image above, or was copied by a file server.
    pub shared: u64,
    /// Read and written.
    pub written: u64,
    /// Zeros.
    pub zeros: u64,
}

impl AddAssign for Overlaid {
    fn add_assign(&mut self, other: Self) {
        self.shared += other.shared;
        self.written += other.written;
        self.zeros += other.zeros;
    }
}

/// Writes the sectors that an image holds itself over a disk. The image is opened without its parents: what it does not
/// hold is [`Place::Zeros`] in its map, and stays as it is below; zeros that it holds are stored in a file, if only as
/// a hole.
///
/// Nothing is on stable storage before the disk is flushed, and the image is only read: until then, and after a
/// failure, the chain reads as before.
pub(crate) struct Overlay<'a> {
    above: Content<'a>,
    below: Content<'a>,
    /// Zeros deallocate in the disk below.
    may_unmap: bool,
    offload: Offload<'a>,
    buffer: Buffer,
    extents: Extents,
    done: Overlaid,
}

impl<'a> Overlay<'a> {
    pub(crate) fn new(above: Content<'a>, below: Content<'a>, may_unmap: bool) -> Self {
        Self {
            above,
            below,
            may_unmap,
            offload: Offload::new(above, below),
            buffer: Buffer::new(CHUNK as usize),
            extents: Extents::new(),
            done: Overlaid::default(),
        }
    }

    /// Write what lies in this range; whole sectors. `progress` gets the byte that was reached, and says whether to go on.
    ///
    /// # Errors
    /// What reading or writing ends with; [`ImageError::Cancelled`].
    pub(crate) fn write(
        &mut self,
        range: Range<u64>,
        mut progress: impl FnMut(u64) -> bool,
    ) -> Result<(), ImageError> {
        for run in Runs::between(self.above, range.start, range.end) {
            let run = run?;
            let mut done = 0;
            while done < run.len {
                // What is absent takes no time, however long.
                let len = if run.place == Place::Zeros { run.len } else { (run.len - done).min(WINDOW) };
                let place = run.place.advanced(done);
                self.run(&Run { offset: run.offset + done, len, place, ..run })?;
                done += len;
                if !progress(run.offset + done) {
                    return Err(ImageError::Cancelled);
                }
            }
        }
        Ok(())
    }

    /// How much was written so far.
    pub(crate) fn done(&self) -> Overlaid {
        self.done
    }

    fn run(&mut self, run: &Run) -> Result<(), ImageError> {
        let end = run.offset + run.len;
        match (run.place, run.status) {
            (Place::Zeros, _) => Ok(()),
            (Place::File { .. }, Status::Zeros) => self.zero(run.offset, run.len),
            (Place::File { .. }, Status::Mapped) => match self.offload.copy(run, &mut self.extents)? {
                Some((part, _)) => {
                    self.done.shared += part.end - part.start;
                    self.copy(run.offset..part.start)?;
                    self.copy(part.end..end)
                }
                None => self.copy(run.offset..end),
            },
        }
    }

    fn copy(&mut self, range: Range<u64>) -> Result<(), ImageError> {
        let mut at = range.start;
        while at < range.end {
            let data = self.buffer.first(range.end - at);
            self.above.read_at(data, at)?;
            let len = data.len() as u64;
            if self.may_unmap && all_zeros(data) {
                self.zero(at, len)?;
            } else {
                self.below.write_at(data, at)?;
                self.done.written += len;
            }
            at += len;
        }
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) -> Result<(), ImageError> {
        self.done.zeros += len;
        let zeroed = self.below.format().write_zeroes(offset, len, self.may_unmap);
        zeroed.map_err(|error| ImageError::io(self.below.path(), "zero", offset, error))
    }
}
