//! An image whose log is replayed, and whose regions and metadata are read and checked.

use std::io;
use std::sync::Arc;

use super::header::{self, Headers};
use super::layout::{ENTRY, Layout};
use super::log;
use super::metadata::{self, Metadata};
use super::overlay::Overlay;
use super::region::{self, Regions, Run};
use super::spec::HEADER_SECTION;
use crate::contract::escaped::escaped;
use crate::formats::field::BadField;
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
    pub(super) fn read(store: Arc<dyn Store>, writable: bool) -> io::Result<Result<Self, BadField>> {
        let replaying = if writable { Replaying::InFile } else { Replaying::InMemory(MEMORY) };
        Self::read_with(store, replaying)
    }

    /// As [`read`](Self::read), with the place of the replay.
    pub(super) fn read_with(
        store: Arc<dyn Store>,
        replaying: Replaying,
    ) -> io::Result<Result<Self, BadField>> {
        let headers = match header::read(&*store)? {
            Ok(headers) => headers,
            Err(bad) => return Ok(Err(bad)),
        };
        if let (Replaying::InFile, Err(bad)) = (replaying, headers.has_numbers()) {
            return Ok(Err(bad));
        }
        match replay_log(store, headers, replaying)? {
            Ok(read) => {
                if read.entries > 0 {
                    let (path, in_file) = (read.store.path(), matches!(replaying, Replaying::InFile));
                    tracing::info!(path = %escaped(path), entries = read.entries, in_file, "VHDX log replayed");
                }
                Self::of(read)
            }
            Err(bad) => Ok(Err(bad)),
        }
    }

    /// Read the structures that the headers refer to.
    pub(super) fn of(read: Replayed) -> io::Result<Result<Self, BadField>> {
        let Replayed { store, overlay, headers, entries } = read;
        let log = headers.log_region();
        let log = Run { offset: log.offset, len: log.length.into() };
        let regions = match region::read(&*store, log, store.len()?)? {
            Ok(regions) => regions,
            Err(bad) => return Ok(Err(bad)),
        };
        let metadata = match metadata::read(&*store, regions.metadata)? {
            Ok(metadata) => metadata,
            Err(bad) => return Ok(Err(bad)),
        };
        let layout = metadata.parameters.layout(regions.bat);
        let needed = layout.entries() * ENTRY;
        if needed > regions.bat.len {
            let value = format!("{} bytes", regions.bat.len);
            let expected =
                format!("at least {needed} for {} bytes in blocks of {}", layout.size, layout.block_size());
            return Ok(Err(BadField::new("BAT region", value, expected)));
        }
        Ok(Ok(Self { store, overlay, headers, regions, metadata, layout, replayed: entries }))
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
) -> io::Result<Result<Replayed, BadField>> {
    if headers.log_guid().is_nil() {
        return Ok(Ok(Replayed { store, overlay: None, headers, entries: 0 }));
    }
    let replay = match log::find(&*store, headers.log_region(), headers.log_guid())? {
        Ok(replay) => replay,
        Err(bad) => return Ok(Err(bad)),
    };
    let entries = replay.entries();
    let Replaying::InMemory(most) = replaying else {
        let file = guid::random()?;
        headers.update(&*store, |header| header.file_write_guid = file.to_bytes_le())?;
        replay.apply(&*store)?;
        headers.update(&*store, |header| header.log_guid = [0; 16])?;
        return Ok(Ok(Replayed { store, overlay: None, headers, entries }));
    };
    Ok(Overlay::new(store, &replay, most)?.map(|overlay| {
        let overlay = Arc::new(overlay);
        Replayed { store: Arc::<Overlay>::clone(&overlay), overlay: Some(overlay), headers, entries }
    }))
}
