//! A format's bytes, read and written without a queue: for tools, on the slow path.

use std::io;

use crate::store::io_error;
use crate::{Extents, Format, IoError, Mapping, Place};

/// Bytes mapped at once.
const STEP: u64 = 64 << 20;

/// The content of a disk.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    format: &'a dyn Format,
}

impl<'a> Content<'a> {
    /// Of this format.
    #[must_use]
    pub fn new(format: &'a dyn Format) -> Self {
        Self { format }
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> &'a dyn Format {
        self.format
    }

    /// Bytes of the disk.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.format.info().capacity
    }

    /// Whether it has no bytes: no disk is so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where `len` bytes at `offset` are, at most 64 MiB of them.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`], or the format's.
    pub fn pieces(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<(), IoError> {
        self.map(offset, len, extents, false)
    }

    fn map(&self, offset: u64, len: u64, extents: &mut Extents, write: bool) -> Result<(), IoError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(IoError::OutOfRange);
        }
        let len = len.min(STEP);
        // Whole sectors are mapped; the ends are cut off by the caller's arithmetic.
        for _ in 0..2 {
            extents.clear();
            let mapping = match write {
                false => self.format.map_read(offset, len, extents)?,
                true => self.format.map_write(offset, len, extents)?,
            };
            match (mapping, write) {
                (Mapping::Ready, _) => return Ok(()),
                (Mapping::Blocked, false) => self.format.prepare_read(offset, len)?,
                (Mapping::Blocked, true) => self.format.prepare_write(offset, len)?,
            }
        }
        Err(IoError::Damaged("the range cannot be mapped"))
    }

    /// Fill `data` from `offset`, whole sectors.
    ///
    /// # Errors
    /// As for [`pieces`](Self::pieces), and the host's.
    pub fn read_at(&self, data: &mut [u8], offset: u64) -> Result<(), IoError> {
        let mut extents = Extents::new();
        let (mut rest, mut at) = (data, offset);
        while !rest.is_empty() {
            self.pieces(at, rest.len() as u64, &mut extents)?;
            for extent in extents.as_slice() {
                let part = rest.split_off_mut(..(extent.len as usize).min(rest.len())).unwrap_or_default();
                at += part.len() as u64;
                match extent.place {
                    Place::Zeros => part.fill(0),
                    Place::File { file, offset } => self.read_file(file, part, offset)?,
                }
            }
        }
        Ok(())
    }

    /// Fill `data` from a file of the format.
    pub(super) fn read_file(&self, file: u32, data: &mut [u8], offset: u64) -> Result<(), IoError> {
        let file = self.format.files().get(file as usize).ok_or(IoError::Damaged("no such file"))?;
        match file.read_at(data, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.format.zeros_past_end() => {
                let there = file.size().saturating_sub(offset).min(data.len() as u64) as usize;
                let (known, beyond) = data.split_at_mut(there);
                beyond.fill(0);
                file.read_at(known, offset).map_err(|error| io_error(&error))
            }
            done => done.map_err(|error| io_error(&error)),
        }
    }

    /// Write `data` at `offset`, whole sectors. Durable after [`Format::flush`]. The disk must be open through the page cache.
    ///
    /// # Errors
    /// [`IoError::ReadOnly`]; as for any write.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), IoError> {
        if self.format.info().read_only {
            return Err(IoError::ReadOnly);
        }
        let mut extents = Extents::new();
        let (mut rest, mut at) = (data, offset);
        while !rest.is_empty() {
            self.places(at, rest.len() as u64, &mut extents)?;
            let start = at;
            for extent in extents.as_slice() {
                let (part, behind) = rest.split_at_checked(extent.len as usize).unwrap_or((rest, &[]));
                rest = behind;
                at += part.len() as u64;
                let Place::File { file, offset } = extent.place else {
                    return Err(IoError::Damaged("a write to nowhere"));
                };
                let file = self.format.files().get(file as usize).ok_or(IoError::Damaged("no such file"))?;
                file.write_at(part, offset).map_err(|error| io_error(&error))?;
            }
            self.format.written(start, at - start);
        }
        Ok(())
    }

    /// Where `len` bytes at `offset`, at most 64 MiB of them, are to be written; room is made for them.
    pub(super) fn places(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<(), IoError> {
        self.map(offset, len, extents, true)
    }
}
