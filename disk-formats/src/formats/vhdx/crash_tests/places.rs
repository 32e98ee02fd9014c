//! The units of a disk that a crash test compares, and the values that each may have.
//!
//! A unit fails the test if it is torn, or if its value is neither the last certain one nor a later possible one.

use std::ops::Range;

use super::super::blocks::VhdxDisk;
use super::super::testing::{Shape, UNIT, read};
use crate::host::crash::{CrashFile, value_of};

/// The places of a disk that are checked: runs of units around the starts of blocks and in their middles.
pub(super) struct Places {
    pub(super) size: u64,
    pub(super) block: u64,
    pub(super) sector: u64,
    pub(super) runs: Vec<Range<u64>>,
    /// Byte offset of each unit, ascending.
    pub(super) units: Vec<u64>,
}

impl Places {
    pub(super) fn new(shape: Shape) -> Self {
        let (block, sector) = (u64::from(shape.block_size), u64::from(shape.sector.bytes()));
        // Number of sectors before and after the start of a block, and in its middle.
        let (before, behind, middle) = if sector == UNIT { (8, 12, 6) } else { (2, 3, 1) };
        let mut runs: Vec<Range<u64>> = Vec::new();
        for start in (0..=shape.size.div_ceil(block)).map(|number| number * block) {
            runs.push(start.saturating_sub(before * sector)..start + behind * sector);
            runs.push(start + block / 2..start + block / 2 + middle * sector);
            // A place that only larger requests change.
            runs.push(start + block / 4..start + block / 4 + sector);
        }
        runs.push(shape.size - before * sector..shape.size);
        runs.iter_mut().for_each(|run| run.end = run.end.min(shape.size));
        runs.retain(|run| run.start < run.end);
        runs.sort_unstable_by_key(|run| run.start);
        runs.dedup_by(|next, run| {
            let meets = next.start <= run.end;
            run.end = if meets { run.end.max(next.end) } else { run.end };
            meets
        });
        let units = runs.iter().flat_map(|run| run.clone().step_by(UNIT as usize)).collect();
        Self { size: shape.size, block, sector, runs, units }
    }

    /// Indices of the units in a range of the disk.
    pub(super) fn of(&self, offset: u64, len: u64) -> Range<usize> {
        let at = |end: u64| self.units.partition_point(|unit| *unit < end);
        at(offset)..at(offset + len)
    }

    pub(super) fn values(&self, disk: &VhdxDisk, files: &[CrashFile]) -> Result<Vec<u64>, String> {
        let mut values = Vec::with_capacity(self.units.len());
        for run in &self.runs {
            let mut bytes = vec![0; (run.end - run.start) as usize];
            read(disk, files, &mut bytes, run.start).map_err(|error| format!("{run:x?}: {error}"))?;
            for (unit, at) in bytes.chunks_exact(UNIT as usize).zip(run.clone().step_by(UNIT as usize)) {
                values.push(value_of(unit).ok_or_else(|| format!("torn at {at:#x}"))?);
            }
        }
        Ok(values)
    }
}

/// For each unit the possible values: the last certain one, and later ones that may have been written.
pub(super) type Allowed = Vec<Vec<(u64, bool)>>;

pub(super) fn settle(allowed: &mut Allowed) {
    for values in allowed {
        let last = values.iter().rposition(|(_, sure)| *sure).unwrap_or(0);
        values.drain(..last);
    }
}

pub(super) fn check(places: &Places, values: &[u64], allowed: &Allowed) -> Result<(), String> {
    for ((unit, value), allowed) in places.units.iter().zip(values).zip(allowed) {
        if !allowed.iter().any(|(may, _)| may == value) {
            return Err(format!("{unit:#x} holds {value:x?}, and may hold {allowed:x?}"));
        }
    }
    Ok(())
}
