//! Conversion: copies the content of a disk into another disk, of any format.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::chunks::{Chunks, Control};
use crate::contract::disk::Status;
use crate::formats::copy::content::{Buffer, CHUNK, Content, ImageError};
use crate::formats::copy::holes::{GRAIN, filled};
use crate::formats::copy::offload::{Method, Offload};
use crate::formats::copy::runs::{Runs, WINDOW, zeros_until};
use crate::map::extent::{Extents, Place};

/// Maximum length of zeros between data that are read together with the data.
const GAP: u64 = 64 << 10;

/// Bytes of the source by the method of copying. All other bytes were zeros, which a new destination reads anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Converted {
    /// Cloned: they share the source's storage.
    pub cloned: u64,
    /// Copied by a file server.
    pub copied_by_server: u64,
    /// Read and written by this process.
    pub written: u64,
}

/// Copy the content of `source` into `destination`, and flush it. The destination must read as zeros and be at least as
/// large. Holes and blocks of zeros are skipped: they are holes of the destination's file, also inside its blocks.
///
/// # Errors
/// [`ImageError::TooSmall`]; errors of reading and writing; [`ImageError::Cancelled`]. After an error the destination
/// has a part of the content.
pub fn convert(
    source: Content<'_>,
    destination: Content<'_>,
    control: &Control<'_>,
) -> Result<Converted, ImageError> {
    let (needed, capacity) = (source.capacity(), destination.capacity());
    if capacity < needed {
        return Err(ImageError::TooSmall { path: destination.path().into(), capacity, needed });
    }
    let _holes = destination.keep_holes();
    let chunks = Chunks::new(needed, control);
    let shared = Shared {
        source,
        destination,
        offload: Offload::new(source, destination),
        clones: AtomicBool::new(false),
        totals: <[AtomicU64; 3]>::default(),
    };
    chunks.run(|| {
        let mut worker = Worker::new(&shared);
        // Clones use larger pieces than copies.
        let at_once = || if shared.clones.load(Ordering::Relaxed) { WINDOW / CHUNK } else { 1 };
        while let Some(range) = chunks.claim(at_once())? {
            if !worker.copy(range.clone())? && chunks.unclaimed(range.end) {
                chunks.pass_over(zeros_until(source, range.end, control.cancel)?);
            }
            chunks.finished(range.end - range.start);
        }
        Ok(())
    })?;
    destination
        .format()
        .flush()
        .map_err(|error| ImageError::Flush { path: destination.path().into(), source: error })?;
    let [cloned, copied_by_server, written] = shared.totals.map(AtomicU64::into_inner);
    Ok(Converted { cloned, copied_by_server, written })
}

struct Shared<'a> {
    source: Content<'a>,
    destination: Content<'a>,
    offload: Offload<'a>,
    /// Whether a clone has succeeded.
    clones: AtomicBool,
    /// Number of bytes by [`Method`].
    totals: [AtomicU64; 3],
}

struct Worker<'a> {
    shared: &'a Shared<'a>,
    buffer: Buffer,
    runs: Runs<'a>,
    extents: Extents,
    /// Parts of the current range that are to be read and written.
    spans: Vec<Range<u64>>,
    dirty: Dirty<'a>,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared<'a>) -> Self {
        let dirty = Dirty { disk: shared.destination, last: None };
        Self {
            shared,
            buffer: Buffer::new(CHUNK as usize),
            runs: Runs::between(shared.source, 0, 0),
            extents: Extents::new(),
            spans: Vec::new(),
            dirty,
        }
    }

    /// Copy a range. Returns whether any of it is mapped.
    fn copy(&mut self, range: Range<u64>) -> Result<bool, ImageError> {
        self.spans.clear();
        let mut stored = false;
        self.runs.restart(range.start, range.end);
        while let Some(run) = self.runs.next().transpose()? {
            if run.status == Status::Zeros {
                continue;
            }
            stored = true;
            let end = run.offset + run.len;
            match self.shared.offload.copy(&run, &mut self.extents)? {
                Some((part, method)) => {
                    self.shared.clones.fetch_or(method == Method::Clone, Ordering::Relaxed);
                    self.count(method, part.end - part.start);
                    self.add(run.offset..part.start, &range);
                    self.add(part.end..end, &range);
                }
                None => self.add(run.offset..end, &range),
            }
        }
        let spans = std::mem::take(&mut self.spans);
        spans.iter().try_for_each(|span| self.copy_span(span))?;
        self.spans = spans;
        self.dirty.finish()?;
        Ok(stored)
    }

    fn count(&self, method: Method, len: u64) {
        if let Some(total) = self.shared.totals.get(method as usize) {
            total.fetch_add(len, Ordering::Relaxed);
        }
    }

    /// Add a part to be read and written, in whole grains. It is merged with the previous part if the gap is small.
    fn add(&mut self, part: Range<u64>, range: &Range<u64>) {
        if part.is_empty() {
            return;
        }
        let start = (part.start - part.start % GRAIN).max(range.start);
        let end = part.end.next_multiple_of(GRAIN).min(range.end);
        match self.spans.last_mut() {
            Some(last) if start <= last.end.saturating_add(GAP) => last.end = last.end.max(end),
            _ => self.spans.push(start..end),
        }
    }

    fn copy_span(&mut self, span: &Range<u64>) -> Result<(), ImageError> {
        let mut at = span.start;
        while at < span.end {
            let data = self.buffer.first(span.end - at);
            self.shared.source.read_at(data, at)?;
            for part in filled(data, GRAIN as usize) {
                let (offset, data) = (at + part.start as u64, &data[part]);
                let len = data.len() as u64;
                self.shared.destination.pieces_to_write(offset, len, &mut self.extents)?;
                self.shared.destination.store(data, &self.extents)?;
                self.shared.destination.stored(offset, len);
                self.dirty.add(&self.extents)?;
                self.shared.totals[Method::None as usize].fetch_add(len, Ordering::Relaxed);
            }
            at += data.len() as u64;
        }
        Ok(())
    }
}

/// The range that was written last. Its writeback starts while the next data are read, so that the page cache has few
/// dirty pages and the final flush is short.
struct Dirty<'a> {
    disk: Content<'a>,
    /// Index of the file, and range in it.
    last: Option<(u32, Range<u64>)>,
}

impl Dirty<'_> {
    fn add(&mut self, extents: &Extents) -> Result<(), ImageError> {
        for extent in extents.as_slice() {
            let Place::File { file, offset } = extent.place else { continue };
            let end = offset + extent.len;
            match &mut self.last {
                Some((same, range))
                    if *same == file && range.end <= offset && offset - range.end <= CHUNK =>
                {
                    range.end = end;
                }
                _ => {
                    self.finish()?;
                    self.last = Some((file, offset..end));
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ImageError> {
        if let Some((file, range)) = self.last.take() {
            let file = self.disk.file(file)?.backing();
            if let Some(file) = file.filter(|file| file.direct().is_none()) {
                file.start_writeback(range.start, range.end - range.start);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
