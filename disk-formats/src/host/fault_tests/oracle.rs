//! The values that each sector may have.

use std::ops::Range;

use super::super::crash::value_of;

/// Smallest unit that is written atomically.
pub(super) const UNIT: u64 = 512;

/// The sectors of a disk that are written and checked, in runs.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub(super) size: u64,
    pub(super) runs: Vec<Range<u64>>,
    /// Byte offset of each sector, ascending.
    pub(super) units: Vec<u64>,
}

impl Places {
    /// All sectors of a small disk. Of others: the first sectors of each `block`, those in its middle, and the last.
    pub(super) fn new(size: u64, block: u64) -> Self {
        let mut runs: Vec<Range<u64>> = Vec::new();
        if size <= 256 << 10 {
            runs.push(0..size);
        } else {
            for start in (0..size).step_by(block as usize) {
                let (middle, end) = (start + block / 2, start + block);
                runs.extend([start..start + 10 * UNIT, middle..middle + 6 * UNIT, end - 4 * UNIT..end]);
            }
            runs.iter_mut().for_each(|run| run.end = run.end.min(size));
            runs.retain(|run| run.start < run.end);
        }
        let units = runs.iter().flat_map(|run| run.clone().step_by(UNIT as usize)).collect();
        Self { size, runs, units }
    }

    /// Indices of the sectors in a range of the disk.
    pub(super) fn of(&self, offset: u64, len: u64) -> Range<usize> {
        let at = |end: u64| self.units.partition_point(|unit| *unit < end);
        at(offset)..at(offset + len)
    }

    /// The values of all sectors, read by `read`.
    pub(super) fn values(
        &self,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), String>,
    ) -> Result<Vec<u64>, String> {
        let mut values = Vec::with_capacity(self.units.len());
        for run in &self.runs {
            let mut bytes = vec![0; (run.end - run.start) as usize];
            read(run.start, &mut bytes)?;
            for (unit, at) in bytes.chunks_exact(UNIT as usize).zip(run.clone().step_by(UNIT as usize)) {
                values.push(value_of(unit).ok_or_else(|| format!("the sector at {at:#x} is torn"))?);
            }
        }
        Ok(values)
    }
}

/// For each sector its value at the last successful flush, then the values written since, and whether each write was
/// acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Oracle {
    history: Vec<Vec<(u64, bool)>>,
    /// No flush has failed since: without a power failure, acknowledged values are there.
    certain: bool,
}

impl Oracle {
    pub(super) fn new(values: &[u64]) -> Self {
        Self { history: values.iter().map(|value| vec![(*value, true)]).collect(), certain: true }
    }

    /// A write of values to these sectors has ended.
    pub(super) fn wrote(&mut self, units: Range<usize>, value: impl Fn(usize) -> u64, acknowledged: bool) {
        for unit in units {
            self.history[unit].push((value(unit), acknowledged));
        }
    }

    /// A flush of all, or of some sectors, was acknowledged.
    pub(super) fn flushed(&mut self, units: Option<Range<usize>>) {
        self.certain |= units.is_none();
        let units = units.unwrap_or(0..self.history.len());
        for values in &mut self.history[units] {
            let last = values.iter().rposition(|(_, sure)| *sure).unwrap_or(0);
            values.drain(..last);
        }
    }

    /// A flush has failed.
    pub(super) fn flush_failed(&mut self) {
        self.certain = false;
    }

    /// The disk was closed and opened again. If a flush failed, the data of that flush may be lost.
    pub(super) fn reopened(&mut self) {
        if !self.certain {
            self.history
                .iter_mut()
                .for_each(|values| values.iter_mut().skip(1).for_each(|value| value.1 = false));
            self.certain = true;
        }
    }

    /// Whether the sectors may have these values: without a power failure, or `after` one or after an eviction.
    pub(super) fn check(&self, places: &Places, values: &[u64], after: bool) -> Result<(), String> {
        let mut units = places.units.iter().zip(values).enumerate();
        units.try_for_each(|(unit, (at, value))| self.check_unit(unit, *at, *value, after))
    }

    /// As `check`, for the bytes of a range, without a power failure.
    pub(super) fn check_range(&self, places: &Places, offset: u64, bytes: &[u8]) -> Result<(), String> {
        for (unit, bytes) in places.of(offset, bytes.len() as u64).zip(bytes.chunks_exact(UNIT as usize)) {
            let at = places.units[unit];
            let value = value_of(bytes).ok_or_else(|| format!("the sector at {at:#x} is torn"))?;
            self.check_unit(unit, at, value, false)?;
        }
        Ok(())
    }

    fn check_unit(&self, unit: usize, at: u64, value: u64, after: bool) -> Result<(), String> {
        let known = &self.history[unit];
        let last = known.iter().rposition(|(_, sure)| *sure).unwrap_or(0);
        let allowed = if after || !self.certain { known } else { &known[last..] };
        match allowed.iter().any(|(may, _)| *may == value) {
            true => Ok(()),
            false => Err(format!("{at:#x} holds {value:x?}, and may hold {allowed:x?}")),
        }
    }
}
