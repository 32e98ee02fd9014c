//! Comparison of two disks.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::chunks::{Chunks, Control};
use crate::contract::disk::Status;
use crate::formats::copy::content::{Buffer, CHUNK, Content, ImageError};
use crate::formats::copy::holes::all_zeros;
use crate::formats::copy::runs::{Run, Runs, zeros_until};

/// Bytes that are compared at once: they fit the processor's cache.
const STEP: u64 = 256 << 10;

/// The outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Comparison {
    /// Byte offset of the first difference. Beyond its end, a disk counts as zeros.
    pub first_difference: Option<u64>,
    /// Capacities of both disks in bytes.
    pub capacities: [u64; 2],
}

/// Compare two disks byte by byte, except where their maps show that both are zeros. If one disk is longer, its tail
/// must be zeros.
///
/// # Errors
/// Errors of reading; [`ImageError::Cancelled`].
pub fn compare(a: Content<'_>, b: Content<'_>, control: &Control<'_>) -> Result<Comparison, ImageError> {
    let capacities = [a.capacity(), b.capacity()];
    let chunks = Chunks::new(capacities[0].max(capacities[1]), control);
    let first = AtomicU64::new(u64::MAX);
    chunks.run(|| {
        let mut pair = Pair {
            disks: [a, b],
            sides: [a, b].map(Side::new),
            buffers: [Buffer::new(STEP as usize), Buffer::new(STEP as usize)],
        };
        while let Some(range) = chunks.claim(1)? {
            // Chunks are claimed in order, so everything before the first difference is compared.
            if range.start >= first.load(Ordering::Relaxed) {
                return Ok(());
            }
            match pair.compare(range.clone())? {
                Outcome::Differ(at) => {
                    first.fetch_min(at, Ordering::Relaxed);
                }
                Outcome::Zeros if chunks.unclaimed(range.end) => {
                    let until = |disk| zeros_until(disk, range.end, control.cancel);
                    chunks.pass_over(until(a)?.min(until(b)?));
                }
                Outcome::Zeros | Outcome::Equal => {}
            }
            chunks.finished(range.end - range.start);
        }
        Ok(())
    })?;
    let first = first.into_inner();
    Ok(Comparison { first_difference: (first != u64::MAX).then_some(first), capacities })
}

enum Outcome {
    /// By their maps, both are zeros.
    Zeros,
    Equal,
    /// Offset of the first difference.
    Differ(u64),
}

struct Pair<'a> {
    disks: [Content<'a>; 2],
    sides: [Side<'a>; 2],
    buffers: [Buffer; 2],
}

impl Pair<'_> {
    fn compare(&mut self, range: Range<u64>) -> Result<Outcome, ImageError> {
        self.sides.iter_mut().for_each(|side| side.restart(&range));
        let mut outcome = Outcome::Zeros;
        let mut at = range.start;
        while at < range.end {
            let mut end = (at + STEP).min(range.end);
            let mut zeros = [false; 2];
            for (side, zeros) in self.sides.iter_mut().zip(&mut zeros) {
                let (status, until) = side.at(at)?;
                *zeros = status == Status::Zeros;
                end = end.min(until);
            }
            if zeros != [true, true] {
                outcome = Outcome::Equal;
                if let Some(within) = self.difference(at, end - at, zeros)? {
                    return Ok(Outcome::Differ(at + within as u64));
                }
            }
            at = end;
        }
        Ok(outcome)
    }

    /// The first difference in a range in which each disk is either data or zeros.
    fn difference(&mut self, at: u64, len: u64, zeros: [bool; 2]) -> Result<Option<usize>, ImageError> {
        let [a, b] = &mut self.buffers;
        let (a, b) = (a.first(len), b.first(len));
        for ((disk, data), zeros) in self.disks.iter().zip([&mut *a, &mut *b]).zip(zeros) {
            if !zeros {
                disk.read_at(data, at)?;
            }
        }
        Ok(match zeros {
            [true, _] => (!all_zeros(b)).then(|| b.iter().position(|byte| *byte != 0)).flatten(),
            [_, true] => (!all_zeros(a)).then(|| a.iter().position(|byte| *byte != 0)).flatten(),
            [false, false] if a == b => None,
            [false, false] => a.iter().zip(b).position(|(a, b)| a != b),
        })
    }
}

/// Iterates over the runs of one disk in a range, in step with those of the other.
struct Side<'a> {
    runs: Runs<'a>,
    run: Option<Run>,
}

impl<'a> Side<'a> {
    fn new(disk: Content<'a>) -> Self {
        Self { runs: Runs::between(disk, 0, 0), run: None }
    }

    fn restart(&mut self, range: &Range<u64>) {
        self.runs.restart(range.start, range.end);
        self.run = None;
    }

    /// The status at `at`, and its end. Must be called with ascending offsets.
    fn at(&mut self, at: u64) -> Result<(Status, u64), ImageError> {
        loop {
            match self.run {
                Some(run) if at < run.offset + run.len => return Ok((run.status, run.offset + run.len)),
                _ => match self.runs.next().transpose()? {
                    Some(run) => self.run = Some(run),
                    // Beyond the end of the disk.
                    None => return Ok((Status::Zeros, u64::MAX)),
                },
            }
        }
    }
}

const _: () = assert!(CHUNK.is_multiple_of(STEP));

#[cfg(test)]
mod tests;
