//! Whether two disks hold the same.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::image::{Content, runs};
use crate::{Format, IoError};

/// Bytes compared by one thread at a time.
const CHUNK: u64 = 2 << 20;

/// What a comparison has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The same bytes; where one is longer, zeros for the rest.
    Equal,
    /// The first byte that differs (behind the end of the shorter: that is not zero).
    Different(u64),
}

/// Compare two disks byte by byte, except where neither has anything. `progress` gets the bytes compared.
///
/// # Errors
/// The first that reading meets, with the number of the disk (0 or 1); `None` where `stop` was set.
pub fn compare(
    disks: [&dyn Format; 2],
    stop: &AtomicBool,
    progress: impl Fn(u64) + Sync,
) -> Result<Comparison, Option<(usize, IoError)>> {
    let contents = disks.map(Content::new);
    let len = contents[0].len().max(contents[1].len());
    // The lowest chunk with a difference, or with an error.
    let (next, found, done) = (AtomicU64::new(0), AtomicU64::new(u64::MAX), AtomicU64::new(0));
    let error = std::sync::OnceLock::new();
    let work = || {
        let mut buffers = [vec![0; CHUNK as usize], vec![0; CHUNK as usize]];
        loop {
            let at = next.fetch_add(CHUNK, Ordering::Relaxed);
            if at >= len
                || at > found.load(Ordering::Relaxed)
                || stop.load(Ordering::Relaxed)
                || error.get().is_some()
            {
                return;
            }
            match chunk(&contents, &mut buffers, at, (len - at).min(CHUNK)) {
                Ok(Some(first)) => {
                    found.fetch_min(first, Ordering::Relaxed);
                }
                Ok(None) => {}
                Err(failed) => {
                    let _ = error.set(failed);
                }
            }
            progress(done.fetch_add(CHUNK, Ordering::Relaxed).saturating_add(CHUNK).min(len));
        }
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, |cores| cores.get().min(8))).for_each(|_| {
            scope.spawn(work);
        });
    });
    if stop.load(Ordering::Relaxed) {
        return Err(None);
    }
    if let Some(error) = error.into_inner() {
        return Err(Some(error));
    }
    Ok(match found.into_inner() {
        u64::MAX => Comparison::Equal,
        first => Comparison::Different(first),
    })
}

/// The first byte of a chunk that differs.
fn chunk(
    contents: &[Content<'_>; 2],
    buffers: &mut [Vec<u8>; 2],
    at: u64,
    len: u64,
) -> Result<Option<u64>, (usize, IoError)> {
    let mut empty = [false; 2];
    for (number, (content, empty)) in contents.iter().zip(&mut empty).enumerate() {
        // From here on it has nothing.
        let first = runs(content.format(), at).next().transpose().map_err(|error| (number, error))?;
        *empty = first.is_none_or(|run| !run.stored && run.offset + run.len >= at + len);
    }
    if empty == [true; 2] {
        return Ok(None);
    }
    for (number, (content, buffer)) in contents.iter().zip(buffers.iter_mut()).enumerate() {
        let there = content.len().saturating_sub(at).min(len) as usize;
        let (known, beyond) = buffer.split_at_mut(there);
        beyond.fill(0);
        content.read_at(known, at).map_err(|error| (number, error))?;
    }
    let [one, other] = buffers;
    let (one, other) =
        (one.get(..len as usize).unwrap_or_default(), other.get(..len as usize).unwrap_or_default());
    if one == other {
        return Ok(None);
    }
    Ok(one.iter().zip(other).position(|(a, b)| a != b).map(|first| at + first as u64))
}
