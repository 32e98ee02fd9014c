//! The copy behind a merge: writes the data of one image of a chain over the disk below it.

use std::ops::{AddAssign, Range};

use super::content::{Buffer, CHUNK, Content, ImageError};
use super::holes::all_zeros;
use super::offload::Offload;
use super::runs::{Run, Runs, WINDOW};
use crate::contract::disk::Status;
use crate::map::extent::{Extents, Place};

/// Number of bytes by the method of copying.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlaid {
    /// Cloned (they share the storage of the image above), or copied by a file server.
    pub shared: u64,
    /// Read and written.
    pub written: u64,
    /// Zeroed.
    pub zeros: u64,
}

impl AddAssign for Overlaid {
    fn add_assign(&mut self, other: Self) {
        self.shared += other.shared;
        self.written += other.written;
        self.zeros += other.zeros;
    }
}

/// Writes the sectors that an image has itself over a disk. The image is opened without its parents. Sectors that the
/// image does not have are [`Place::Zeros`] in its map, and are left as they are below. Sectors of zeros that it has
/// are in a file, if only as a hole.
///
/// The image is only read, and nothing is on stable storage before the disk is flushed. Until then, and after a
/// failure, the chain reads the same data.
pub(crate) struct Overlay<'a> {
    above: Content<'a>,
    below: Content<'a>,
    /// Zeros may deallocate space of the disk below.
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

    /// Write the data in this range; whole sectors. `progress` gets the offset that was reached, and returns whether to
    /// continue.
    ///
    /// # Errors
    /// Errors of reading and writing; [`ImageError::Cancelled`].
    pub(crate) fn write(
        &mut self,
        range: Range<u64>,
        mut progress: impl FnMut(u64) -> bool,
    ) -> Result<(), ImageError> {
        for run in Runs::between(self.above, range.start, range.end) {
            let run = run?;
            let mut done = 0;
            while done < run.len {
                // A run that the image does not have takes no time, whatever its length.
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

    /// The bytes written so far.
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
