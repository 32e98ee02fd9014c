//! A nested image as a format: composes the inner image's map with the outer disk's map.
//!
//! A request in flight may use space that the inner or the outer format frees after the request was mapped. So both
//! share one [`Epochs`], and wait for the same requests. A request is registered there before it is mapped and until it
//! has completed, also while it is being prepared: no space that the inner map returned is reused before the outer map
//! is read.
//!
//! The metadata of the inner image are read and written without an epoch. That is safe: the outer disk frees only
//! blocks in ranges that the inner format discards or zeroes. Those are payload, never metadata.

use std::cell::Cell;
use std::sync::Arc;

use crate::contract::disk::MapMemory;
use crate::contract::error::IoError;
use crate::contract::info::DiskInfo;
use crate::host::backing::BackingFile;
use crate::map::epochs::Epochs;
use crate::map::extent::{Extents, Place};
use crate::map::format::{Flush, Format, Mapping};

const OUTSIDE: IoError = IoError::Damaged("the image ends inside the disk");
const NO_SUCH_FILE: IoError = IoError::Damaged("no such file");

/// Maximum depth of nesting.
pub(super) const LEVELS: usize = 2;

thread_local! {
    /// For each level, a scratch list of the inner extents, reused for all requests of the thread.
    static PIECES: [Cell<Extents>; LEVELS] = const { [const { Cell::new(Extents::new()) }; LEVELS] };
}

/// A disk whose image is the content of another disk.
pub(super) struct Nested {
    info: DiskInfo,
    inner: Box<dyn Format>,
    outer: Arc<dyn Format>,
    /// Number of disks around the outer disk.
    level: usize,
}

impl Nested {
    /// `inner` was opened on the content of `outer`, and shares its [`Epochs`] if both have epochs.
    pub(super) fn new(inner: Box<dyn Format>, outer: Arc<dyn Format>, level: usize) -> Self {
        let (own, around) = (inner.info(), outer.info());
        let info = DiskInfo {
            read_only: own.read_only || around.read_only,
            volatile_cache: own.volatile_cache || around.volatile_cache,
            buffer_alignment: around.buffer_alignment,
            ..own.clone()
        };
        Self { info, inner, outer, level }
    }

    /// Call `with` with this thread's scratch list of the level, cleared.
    #[inline]
    fn with_pieces<R>(&self, with: impl FnOnce(&mut Extents) -> R) -> R {
        PIECES.with(|levels| {
            let Some(cell) = levels.get(self.level) else { return with(&mut Extents::new()) };
            let mut pieces = cell.take();
            pieces.clear();
            let result = with(&mut pieces);
            cell.set(pieces);
            result
        })
    }

    /// Number of bytes of an inner extent that are inside the outer disk.
    #[inline]
    fn inside(&self, offset: u64, len: u64) -> u64 {
        self.outer.info().capacity.saturating_sub(offset).min(len)
    }

    /// Offset in the outer disk of an inner extent that is written.
    #[inline]
    fn place(&self, place: Place, len: u64) -> Result<u64, IoError> {
        match place {
            Place::File { file: 0, offset } if self.inside(offset, len) == len => Ok(offset),
            Place::File { file: 0, .. } => Err(OUTSIDE),
            _ => Err(NO_SUCH_FILE),
        }
    }
}

impl Format for Nested {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        self.outer.files()
    }

    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.with_pieces(|pieces| {
            if self.inner.map_read(offset, len, pieces)? == Mapping::Blocked {
                return Ok(Mapping::Blocked);
            }
            for piece in pieces.as_slice() {
                let offset = match piece.place {
                    Place::Zeros => {
                        extents.push(piece.len, Place::Zeros);
                        continue;
                    }
                    Place::File { file: 0, offset } => offset,
                    Place::File { .. } => return Err(NO_SUCH_FILE),
                };
                let inside = self.inside(offset, piece.len);
                if inside < piece.len && !self.inner.zeros_past_end() {
                    return Err(OUTSIDE);
                }
                if inside > 0 && self.outer.map_read(offset, inside, extents)? == Mapping::Blocked {
                    return Ok(Mapping::Blocked);
                }
                extents.push(piece.len - inside, Place::Zeros);
            }
            Ok(Mapping::Ready)
        })
    }

    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.with_pieces(|pieces| {
            if self.inner.map_write(offset, len, pieces)? == Mapping::Blocked {
                return Ok(Mapping::Blocked);
            }
            for piece in pieces.as_slice() {
                let at = self.place(piece.place, piece.len)?;
                if self.outer.map_write(at, piece.len, extents)? == Mapping::Blocked {
                    return Ok(Mapping::Blocked);
                }
            }
            Ok(Mapping::Ready)
        })
    }

    fn map_memory(&self) -> Option<MapMemory> {
        match (self.inner.map_memory(), self.outer.map_memory()) {
            (Some(inner), Some(outer)) => Some(inner.plus(outer)),
            (inner, outer) => inner.or(outer),
        }
    }

    fn zeros_past_end(&self) -> bool {
        self.outer.zeros_past_end()
    }

    fn prepare_read(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.inner.prepare_read(offset, len)?;
        let mut pieces = Extents::new();
        if self.inner.map_read(offset, len, &mut pieces)? == Mapping::Blocked {
            // The block was freed in the meantime: the caller finds the range blocked, and prepares it again.
            return Ok(());
        }
        for piece in pieces.as_slice() {
            if let Place::File { offset, .. } = piece.place {
                match self.inside(offset, piece.len) {
                    0 => {}
                    inside => self.outer.prepare_read(offset, inside)?,
                }
            }
        }
        Ok(())
    }

    fn prepare_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.inner.prepare_write(offset, len)?;
        let mut pieces = Extents::new();
        if self.inner.map_write(offset, len, &mut pieces)? == Mapping::Blocked {
            return Ok(());
        }
        for piece in pieces.as_slice() {
            self.outer.prepare_write(self.place(piece.place, piece.len)?, piece.len)?;
        }
        Ok(())
    }

    /// The outer disk is updated first: the inner image's metadata must not refer to data that the outer disk does not
    /// record.
    fn written(&self, offset: u64, len: u64) {
        self.with_pieces(|pieces| {
            // If the inner format has freed the block in the meantime, no mapping refers to it.
            if self.inner.map_write(offset, len, pieces) == Ok(Mapping::Ready) {
                for piece in pieces.as_slice() {
                    if let Ok(at) = self.place(piece.place, piece.len) {
                        self.outer.written(at, piece.len);
                    }
                }
            }
        });
        self.inner.written(offset, len);
    }

    fn epochs(&self) -> Option<&Epochs> {
        self.inner.epochs().or_else(|| self.outer.epochs())
    }

    fn flush_kind(&self) -> Flush {
        match (self.inner.flush_kind(), self.outer.flush_kind()) {
            (Flush::SyncFiles, Flush::SyncFiles) => Flush::SyncFiles,
            _ => Flush::Format,
        }
    }

    fn flush(&self) -> Result<(), IoError> {
        // The inner flush also flushes the outer disk and its metadata wherever the inner order of writes requires it.
        self.inner.flush()?;
        match self.outer.flush_kind() {
            Flush::SyncFiles => Ok(()),
            Flush::Format => self.outer.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        match self.info.discard {
            Some(_) => self.inner.discard(offset, len),
            None => Err(IoError::Unsupported),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.inner.write_zeroes(offset, len, may_unmap)
    }
}
