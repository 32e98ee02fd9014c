//! The time of whole operations on image files on several file systems: creation by size, merge, compaction and conversion. For comparison,
//! zeros are written to raw files.
//!
//! An operation ends when its result is on stable storage. Rows run in rounds, like the meter's. If the host lacks the space or the file
//! system for a row, the row has the reason instead of a time.

mod missing;
mod place;
mod work;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use facts::host::Host;

use self::missing::Missing;
use self::place::Place;
use self::work::Work;
use crate::bed::BedError;
use crate::journal::{Identity, Journal, Record};
use crate::meter::Outcome;
use crate::progress::Progress;
use crate::result::{Document, Timing};

/// The operations and sizes to run.
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

    /// Add its operations and sizes to an identity.
    #[must_use]
    pub fn identify(&self, identity: Identity) -> Identity {
        let rows: Vec<String> = self.rows().iter().map(Work::name).collect();
        let sizes = [self.data, self.file_system];
        identity
            .with("operations", &rows)
            .with("bytes of data and file systems", &sizes)
            .with("runs", &self.runs)
    }

    /// Number of rows, if the host has all file systems.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rows().len() * place::NAMES.len()
    }

    /// Expected time of all operations: 300 MB are written per second, and each operation takes another half second.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let written: u64 = self.rows().iter().map(Work::written).sum();
        let seconds = written as f64 / 300e6 + self.rows().len() as f64 * 0.6;
        Duration::from_secs_f64(seconds * f64::from(self.runs) * place::NAMES.len() as f64 + 10.0)
    }
}

/// Run the operations that the journal does not have, on file systems in files of `folder`. They are unmounted when this returns. With
/// `stop` it returns after the current operation.
///
/// # Errors
/// [`BedError`] if the folder cannot be used.
pub fn run(
    plan: &Plan,
    folder: &Path,
    host: Host,
    progress: &mut dyn Progress,
    journal: &mut Journal,
    stop: &AtomicBool,
) -> Result<Outcome, BedError> {
    let places = Place::all(folder, plan.file_system)?;
    let works = plan.rows();
    let mut rows = Vec::new();
    for place in &places {
        rows.extend(works.iter().map(|work| {
            let mut times = journal.times(place.name, &work.name());
            times.truncate(plan.runs as usize);
            Row { place, work, times: Ok(times) }
        }));
    }
    progress.begin(rows.len() * plan.runs as usize);
    for round in 0..plan.runs as usize {
        for row in &mut rows {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            row.run(round, progress, journal);
        }
    }
    progress.end();
    let mut notes: Vec<String> = rows.iter().filter_map(Row::note).collect();
    // One note for each missing file system.
    notes.dedup();
    let failed = rows.iter().any(|row| row.times.as_ref().is_err_and(|missing| !missing.is_skip()));
    let timings = rows.into_iter().map(Row::timing).collect();
    let document = Document { timings, ..Document::empty(None, host) };
    Ok(Outcome { document, notes, failed })
}

/// An operation on a file system.
struct Row<'a> {
    place: &'a Place,
    work: &'a Work,
    /// Seconds of each round.
    times: Result<Vec<f64>, Missing>,
}

impl Row<'_> {
    /// Run the operation, unless the journal has this round.
    fn run(&mut self, round: usize, progress: &mut dyn Progress, journal: &mut Journal) {
        let (place, operation) = (self.place.name, self.work.name());
        progress.job(&format!("{place} {operation}"));
        if let Ok(times) = self.times.as_mut()
            && times.len() <= round
        {
            let root = self.place.can_hold(self.work.needed());
            match root.and_then(|root| self.work.run(root).map_err(Missing::Failed)) {
                Ok(time) => {
                    let seconds = time.as_secs_f64();
                    times.push(seconds);
                    journal.add(&Record::Time { place: place.to_owned(), operation, seconds });
                }
                Err(missing) => self.times = Err(missing),
            }
        }
        progress.done();
    }

    fn note(&self) -> Option<String> {
        let missing = self.times.as_ref().err()?;
        let place = self.place.name;
        Some(match missing {
            Missing::FileSystem(_) => format!("SKIP: {place}: {missing}"),
            Missing::Space(_) => format!("SKIP: {place}: {}: {missing}", self.work.name()),
            Missing::Failed(_) => format!("FAILED: {place}: {}: {missing}", self.work.name()),
        })
    }

    fn timing(self) -> Timing {
        self.work.timing(self.place.name, self.times)
    }
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
        let measure = |journal: &mut Journal| {
            run(&plan, folder.path(), host(), &mut Silent, journal, &AtomicBool::new(false)).unwrap()
        };
        let kept = tempfile::tempdir().unwrap();
        let path = kept.path().join("partial");
        let identity = || plan.identify(Identity::of(&host()));
        let outcome = measure(&mut Journal::begin(&path, identity()).unwrap());
        assert!(!outcome.failed, "{:?}", outcome.notes);
        // With all rounds in the journal, nothing runs, and the times are the same.
        let again = measure(&mut Journal::resume(&path, &identity()).unwrap());
        assert_eq!(again.document, outcome.document);
        // A signal that has already come ends it before the first operation.
        let stopped = AtomicBool::new(true);
        let none = run(&plan, folder.path(), host(), &mut Silent, &mut Journal::none(), &stopped).unwrap();
        assert!(none.document.timings.iter().all(|timing| timing.seconds.is_none()));
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
        let missing = place.can_hold(1 << 60).unwrap_err();
        let reason = missing.to_string();
        assert!(reason.starts_with("needs 1048576T, ") && reason.ends_with("free"), "{reason}");
        let work = Work::Fixed { format: "vhd", size: 1 << 60 };
        let row = |missing| Row { place, work: &work, times: Err(missing) };
        let skipped = row(missing.clone());
        let note = skipped.note().unwrap();
        assert!(note.starts_with("SKIP: ") && note.contains("create vhd fixed 1048576T: needs"), "{note}");
        let timing = skipped.timing();
        assert_eq!((timing.skipped, timing.failed, timing.seconds), (Some(reason), None, None));
        let failed = row(Missing::Failed("no luck".into()));
        assert!(failed.note().unwrap().starts_with("FAILED: "));
        let timing = failed.timing();
        assert_eq!((timing.skipped, timing.failed), (None, Some("no luck".to_owned())));
    }
}
