//! Transfers that do not fill the units of direct I/O ([`Units`](crate::host::backing::units::Units)). A helper thread makes them, by
//! [`BackingFile::read_at`](crate::BackingFile::read_at) and [`write_at`](crate::BackingFile::write_at), which read and replace whole units.

use crate::contract::error::IoError;
use crate::contract::iobuf::{IoBuf, for_each_part};
use crate::host::store::{io_error, read_padded};
use crate::map::extent::{Extent, Place};
use crate::map::format::Format;

/// Bytes that are transferred at once.
const CHUNK: u64 = 128 << 10;

/// A mapped request. The queue has checked that buffers and extents cover it.
#[derive(Debug)]
pub(super) struct PartialWork {
    pub(super) writes: bool,
    pub(super) bufs: Vec<IoBuf>,
    pub(super) extents: Vec<Extent>,
}

impl PartialWork {
    /// Make the transfers.
    pub(super) fn perform(&self, format: &dyn Format) -> Result<(), IoError> {
        let mut start = 0;
        for extent in &self.extents {
            match extent.place {
                Place::Zeros => for_each_part(&self.bufs, start, extent.len, |part| part.zero()),
                Place::File { file, offset } => {
                    let mut done = 0;
                    while done < extent.len {
                        let len = (extent.len - done).min(CHUNK);
                        self.transfer(format, file, offset + done, start + done, len)?;
                        done += len;
                    }
                }
            }
            start += extent.len;
        }
        Ok(())
    }

    /// Transfer `len` bytes between `offset` of a file and `start` of the buffers.
    fn transfer(
        &self,
        format: &dyn Format,
        file: u32,
        offset: u64,
        start: u64,
        len: u64,
    ) -> Result<(), IoError> {
        let file = format.files().get(file as usize).ok_or(IoError::Damaged("no such file"))?;
        let mut data = vec![0; len as usize];
        if self.writes {
            let mut rest = &mut data[..];
            for_each_part(&self.bufs, start, len, |part| {
                let done = part.read(rest);
                rest = &mut std::mem::take(&mut rest)[done..];
            });
            return file.write_at(&data, offset).map_err(io_error);
        }
        let read = match format.zeros_past_end() {
            true => read_padded(&**file, &mut data, offset),
            false => file.read_at(&mut data, offset),
        };
        read.map_err(io_error)?;
        let mut rest = &data[..];
        for_each_part(&self.bufs, start, len, |part| rest = &rest[part.write(rest)..]);
        Ok(())
    }
}
