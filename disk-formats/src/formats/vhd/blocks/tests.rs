//! Power failures: a disk over a recorded file, cut after every change, with any combination of the unflushed changes
//! lost.

use super::super::check::check_in;
use super::super::footer::Subformat;
use super::super::testing::{SECTORS, new_image, open, parent};
use super::*;
use crate::formats::findings::Severity;
use crate::host::crash::{CrashFile, stamped, stores};
use crate::host::effort::effort;
use crate::map::chain_map::testing::{contents, flush, hammer, map_for_write};
use crate::map::extent::{Extents, Place};
use crate::map::format::{Format, Mapping};
use crate::queue::conformance::Random;

enum Event {
    /// A failed write leaves old or new values.
    Write {
        sector: u64,
        value: u64,
        failed: bool,
    },
    Flushed,
}

/// A disk with random requests, and the values that it may have after each change of its file.
struct Workload {
    file: CrashFile,
    base: Vec<u8>,
    initial: Vec<u64>,
    /// Each event with the number of recorded changes at its start (writes) or end (flushes).
    events: Vec<(usize, Event)>,
    random: Random,
    next: u64,
}

impl Workload {
    fn new(base: Vec<u8>, initial: Vec<u64>, seed: u64) -> Self {
        let file = CrashFile::new(base.clone());
        Self { file, base, initial, events: Vec::new(), random: Random(seed), next: seed << 20 }
    }

    fn run(&mut self, disk: &SparseVhd, operations: usize, failures: bool) {
        for _ in 0..operations {
            if failures {
                let after = self.random.below(12);
                self.file.fail((after < 8).then_some(after * 3));
            }
            match self.random.below(10) {
                0..6 => self.write(disk),
                6 => self.zero(disk),
                _ => self.flush(disk),
            }
        }
        self.file.fail(None);
    }

    fn range(&mut self) -> (u64, u64) {
        let first = self.random.below(SECTORS);
        (first, 1 + self.random.below((SECTORS - first).min(20)))
    }

    fn note(&mut self, first: u64, values: &[u64]) {
        let at = self.file.len_of_log();
        let writes = values.iter().zip(first..);
        let event =
            |(value, sector): (&u64, u64)| (at, Event::Write { sector, value: *value, failed: false });
        self.events.extend(writes.map(event));
    }

    /// The last `count` recorded writes have failed.
    fn note_failure(&mut self, count: u64) {
        for (_, event) in self.events.iter_mut().rev().take(count as usize) {
            if let Event::Write { failed, .. } = event {
                *failed = true;
            }
        }
    }

    fn write(&mut self, disk: &SparseVhd) {
        let (first, count) = self.range();
        let values: Vec<u64> = (self.next..self.next + count).collect();
        self.next += count;
        self.note(first, &values);
        let (offset, len) = (first * SECTOR, count * SECTOR);
        let Some(extents) = map_for_write(disk, offset, len) else { return self.note_failure(count) };
        let mut bytes = values.iter().flat_map(|value| stamped(*value));
        for extent in extents.as_slice() {
            let Place::File { file: 0, offset } = extent.place else {
                panic!("a write to {:?}", extent.place)
            };
            let part: Vec<u8> = bytes.by_ref().take(extent.len as usize).collect();
            if self.file.write_at(&part, offset).is_err() {
                return self.note_failure(count);
            }
        }
        disk.written(offset, len);
    }

    fn zero(&mut self, disk: &SparseVhd) {
        let (first, count) = self.range();
        self.note(first, &vec![0; count as usize]);
        if disk.write_zeroes(first * SECTOR, count * SECTOR, true).is_err() {
            self.note_failure(count);
        }
    }

    fn flush(&mut self, disk: &SparseVhd) {
        if flush(disk, &self.file).is_ok() {
            self.events.push((self.file.len_of_log(), Event::Flushed));
        }
    }

    /// The values that each sector may have after a power failure that follows the first `cut` changes.
    fn allowed(&self, cut: usize) -> Vec<Vec<u64>> {
        let mut allowed: Vec<Vec<(u64, bool)>> =
            self.initial.iter().map(|value| vec![(*value, false)]).collect();
        for (at, event) in &self.events {
            match event {
                Event::Write { sector, value, failed } if *at <= cut => {
                    allowed[*sector as usize].push((*value, *failed));
                }
                // The last completed write is there. Later writes that failed may be there.
                Event::Flushed if *at <= cut => allowed.iter_mut().for_each(|values| {
                    let last = values.iter().rposition(|(_, failed)| !failed).unwrap_or(0);
                    values.drain(..last);
                }),
                _ => {}
            }
        }
        allowed.into_iter().map(|values| values.into_iter().map(|(value, _)| value).collect()).collect()
    }

    /// Cut the file after every change. Returns the number of states, and one of them.
    fn crash(&mut self, parent: Option<&CrashFile>, exhaustive: usize, samples: u64) -> (usize, Vec<u8>) {
        let (mut states, mut last) = (0, self.base.clone());
        let (base, initial) = (&self.base, &self.initial);
        for cut in 0..=self.file.len_of_log() {
            let allowed = self.allowed(cut);
            let unchanged = |image: &[u8]| match time_stamp(image) == time_stamp(base) {
                // The children would not notice a change.
                true => initial.iter().map(|value| vec![*value]).collect(),
                false => allowed.clone(),
            };
            let open_changes = self.file.open_changes(cut);
            let total = if open_changes <= exhaustive { 1 << open_changes } else { samples };
            let (mut number, random) = (0u64, &mut self.random);
            let pick = |changes: usize| {
                number += 1;
                let survives = |at: usize| match (changes <= exhaustive, number) {
                    (true, _) => (number - 1) >> at & 1 == 1,
                    // All survive, none survives, then random subsets.
                    (false, 1) => true,
                    (false, 2) => false,
                    (false, _) => random.below(2) == 1,
                };
                (number <= total).then(|| (0..changes).map(survives).collect())
            };
            self.file.after_crash(base, cut, pick, |image| {
                states += 1;
                verify(&image, parent, &unchanged(&image))
                    .unwrap_or_else(|why| panic!("cut at {cut}: {why}"));
                last = image;
            });
        }
        (states, last)
    }
}

fn time_stamp(image: &[u8]) -> u32 {
    let found = super::super::footer::find(&CrashFile::new(image.to_vec())).expect("a footer");
    found.footer.time_stamp.get()
}

/// Open the state that a crash has left.
fn verify(image: &[u8], parent: Option<&CrashFile>, allowed: &[Vec<u64>]) -> Result<(), String> {
    let file = CrashFile::new(image.to_vec());
    let report = check_in(&file, false).map_err(|error| error.to_string())?;
    if report.worst() == Some(Severity::Damage) {
        return Err(format!("{:?}", report.findings));
    }
    let disk = open(&file, parent, false)?;
    let values = disk.values().map_err(|error| error.to_string())?;
    for (sector, (value, allowed)) in values.iter().zip(allowed).enumerate() {
        if !value.is_some_and(|value| allowed.contains(&value)) {
            return Err(format!("sector {sector} holds {value:x?}, and may hold {allowed:x?}"));
        }
    }
    Ok(())
}

/// Disks of several shapes go through several lives, each of which starts from a state after the previous crash. With
/// `small`, maps have only as many units as one request needs.
fn lives(failures: bool, small: bool) -> usize {
    let (mut states, mut evictions) = (0, 0);
    let base = parent();
    for (subformat, block_size, units, seed) in [
        (Subformat::Dynamic, 4096, 1, 1),
        (Subformat::Dynamic, 512, 2, 2),
        (Subformat::Differencing, 4096, 5, 3),
        (Subformat::Differencing, 32 << 10, 3, 4),
        (Subformat::Dynamic, 64 << 10, 1, 5),
    ] {
        let parent = (subformat == Subformat::Differencing).then_some(&base);
        let mut image = new_image(subformat, block_size);
        // Damage the copy of the footer, which will soon be the only one.
        image[if seed % 2 == 0 { 40 } else { 511 }] ^= 1;
        for life in 0..if small { 2 * effort() } else { 4 } {
            let disk = open(&CrashFile::new(image.clone()), parent, true).expect("a disk");
            let initial = disk.values().expect("contents").into_iter().map(|value| value.expect("a value"));
            let mut work = Workload::new(image, initial.collect(), seed * 10 + life);
            let mut disk = open(&work.file, parent, false).expect("a disk");
            if small {
                disk = disk.with_map_units(units);
            }
            work.run(&disk, if small { 20 } else { 12 }, failures);
            evictions += disk.map_memory().expect("a map").evictions;
            let (looked_at, last) = work.crash(parent, 5, 12);
            states += looked_at;
            image = last;
        }
    }
    assert!(!small || evictions > 20, "{evictions}");
    states
}

#[test]
fn whatever_a_crash_leaves_holds_what_was_flushed() {
    let states = lives(false, false);
    println!("{states} states after a crash");
    assert!(states > 20_000, "{states}");
}

/// As above, but the file has no space or fails at random moments: the disk serves later requests, and nothing flushed
/// is lost.
#[test]
fn failed_writes_leave_the_disk_as_it_was() {
    println!("{} states after a crash", lives(true, false));
}

/// A guest writes forged footers of another kind of disk all over the blocks. The end of the process at any moment must
/// not leave one where readers look for the footer.
#[test]
fn a_guest_cannot_leave_a_footer_of_its_own() {
    let now = std::time::SystemTime::now();
    let forged = super::super::footer::new(Subformat::Fixed, SECTOR, u64::MAX, [0xEE; 16], now);
    let block = zerocopy::IntoBytes::as_bytes(&forged).repeat(8);
    let image = new_image(Subformat::Dynamic, 4096);
    let killed = |image: &[u8], work: &dyn Fn(&SparseVhd)| {
        let file = CrashFile::new(image.to_vec());
        let disk = open(&file, None, false).expect("a disk");
        work(&disk);
        let mut left = image.to_vec();
        for cut in 0..=file.len_of_log() {
            file.after_crash(image, cut, all_once(), |bytes| {
                let found = super::super::footer::find(&CrashFile::new(bytes.clone()));
                let found = found.unwrap_or_else(|bad| panic!("cut at {cut}: {bad:?}"));
                assert_eq!(found.footer.unique_id, [7; 16], "cut at {cut}");
                left = bytes;
            });
        }
        left
    };
    let fill = |disk: &SparseVhd| {
        for number in [3, 0, 9] {
            disk.write_now(number * 4096, &block).expect("a write");
        }
    };
    // First a killed process over the state of a killed process; then a process that has flushed.
    let left = killed(&image, &fill);
    let left = killed(&left, &fill);
    let mut left = killed(&left, &|disk| {
        fill(disk);
        disk.flush().expect("a flush");
        disk.write_now(20 * 4096, &block).expect("a write");
        disk.flush().expect("a flush");
        disk.write_now(20 * 4096, &stamped(1).repeat(8)).expect("a write");
    });
    // Then a file that lost its trailing footer and ends with a block.
    left.truncate(left.len() - SECTOR as usize);
    killed(&left, &|disk| disk.write_now(20 * 4096, &block).expect("a write"));
}

/// All changes survive: the end of the process, without a power failure.
fn all_once() -> impl FnMut(usize) -> Option<Vec<bool>> {
    let mut left = 1;
    move |changes| {
        left -= 1;
        (left >= 0).then(|| vec![true; changes])
    }
}

/// A killed process may have left writes that are not on stable storage. A flush covers them, even before the first
/// change.
#[test]
fn a_flush_before_the_first_change_covers_an_earlier_process() {
    let file = CrashFile::new(new_image(Subformat::Dynamic, 4096));
    let disk = open(&file, None, false).expect("a disk");
    file.write_at(&stamped(9), file.len().expect("a length")).expect("a write");
    assert!(file.open_changes(file.len_of_log()) > 0);
    disk.flush().expect("a flush");
    assert_eq!(file.open_changes(file.len_of_log()), 0);
}

/// An invalid entry of a parent makes its own block unreadable, and no other.
#[test]
fn a_bad_entry_of_a_parent_harms_its_block_only() {
    use super::super::testing::{layer, layout_of, open_over};
    let base = CrashFile::new(new_image(Subformat::Dynamic, 4096));
    let disk = open(&base, None, false).expect("a disk");
    disk.write_now(0, &stamped(5)).expect("a write");
    drop(disk);
    let (_, _, layout) = layout_of(&base).expect("a layout");
    let mut bytes = base.bytes();
    bytes[layout.bat as usize + 7 * 4..][..4].copy_from_slice(&1u32.to_be_bytes());
    let base = CrashFile::new(bytes);
    let child = CrashFile::new(new_image(Subformat::Differencing, 4096));
    let disk = open_over(&child, Some(layer(&base, layout)), true).expect("a chain");
    assert_eq!(disk.prepare_read(0, 4096), Ok(()));
    assert_eq!(disk.prepare_read(8 * 4096, 4096), Ok(()));
    assert!(disk.prepare_read(7 * 4096, 512).is_err());
}

/// As above, with maps that constantly evict.
#[test]
fn whatever_a_crash_leaves_of_a_disk_with_a_small_map_holds_what_was_flushed() {
    let states = lives(false, true) + lives(true, true);
    assert!(states > 2_000, "{states}");
}

/// The chain of `files`, from the top down, with a map of `units` units.
fn chain(files: &[CrashFile], units: u32) -> SparseVhd {
    let (_, _, layout) = super::super::testing::layout_of(&files[0]).expect("a layout");
    let (found, header, _) = super::super::testing::layout_of(&files[0]).expect("a layout");
    let allocator = Allocator::open(&files[0], &found, &header, layout, true).expect("a table");
    let layers = files.iter().map(|file| {
        let (_, _, layout) = super::super::testing::layout_of(file).expect("a layout");
        super::super::testing::layer(file, layout)
    });
    let info = open(&files[0], None, false).expect("a disk").info().clone();
    SparseVhd::new(info, VhdBlocks::new(layout, files.len() > 1), layers.collect(), Vec::new(), allocator, 0)
        .with_map_units(units)
}

/// Chains of two to five images, each written by several threads through a map that constantly evicts.
#[test]
fn chains_with_small_maps_hold_what_was_written() {
    let mut evictions = 0;
    for (round, block_size) in [4096, 16 << 10, 4096].into_iter().enumerate() {
        let mut files: Vec<CrashFile> = Vec::new();
        let mut values = vec![0; SECTORS as usize];
        for depth in 1..=5 {
            let subformat = if depth == 1 { Subformat::Dynamic } else { Subformat::Differencing };
            files.insert(0, CrashFile::new(new_image(subformat, block_size)));
            let stores = stores(&files);
            // Units for a page, and for two granules of three units, because two threads may each resolve one.
            let disk = chain(&files, 8);
            let seed = round as u64 * 10 + depth;
            evictions += hammer(&disk, &stores, &mut values, seed).evictions;
            drop(disk);
            let disk = chain(&files, 1000);
            assert_eq!(contents(&disk, &stores), values, "depth {depth}");
        }
    }
    assert!(evictions > 1000, "{evictions}");
}

/// A guest touches many granules: the map stays within its budget, even during a flush of all of them.
#[test]
fn a_map_stays_within_its_budget() {
    let file = CrashFile::new(new_image(Subformat::Differencing, 512));
    let disk = open(&file, Some(&parent()), false).expect("a disk").with_map_units(40);
    let mut sectors: Vec<u64> = (0..SECTORS).collect();
    for round in 0..3 {
        for sector in &sectors {
            disk.write_now(sector * SECTOR, &stamped(round * 1000 + sector)).expect("space");
            let memory = disk.map_memory().expect("a map");
            assert!(memory.peak <= memory.budget && memory.budget < 40 * 600 + 64 * 40, "{memory:?}");
        }
        disk.flush().expect("a flush");
        assert!(disk.map_memory().is_some_and(|memory| memory.peak <= memory.budget));
        sectors.reverse();
    }
    assert!(disk.map_memory().is_some_and(|memory| memory.evictions > 0));
    let values = disk.values().expect("contents");
    assert!(values.iter().zip(0..).all(|(value, sector)| *value == Some(2000 + sector)));
}

/// Late writes are counted, and are recorded before they exceed their limit.
#[test]
fn late_writes_are_part_of_the_budget() {
    let file = CrashFile::new(new_image(Subformat::Differencing, 512));
    let disk = open(&file, Some(&parent()), false).expect("a disk").with_map_units(3);
    let known = |sector: u64, write: bool| {
        let mut extents = Extents::new();
        let mapped = match write {
            true => disk.map_write(sector * SECTOR, SECTOR, &mut extents),
            false => disk.map_read(sector * SECTOR, SECTOR, &mut extents),
        };
        (mapped == Ok(Mapping::Ready)).then(|| extents.as_slice().to_vec())
    };
    let mut late = 0;
    // Each sector is written once. Reads are of other pages of the map.
    const WRITTEN: u64 = SECTORS / 2;
    for sector in 0..WRITTEN {
        let extents = loop {
            disk.prepare_write(sector * SECTOR, SECTOR).expect("a block");
            if let Some(extents) = known(sector, true) {
                break extents;
            }
        };
        let Place::File { file: 0, offset } = extents[0].place else { panic!("{extents:?}") };
        file.write_at(&stamped(5000 + sector), offset).expect("a write");
        // Read others until this one is evicted.
        for other in (0..12).map(|by| WRITTEN + 64 * by % WRITTEN) {
            disk.prepare_read(other * SECTOR, SECTOR).expect("a read");
        }
        assert!(known(sector, false).is_none(), "{sector}");
        let before = disk.map_memory().expect("a map").bytes;
        disk.written(sector * SECTOR, SECTOR);
        let memory = disk.map_memory().expect("a map");
        late += u64::from(memory.bytes > before);
        assert!(memory.bytes <= memory.budget && memory.peak <= memory.budget, "{sector}: {memory:?}");
    }
    assert_eq!(late, WRITTEN, "each came late");
    disk.flush().expect("a flush");
    let values = disk.values().expect("contents");
    assert!(values.iter().zip(0..WRITTEN).all(|(value, sector)| *value == Some(5000 + sector)));
}
