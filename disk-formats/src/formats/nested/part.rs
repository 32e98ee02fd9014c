//! A range of another disk as a disk: a partition, or the data of a fixed VHD.

use std::sync::Arc;

use crate::contract::disk::MapMemory;
use crate::contract::error::IoError;
use crate::contract::info::{DiskInfo, Kind};
use crate::host::backing::BackingFile;
use crate::map::epochs::Epochs;
use crate::map::extent::Extents;
use crate::map::format::{Flush, Format, Mapping};

/// `capacity` bytes of another disk from `start` on.
pub(super) struct Part {
    info: DiskInfo,
    start: u64,
    outer: Arc<dyn Format>,
    /// Never deallocates space of the outer disk.
    keeps_space: bool,
}

impl Part {
    /// A part of `outer`. The caller has checked that it is whole sectors inside the disk.
    pub(super) fn new(outer: Arc<dyn Format>, start: u64, capacity: u64, kind: Kind) -> Self {
        Self { info: DiskInfo { kind, capacity, ..outer.info().clone() }, start, outer, keeps_space: false }
    }

    /// The same for a disk whose space must stay allocated.
    pub(super) fn keeping_space(mut self) -> Self {
        self.info.discard = None;
        self.keeps_space = true;
        self
    }
}

impl Format for Part {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        self.outer.files()
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.outer.map_read(self.start + offset, len, extents)
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.outer.map_write(self.start + offset, len, extents)
    }

    fn map_memory(&self) -> Option<MapMemory> {
        self.outer.map_memory()
    }

    fn zeros_past_end(&self) -> bool {
        self.outer.zeros_past_end()
    }

    fn remark(&self) -> Option<String> {
        self.outer.remark()
    }

    fn prepare_read(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.outer.prepare_read(self.start + offset, len)
    }

    fn prepare_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.outer.prepare_write(self.start + offset, len)
    }

    #[inline]
    fn written(&self, offset: u64, len: u64) {
        self.outer.written(self.start + offset, len);
    }

    fn epochs(&self) -> Option<&Epochs> {
        self.outer.epochs()
    }

    #[inline]
    fn flush_kind(&self) -> Flush {
        self.outer.flush_kind()
    }

    fn flush(&self) -> Result<(), IoError> {
        self.outer.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        match self.keeps_space {
            true => Err(IoError::Unsupported),
            false => self.outer.discard(self.start + offset, len),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.outer.write_zeroes(self.start + offset, len, may_unmap && !self.keeps_space)
    }
}
