//! Copying a disk into another image: what is nowhere is left out, what can be shared is not copied.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::map::split;
use crate::image::{Content, Run};
use crate::{Extents, Format, IoError, Place, sys};

/// Bytes copied by one thread at a time.
const CHUNK: u64 = 4 << 20;
/// Zeros are looked for in pieces of this size.
const ZERO_UNIT: usize = 4096;
/// What file systems share at the least.
const CLONE_UNIT: u64 = 4096;

/// Why a disk was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// The source could not be read.
    #[error("cannot read the source: {0}")]
    Read(IoError),
    /// The destination could not be written.
    #[error("cannot write the destination: {0}")]
    Write(IoError),
    /// The destination is smaller than the source.
    #[error("the destination is smaller than the source")]
    TooSmall,
    /// The caller has stopped it.
    #[error("stopped")]
    Stopped,
}

/// What copying has done, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Read and written.
    pub copied: u64,
    /// Shared between the files by the file system.
    pub cloned: u64,
    /// Not there, or zeros.
    pub skipped: u64,
}

struct Job<'a> {
    source: Content<'a>,
    destination: Content<'a>,
    next: AtomicU64,
    done: AtomicU64,
    copied: AtomicU64,
    cloned: AtomicU64,
    /// The host has refused to share.
    no_clone: AtomicBool,
    error: OnceLock<ConvertError>,
}

/// Copy all of `source` into `destination`, which is new (reads as zeros) and at least as large, and make it durable.
/// `progress` gets the bytes done, from several threads.
///
/// # Errors
/// [`ConvertError`]: the destination is of no use then.
pub fn convert(
    source: &dyn Format,
    destination: &dyn Format,
    stop: &AtomicBool,
    progress: impl Fn(u64) + Sync,
) -> Result<Converted, ConvertError> {
    let (source, destination) = (Content::new(source), Content::new(destination));
    if destination.len() < source.len() {
        return Err(ConvertError::TooSmall);
    }
    let job = Job {
        source,
        destination,
        next: AtomicU64::new(0),
        done: AtomicU64::new(0),
        copied: AtomicU64::new(0),
        cloned: AtomicU64::new(0),
        no_clone: AtomicBool::new(false),
        error: OnceLock::new(),
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, |cores| cores.get().min(8))).for_each(|_| {
            scope.spawn(|| job.work(stop, &progress));
        });
    });
    if stop.load(Ordering::Relaxed) {
        return Err(ConvertError::Stopped);
    }
    if let Some(error) = job.error.get() {
        return Err(*error);
    }
    destination.format().flush().map_err(ConvertError::Write)?;
    let (copied, cloned) = (job.copied.into_inner(), job.cloned.into_inner());
    Ok(Converted { copied, cloned, skipped: source.len() - copied - cloned })
}

impl Job<'_> {
    fn work(&self, stop: &AtomicBool, progress: &(impl Fn(u64) + Sync)) {
        let mut buffer = vec![0; CHUNK as usize];
        let (mut extents, mut runs) = (Extents::new(), Vec::new());
        let len = self.source.len();
        loop {
            let at = self.next.fetch_add(CHUNK, Ordering::Relaxed);
            if at >= len || stop.load(Ordering::Relaxed) || self.error.get().is_some() {
                return;
            }
            let part = (len - at).min(CHUNK);
            if let Err(error) = self.chunk(at, part, &mut buffer, &mut extents, &mut runs) {
                // The first is the one to tell.
                let _ = self.error.set(error);
                return;
            }
            progress(self.done.fetch_add(part, Ordering::Relaxed) + part);
        }
    }

    fn chunk(
        &self,
        at: u64,
        len: u64,
        buffer: &mut [u8],
        extents: &mut Extents,
        runs: &mut Vec<Run>,
    ) -> Result<(), ConvertError> {
        self.source.pieces(at, len, extents).map_err(ConvertError::Read)?;
        runs.clear();
        split(self.source.format(), at, extents, |run| runs.push(run));
        for run in runs.iter().filter(|run| run.stored) {
            let Some((file, offset)) = run.place else { continue };
            // A file system's holes end where it likes: whole sectors are copied.
            if !self.no_clone.load(Ordering::Relaxed) && self.clone_run(run, file, offset, extents)? {
                self.cloned.fetch_add(run.len, Ordering::Relaxed);
                continue;
            }
            let data = buffer.get_mut(..run.len as usize).unwrap_or_default();
            self.source.read_file(file, data, offset).map_err(ConvertError::Read)?;
            self.write(data, run.offset)?;
        }
        Ok(())
    }

    /// Write what is not zeros.
    fn write(&self, data: &[u8], offset: u64) -> Result<(), ConvertError> {
        let mut units =
            data.chunks(ZERO_UNIT).map(|unit| unit.iter().all(|byte| *byte == 0)).enumerate().peekable();
        while let Some((first, zero)) = units.next() {
            let mut end = first + 1;
            while units.next_if(|(_, next)| *next == zero).is_some() {
                end += 1;
            }
            if !zero {
                let from = first * ZERO_UNIT;
                let part = data.get(from..(end * ZERO_UNIT).min(data.len())).unwrap_or_default();
                self.destination.write_at(part, offset + from as u64).map_err(ConvertError::Write)?;
                self.copied.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Have the file system share a run; `false` where it does not, or cannot at this alignment.
    fn clone_run(
        &self,
        run: &Run,
        file: u32,
        offset: u64,
        extents: &mut Extents,
    ) -> Result<bool, ConvertError> {
        let Some(from) = self.source.format().files().get(file as usize) else { return Ok(false) };
        if !run.len.is_multiple_of(CLONE_UNIT)
            || !offset.is_multiple_of(CLONE_UNIT)
            || from.device().is_some()
        {
            return Ok(false);
        }
        self.destination.places(run.offset, run.len, extents).map_err(ConvertError::Write)?;
        let mut at = offset;
        for extent in extents.as_slice() {
            let Place::File { file, offset: to } = extent.place else { return Ok(false) };
            let Some(file) = self.destination.format().files().get(file as usize) else { return Ok(false) };
            if !to.is_multiple_of(CLONE_UNIT) || !extent.len.is_multiple_of(CLONE_UNIT) {
                return Ok(false);
            }
            if sys::clone_range(from.file(), at, extent.len, file.file(), to).is_err() {
                // Another file system, or one that shares nothing. What was shared so far is written again.
                self.no_clone.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            at += extent.len;
        }
        self.destination.format().written(run.offset, run.len);
        Ok(true)
    }
}
