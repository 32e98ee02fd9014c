//! Copy offload: the file system copies without moving the data through this process. A clone shares the storage of the
//! source (FICLONERANGE). A file server copies on the server (copy_file_range).
//!
//! On a local file system without clones, copy_file_range copies through the page cache, no faster than reads and
//! writes, and copies zeros, too. There the data are read and written instead.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::fstatfs;
use rustix::io::Errno;

use super::content::{Content, ImageError};
use super::runs::Run;
use crate::contract::error::IoError;
use crate::host;
use crate::host::backing::BackingFile;
use crate::host::store::Store;
use crate::map::extent::{Extents, Place};

/// Alignment of clones: the block size of nearly all file systems. On a file system with larger blocks the clone fails,
/// and the data are copied.
const ALIGNMENT: u64 = 4096;
/// Shorter runs are read and written, which is faster and fragments the destination less.
const SHORTEST: u64 = 64 << 10;

/// File systems on servers that can copy (statfs(2)).
const SERVERS: [u64; 4] = [
    // NFS, CIFS, SMB2, Ceph.
    0x6969,
    0xFF53_4D42,
    0xFE53_4D42,
    0x00C3_6400,
];

/// Method of copying a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Method {
    Clone,
    Server,
    /// Read and write.
    None,
}

impl Method {
    fn of(value: u8) -> Self {
        [Self::Clone, Self::Server].into_iter().find(|method| *method as u8 == value).unwrap_or(Self::None)
    }

    fn next(self) -> Self {
        Self::of(self as u8 + 1)
    }
}

/// Copies between the files of two disks.
pub(crate) struct Offload<'a> {
    source: Content<'a>,
    destination: Content<'a>,
    /// For each file of the source, the best method that has not failed so far.
    methods: Vec<AtomicU8>,
}

impl<'a> Offload<'a> {
    pub(crate) fn new(source: Content<'a>, destination: Content<'a>) -> Self {
        // Probed before space is allocated for a clone.
        let best = |file| match (source.file(file), destination.file(0)) {
            (Ok(from), Ok(to)) if can_clone(from, to) => Method::Clone,
            _ => Method::Server,
        };
        let methods = (0..source.files() as u32).map(|file| AtomicU8::new(best(file) as u8)).collect();
        Self { source, destination, methods }
    }

    /// Offload the copy of as much of a mapped run as possible. Returns that part, and the method.
    pub(crate) fn copy(
        &self,
        run: &Run,
        extents: &mut Extents,
    ) -> Result<Option<(Range<u64>, Method)>, ImageError> {
        let Place::File { file, offset: place } = run.place else { return Ok(None) };
        let Some(best) = self.methods.get(file as usize) else { return Ok(None) };
        let method = Method::of(best.load(Ordering::Relaxed));
        let start = run.offset.next_multiple_of(ALIGNMENT);
        let end = run.offset + run.len;
        let end = end - end % ALIGNMENT;
        let aligned = place % ALIGNMENT == run.offset % ALIGNMENT;
        if method == Method::None || !aligned || end.saturating_sub(start) < SHORTEST {
            return Ok(None);
        }
        let (source, place) = (self.source.file(file)?, place + (start - run.offset));
        if method == Method::Server && !on_server(source) {
            best.store(Method::None as u8, Ordering::Relaxed);
            return Ok(None);
        }
        self.destination.pieces_to_write(start, end - start, extents)?;
        for extent in extents.as_slice() {
            let (_, offset) = self.destination.place_to_write(extent.place)?;
            if !(offset | extent.len).is_multiple_of(ALIGNMENT) {
                return Ok(None);
            }
        }
        let mut from = place;
        for extent in extents.as_slice() {
            let (destination, offset) = self.destination.place_to_write(extent.place)?;
            match method.copy(source, from, destination, offset, extent.len) {
                Ok(()) => from += extent.len,
                Err(Errno::NOSPC | Errno::DQUOT) => {
                    return Err(ImageError::io(destination.path(), "write", offset, IoError::NoSpace));
                }
                // The method is not supported. If there is another cause, reading and writing reports it.
                Err(_) => {
                    best.fetch_max(method.next() as u8, Ordering::Relaxed);
                    return self.copy(run, extents);
                }
            }
        }
        self.destination.stored(start, end - start);
        Ok(Some((start..end, method)))
    }
}

impl Method {
    fn copy(
        self,
        source: &dyn Store,
        from: u64,
        destination: &dyn Store,
        to: u64,
        len: u64,
    ) -> Result<(), Errno> {
        match (self, source.backing(), destination.backing()) {
            (Self::Clone, ..) => destination.clone_range(source, from, to, len),
            (Self::Server, Some(source), Some(destination)) => {
                copy_by_server(source, from, destination, to, len)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// Whether the file systems can clone from `source` to `destination`: probed by a clone of zero bytes at the end.
fn can_clone(source: &dyn Store, destination: &dyn Store) -> bool {
    let Some((from, to)) = source.backing().zip(destination.backing()) else { return true };
    let Ok(end) = from.end() else { return false };
    matches!(host::clone_range(from.file(), end, 0, to.file(), 0), Ok(()) | Err(Errno::INVAL))
}

fn on_server(file: &dyn Store) -> bool {
    let system = file.backing().and_then(|file| fstatfs(file.file()).ok());
    system.is_some_and(|system| SERVERS.contains(&(system.f_type as u64 & 0xFFFF_FFFF)))
}

fn copy_by_server(
    source: &BackingFile,
    mut from: u64,
    destination: &BackingFile,
    mut to: u64,
    len: u64,
) -> Result<(), Errno> {
    let end = from + len;
    while from < end {
        let left = usize::try_from(end - from).unwrap_or(usize::MAX);
        // The call advances both offsets.
        match host::copy_file_range(source.file(), &mut from, destination.file(), &mut to, left) {
            Ok(0) => return Err(Errno::OPNOTSUPP),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
