//! An image whose log is replayed, and whose regions and metadata are read and checked.

use std::sync::Arc;

use super::header::{self, Headers};
use super::layout::{ENTRY, Layout};
use super::log;
use super::metadata::{self, Metadata};
use super::overlay::Overlay;
use super::region::{self, Regions, Run};
use super::spec::HEADER_SECTION;
use crate::contract::error::{BadField, ReadError, escaped};
use crate::formats::guid;
use crate::host::store::Store;

/// Memory limit in bytes for the metadata of the images of a chain, including logs that are replayed in memory.
pub(super) const MEMORY: u64 = 256 << 20;

/// Where the log of an image that was not closed is replayed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Replaying {
    /// In the file.
    InFile,
    /// In memory, with a limit in bytes.
    InMemory(u64),
}

/// The checked metadata of an image.
pub(super) struct Opened {
    /// The file, or the file with its log applied in memory.
    pub(super) store: Arc<dyn Store>,
    pub(super) overlay: Option<Arc<Overlay>>,
    pub(super) headers: Headers,
    pub(super) regions: Regions,
    pub(super) metadata: Metadata,
    pub(super) layout: Layout,
    /// Number of replayed log entries.
    pub(super) replayed: usize,
}

impl Opened {
    /// Read the metadata of a file. Replays its log, if it has one: in the file if `writable`, else in memory.
    pub(super) fn read(store: Arc<dyn Store>, writable: bool) -> Result<Self, ReadError> {
        let replaying = if writable { Replaying::InFile } else { Replaying::InMemory(MEMORY) };
        Self::read_with(store, replaying)
    }

    /// As [`read`](Self::read), with the place of the replay.
    pub(super) fn read_with(store: Arc<dyn Store>, replaying: Replaying) -> Result<Self, ReadError> {
        let headers = header::read(&*store)?;
        let in_file = matches!(replaying, Replaying::InFile);
        if in_file {
            headers.has_numbers()?;
        }
        let read = replay_log(store, headers, replaying)?;
        if read.entries > 0 {
            tracing::info!(path = %escaped(read.store.path()), entries = read.entries, in_file, "VHDX log replayed");
        }
        Self::of(read)
    }

    /// Read the structures that the headers refer to.
    pub(super) fn of(read: Replayed) -> Result<Self, ReadError> {
        let Replayed { store, overlay, headers, entries } = read;
        let log = headers.log_region();
        let log = Run { offset: log.offset, len: log.length.into() };
        let regions = region::read(&*store, log, store.len()?)?;
        let metadata = metadata::read(&*store, regions.metadata)?;
        let layout = metadata.parameters.layout(regions.bat);
        let needed = layout.entries() * ENTRY;
        if needed > regions.bat.len {
            let value = format!("{} bytes", regions.bat.len);
            let expected =
                format!("at least {needed} for {} bytes in blocks of {}", layout.size, layout.block_size());
            return Err(BadField::new("BAT region", value, expected).into());
        }
        Ok(Self { store, overlay, headers, regions, metadata, layout, replayed: entries })
    }

    /// Approximate memory use in bytes.
    pub(super) fn memory(&self) -> u64 {
        let overlay = self.overlay.as_ref().map_or(0, |overlay| overlay.memory());
        overlay + self.regions.memory() + self.metadata.memory()
    }

    /// The ranges of the file that are not blocks.
    pub(super) fn fixed_runs(&self) -> Vec<Run> {
        let log = self.headers.log_region();
        let mut runs = vec![
            Run { offset: 0, len: HEADER_SECTION },
            Run { offset: log.offset, len: log.length.into() },
            self.regions.bat,
            self.regions.metadata,
        ];
        runs.extend(&self.regions.unknown);
        runs
    }
}

/// A file whose log is empty, or replayed.
pub(super) struct Replayed {
    store: Arc<dyn Store>,
    overlay: Option<Arc<Overlay>>,
    headers: Headers,
    /// Entries of the log that were replayed.
    entries: usize,
}

/// Replay the log, if there is one.
pub(super) fn replay_log(
    store: Arc<dyn Store>,
    mut headers: Headers,
    replaying: Replaying,
) -> Result<Replayed, ReadError> {
    if headers.log_guid().is_nil() {
        return Ok(Replayed { store, overlay: None, headers, entries: 0 });
    }
    let replay = log::find(&*store, headers.log_region(), headers.log_guid())?;
    let entries = replay.entries();
    let Replaying::InMemory(most) = replaying else {
        let file = guid::random()?;
        headers.update(&*store, |header| header.file_write_guid = file.to_bytes_le())?;
        replay.apply(&*store)?;
        headers.update(&*store, |header| header.log_guid = [0; 16])?;
        return Ok(Replayed { store, overlay: None, headers, entries });
    };
    let overlay = Arc::new(Overlay::new(store, &replay, most)?);
    Ok(Replayed { store: Arc::<Overlay>::clone(&overlay), overlay: Some(overlay), headers, entries })
}
