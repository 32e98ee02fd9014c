//! The time of whole operations on image files: creation by size, merge, compaction and conversion, on several file systems, and the
//! same size filled with zeros, which is what creation once was.
//!
//! An operation ends when its result is on stable storage. Rows run in rounds, as those of the meter do. A row that the host has no
//! space or no file system for has a reason in place of a time.

mod place;
mod work;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use facts::host::Host;

use self::place::{Place, SKIP};
use self::work::Work;
use crate::bed::BedError;
use crate::meter::Outcome;
use crate::progress::Progress;
use crate::result::Document;
use crate::stat::Stat;

/// What runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of fixed disks. A VHD has at most [`LARGEST_VHD`].
    pub sizes: Vec<u64>,
    /// Bytes that are filled with zeros.
    pub zero_fills: Vec<u64>,
    /// Bytes of data in images that are merged, compacted and converted.
    pub data: u64,
    /// Rounds.
    pub runs: u32,
    /// Bytes of each file system on a loop device.
    pub file_system: u64,
}

/// Bytes of the largest VHD.
pub const LARGEST_VHD: u64 = 2040 << 30;

impl Plan {
    /// All sizes.
    #[must_use]
    pub fn full(runs: u32) -> Self {
        let sizes = [1 << 30, 16 << 30, 128 << 30, 1 << 40, LARGEST_VHD, 16 << 40].to_vec();
        Self { sizes, zero_fills: vec![1 << 30, 4 << 30], data: 1 << 30, runs, file_system: 2100 << 30 }
    }

    /// Fewer sizes, and less data.
    #[must_use]
    pub fn quick(runs: u32) -> Self {
        let sizes = vec![1 << 30, 128 << 30, 1 << 40];
        Self { sizes, zero_fills: vec![256 << 20], data: 128 << 20, ..Self::full(runs) }
    }

    /// Rows on each file system.
    fn rows(&self) -> Vec<Work> {
        let largest = self.sizes.iter().max().copied().unwrap_or(0);
        let mut rows = Vec::new();
        for format in ["vhd", "vhdx"] {
            let most = if format == "vhd" { LARGEST_VHD } else { u64::MAX };
            let sizes = self.sizes.iter().filter(|size| **size <= most);
            rows.extend(sizes.map(|size| Work::Fixed { format, size: *size }));
            rows.push(Work::Dynamic { format, size: largest.min(most) });
            rows.push(Work::Differencing { format, size: largest.min(most) });
            rows.push(Work::Merge { format, data: self.data });
            rows.push(Work::Compact { format, data: self.data });
        }
        rows.push(Work::Convert { data: self.data });
        rows.extend(self.zero_fills.iter().map(|size| Work::ZeroFill { size: *size }));
        rows
    }

    /// How many rows there are, where the host has all file systems.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rows().len() * place::NAMES.len()
    }

    /// Time for all of them, if 300 MB are written a second and each takes half a second beside that.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let written: u64 = self.rows().iter().map(Work::written).sum();
        let seconds = written as f64 / 300e6 + self.rows().len() as f64 * 0.6;
        Duration::from_secs_f64(seconds * f64::from(self.runs) * place::NAMES.len() as f64 + 10.0)
    }
}

/// Run the plan on file systems whose files are in `folder`. What it mounts is unmounted when this returns.
///
/// # Errors
/// [`BedError`] where not even the folder can be used.
pub fn run(plan: &Plan, folder: &Path, host: Host, progress: &mut dyn Progress) -> Result<Outcome, BedError> {
    let places = Place::all(folder, plan.file_system)?;
    let rows = plan.rows();
    let mut notes = Vec::new();
    let mut values: BTreeMap<(usize, usize), Result<Vec<f64>, String>> = BTreeMap::new();
    progress.begin(places.len() * rows.len() * plan.runs as usize);
    for _ in 0..plan.runs {
        for (at, place) in places.iter().enumerate() {
            for (number, work) in rows.iter().enumerate() {
                progress.job(&format!("{} {}", place.name, work.name()));
                let times = values.entry((at, number)).or_insert_with(|| Ok(Vec::new()));
                if let Ok(done) = times {
                    match place.can_hold(work.needed()).and_then(|root| work.run(root)) {
                        Ok(time) => done.push(time.as_secs_f64()),
                        Err(reason) => *times = Err(reason),
                    }
                }
                progress.done();
            }
        }
    }
    progress.end();
    let mut timings = Vec::new();
    let mut failed = false;
    for ((at, number), times) in values {
        let (Some(place), Some(work)) = (places.get(at), rows.get(number)) else { continue };
        let (values, skipped) = match times {
            Ok(values) => (values, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        if let Some(reason) = &skipped {
            failed |= !reason.starts_with(SKIP);
            notes.push(format!("{}: {}: {reason}", place.name, work.name()));
        }
        timings.push(work.timing(place.name, Stat::of(values.iter().copied()), values, skipped));
    }
    // One note for a file system that is not there.
    let place = |note: &str| note.split(':').next().map(str::to_owned);
    notes.dedup_by(|note, before| note.contains("no file system") && place(note) == place(before));
    let document = Document { timings, ..Document::empty(None, host) };
    Ok(Outcome { document, notes, failed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::tests::host;
    use crate::progress::Silent;

    #[test]
    fn every_operation_takes_time_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan {
            sizes: vec![8 << 20, 64 << 20],
            zero_fills: vec![4 << 20],
            data: 4 << 20,
            runs: 2,
            file_system: 512 << 20,
        };
        let outcome = run(&plan, folder.path(), host(), &mut Silent).unwrap();
        assert!(!outcome.failed, "{:?}", outcome.notes);
        let timings = &outcome.document.timings;
        assert_eq!(timings.len() % plan.rows().len(), 0);
        let here: Vec<_> = timings.iter().filter(|timing| timing.skipped.is_none()).collect();
        assert!(here.len() >= plan.rows().len(), "one file system at least: {timings:?}");
        for timing in here {
            let seconds = timing.seconds.unwrap();
            assert!(timing.values.len() == 2 && seconds.min > 0.0 && seconds.max < 60.0, "{timing:?}");
        }
        for timing in timings.iter().filter(|timing| timing.skipped.is_some()) {
            assert!(timing.seconds.is_none(), "{timing:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_does_not_fit_is_skipped_with_the_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let places = Place::all(folder.path(), 512 << 20).unwrap();
        let place = places.iter().find(|place| place.can_hold(0).is_ok()).unwrap();
        let reason = place.can_hold(1 << 60).unwrap_err();
        assert!(reason.starts_with("SKIP: needs 1048576T, ") && reason.ends_with("free"), "{reason}");
    }
}
