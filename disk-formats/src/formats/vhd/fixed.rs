//! Fixed disks: the data are the first bytes of the file, fully allocated, and the footer follows them.
//!
//! Before the first write after an open, the footer gets a new time stamp, on stable storage ([`stamp`](super::stamp)).
//! The space stays allocated: discards are not supported, and zeroing does not deallocate.

use std::sync::Arc;

use super::footer::{self, Found};
use super::spec::Footer;
use super::stamp;
use crate::contract::error::IoError;
use crate::contract::info::DiskInfo;
use crate::formats::sparse::FirstChange;
use crate::host::backing::BackingFile;
use crate::host::store::{Store, io_error};
use crate::map::extent::{Extents, Place};
use crate::map::format::{Format, Mapping};

/// A fixed VHD.
pub(super) struct FixedVhd {
    info: DiskInfo,
    store: Arc<dyn Store>,
    /// The file of `store`; empty in crash tests.
    files: Vec<Arc<BackingFile>>,
    /// As it was when the disk was opened.
    footer: Footer,
    footer_at: Option<u64>,
    /// Unique Id of the footer.
    id: [u8; 16],
    /// The new time stamp is on stable storage, so data may be written.
    stamped: FirstChange,
}

impl FixedVhd {
    /// The disk in `store`, with its footer.
    pub(super) fn new(
        info: DiskInfo,
        store: Arc<dyn Store>,
        files: Vec<Arc<BackingFile>>,
        found: &Found,
    ) -> Self {
        Self {
            info: DiskInfo { discard: None, ..info },
            store,
            files,
            footer: found.footer,
            footer_at: found.source.trailing(),
            id: found.footer.unique_id,
            stamped: FirstChange::default(),
        }
    }

    /// Keep the time stamp: the content will not change, and the children must stay valid.
    pub(super) fn without_stamp(self) -> Self {
        Self { stamped: FirstChange::new(true), ..self }
    }

    /// Call this before the first change of the disk's content.
    fn before_change(&self) -> Result<(), IoError> {
        self.stamped.prepare(|| {
            let mut footer = self.footer;
            stamp::renew(&mut footer, &*self.store);
            footer::rewrite(&*self.store, &footer, self.footer_at).map_err(io_error)
        })
    }
}

impl Format for FixedVhd {
    #[inline]
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    fn image_id(&self) -> Option<[u8; 16]> {
        Some(self.id)
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        extents.push(len, Place::File { file: 0, offset });
        Ok(Mapping::Ready)
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        match self.stamped.is_done() {
            true => self.map_read(offset, len, extents),
            false => Ok(Mapping::Blocked),
        }
    }

    fn prepare_write(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        self.before_change()
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        Err(IoError::Unsupported)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _may_unmap: bool) -> Result<(), IoError> {
        self.before_change()?;
        self.store.write_zeroes(offset, len, false)
    }
}
