//! Power failures: a nested image over a recorded file, cut after every change, with any combination of the unflushed
//! changes lost. The disk must open, and all flushed sectors must be there.

use std::collections::BTreeMap;

use super::*;
use crate::contract::error::IoError;
use crate::contract::info::{DiscardLimits, DiskInfo, SectorSize};
use crate::formats::vhdx::CreateOptions;
use crate::host::crash::{CrashFile, stamped, stores};
use crate::map::chain_map::testing::flush;
use crate::queue::conformance::Random;

const SECTOR: u64 = 512;

/// Description of the outermost disk, which is the file.
fn host(read_only: bool) -> DiskInfo {
    DiskInfo {
        kind: Kind { format: "raw", subformat: None },
        capacity: 0,
        logical_sector: SectorSize::B512,
        physical_sector: 4096,
        read_only,
        volatile_cache: true,
        discard: Some(DiscardLimits { granularity: 512, reads_zero: true }),
        buffer_alignment: 1,
    }
}

fn outer(file: &CrashFile, vhdx: bool, read_only: bool) -> Result<Arc<dyn Format>, OpenError> {
    let store = Arc::new(file.clone());
    if vhdx {
        return Ok(Arc::from(crate::formats::vhdx::open_inside(store, &host(read_only), None)?));
    }
    match vhd::open_inside(store, &host(read_only))? {
        vhd::NestedVhd::Dynamic(disk) => Ok(Arc::from(disk as Box<dyn Format>)),
        vhd::NestedVhd::Fixed(_) => unreachable!("a dynamic disk"),
    }
}

fn inner(file: &CrashFile, vhdx: bool, read_only: bool) -> Result<Arc<dyn Format>, OpenError> {
    let mut store = Container::new(Path::new("crash//"), outer(file, vhdx, read_only)?);
    store.stores = stores([file]);
    enter(store, None, true, 0)
}

/// Properties of the two images.
#[derive(Clone, Copy)]
struct Shape {
    /// The outer image: whether it is a VHDX, and its size.
    outer: (bool, u64),
    /// The inner image, likewise.
    inner: (bool, u64),
}

fn create(path: &Path, (vhdx, size): (bool, u64), block: u32) {
    if vhdx {
        let options =
            CreateOptions { block_size: Some(1 << 20), logical_sector: None, physical_sector: None };
        crate::formats::vhdx::create_dynamic(path, size, options).unwrap();
    } else {
        vhd::create_dynamic(path, size, Some(block)).unwrap();
    }
}

/// The file with an empty image in an image.
fn base(shape: Shape) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let [around, inside] = ["outer", "inner"].map(|name| folder.path().join(name));
    create(&around, shape.outer, 8 << 10);
    create(&inside, shape.inner, 4 << 10);
    let data = std::fs::read(inside).unwrap();
    let file = CrashFile::new(std::fs::read(around).unwrap());
    let disk = outer(&file, shape.outer.0, false).unwrap();
    let stores = stores([&file]);
    Content::over(&*disk, &stores).write_at(&data, 0).unwrap();
    disk.flush().unwrap();
    drop(disk);
    file.bytes()
}

/// Events, each with the number of recorded changes at its start (flushes: at their end).
enum Event {
    Write(usize, u64, u64),
    Flushed(usize),
}

struct Workload {
    file: CrashFile,
    shape: Shape,
    events: Vec<Event>,
    random: Random,
}

impl Workload {
    fn run(&mut self, operations: u64) {
        let sectors = self.shape.inner.1 / SECTOR;
        let disk = inner(&self.file, self.shape.outer.0, false).unwrap();
        let stores = stores([&self.file]);
        for number in 0..operations {
            let first = self.random.below(sectors);
            let count = 1 + self.random.below((sectors - first).min(24));
            let (offset, len, at) = (first * SECTOR, count * SECTOR, self.file.len_of_log());
            let what = self.random.below(10);
            let value = |sector: u64| if what < 6 { (number + 1) << 20 | sector } else { 0 };
            if what < 8 {
                self.events
                    .extend((first..first + count).map(|sector| Event::Write(at, sector, value(sector))));
            }
            match what {
                0..6 => {
                    let data: Vec<u8> =
                        (first..first + count).flat_map(|sector| stamped(value(sector))).collect();
                    Content::over(&*disk, &stores).write_at(&data, offset).unwrap();
                }
                6 => disk.write_zeroes(offset, len, number % 2 == 0).unwrap(),
                7 => disk.discard(offset, len).unwrap(),
                _ => {
                    flush(&*disk, &self.file).unwrap();
                    self.events.push(Event::Flushed(self.file.len_of_log()));
                }
            }
        }
    }

    /// The values that each sector may have after a failure that follows the first `cut` changes.
    fn allowed(&self, cut: usize) -> BTreeMap<u64, Vec<u64>> {
        let mut allowed: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for event in &self.events {
            match event {
                Event::Write(at, sector, value) if *at <= cut => {
                    allowed.entry(*sector).or_insert_with(|| vec![0]).push(*value);
                }
                Event::Flushed(at) if *at <= cut => allowed.values_mut().for_each(|values| {
                    let last = values.len() - 1;
                    values.drain(..last);
                }),
                _ => {}
            }
        }
        allowed
    }

    /// Check the disk that a failure has left, opened first for reading and then for writing.
    fn check(&self, bytes: Vec<u8>, cut: usize) {
        let allowed = self.allowed(cut);
        for read_only in [true, false] {
            let file = CrashFile::new(bytes.clone());
            let disk = inner(&file, self.shape.outer.0, read_only)
                .unwrap_or_else(|error| panic!("cut {cut}: {error}"));
            let stores = stores([&file]);
            let mut data = vec![0; self.shape.inner.1 as usize];
            match Content::over(&*disk, &stores).read_at(&mut data, 0) {
                // The log changes blocks that are payload of the inner image.
                Err(ImageError::Io { source: IoError::Damaged(why), .. })
                    if read_only && why.contains("for writing") =>
                {
                    continue;
                }
                done => done.unwrap_or_else(|error| panic!("cut {cut}: {error}")),
            }
            for (sector, bytes) in data.chunks_exact(SECTOR as usize).enumerate() {
                let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let good = allowed.get(&(sector as u64)).map_or(value == 0, |values| values.contains(&value));
                assert!(
                    good && bytes == stamped(value),
                    "cut {cut}, sector {sector}: {value:#x}, expected {:x?}",
                    allowed.get(&(sector as u64))
                );
            }
        }
    }
}

/// Whether the file of an outer VHD ends with the footer of the inner image. Only a file that lost a change of its
/// length, but kept a later write beyond it, can end so. File systems do not do that: a length reaches the medium
/// before the data that it makes visible.
fn ends_inside(bytes: &[u8], shape: Shape) -> bool {
    let last = bytes.last_chunk::<512>();
    last.is_some_and(|last| last.starts_with(b"conectix") && last[48..56] == shape.inner.1.to_be_bytes())
}

fn survives(shape: Shape, seeds: u64, operations: u64, cuts: u64) {
    let base = base(shape);
    let (mut states, mut skipped) = (0, 0);
    for seed in 1..=seeds {
        let mut work =
            Workload { file: CrashFile::new(base.clone()), shape, events: Vec::new(), random: Random(seed) };
        work.run(operations);
        assert!(work.events.iter().any(|event| matches!(event, Event::Flushed(_))));
        let mut random = Random(seed << 8);
        for _ in 0..cuts {
            let cut = 1 + random.below(work.file.len_of_log() as u64) as usize;
            let mut rounds = 0;
            let pick = |open: usize| {
                rounds += 1;
                // First all lost, then all survived, then random subsets.
                (rounds <= 3)
                    .then(|| (0..open).map(|_| rounds == 2 || rounds == 3 && random.below(2) == 0).collect())
            };
            work.file.after_crash(&base, cut, pick, |bytes| {
                states += 1;
                match ends_inside(&bytes, shape) {
                    true => skipped += 1,
                    false => work.check(bytes, cut),
                }
            });
        }
    }
    assert_eq!(states, seeds * cuts * 3);
    assert!(20 * skipped < states, "{skipped} of {states} states skipped");
}

#[test]
fn a_vhd_in_a_vhd() {
    survives(Shape { outer: (false, 256 << 10), inner: (false, 64 << 10) }, 12, 60, 40);
}

#[test]
fn a_vhd_in_a_vhdx() {
    survives(Shape { outer: (true, 2 << 20), inner: (false, 64 << 10) }, 2, 40, 16);
}

#[test]
fn a_vhdx_in_a_vhdx() {
    survives(Shape { outer: (true, 8 << 20), inner: (true, 2 << 20) }, 2, 40, 12);
}

/// The backup GPT of a disk is moved: at each moment the primary GPT is valid, and so is a backup, at the old place or the new one. Whatever is
/// left, the next move completes it, and leaves zeros behind the new end.
#[test]
fn a_backup_gpt_that_moves() {
    const SIZE: u64 = 256 << 10;
    for (vhdx, cut) in [(false, 64 << 10), (false, 1024), (false, 512), (true, 96 << 10)] {
        // A disk whose end moves by little has the new backup's entries below the old ones.
        let (new, full) = ((SIZE - cut) / SECTOR, if vhdx { 2 << 20 } else { SIZE });
        let (new, old) = (new + (full - SIZE) / SECTOR, full / SECTOR);
        let shape = Shape { outer: (vhdx, full), inner: (false, 64 << 10) };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outer");
        create(&path, shape.outer, 8 << 10);
        let file = CrashFile::new(std::fs::read(&path).unwrap());
        let with = |file: &CrashFile, use_it: &mut dyn FnMut(Content<'_>)| {
            let disk = outer(file, vhdx, false).unwrap();
            use_it(Content::over(&*disk, &stores([file])));
        };
        with(&file, &mut |content| gpt_backup::tests::fill(content));
        let base = file.bytes();
        let run = |file: &CrashFile| {
            let mut moved = true;
            with(file, &mut |content| {
                let planned = Move::plan(content, new * SECTOR).ok().expect("a plan");
                moved = planned.is_none_or(|planned| planned.run().is_ok());
            });
            moved
        };
        let backups = |file: &CrashFile| {
            let mut found = Vec::new();
            with(file, &mut |content| found = gpt_backup::tests::backups(content, &[old - 1, new - 1]));
            found
        };
        let mut random = Random(7);
        let (mut states, mut failures) = (0, 0);
        for fails in (0..).step_by(if vhdx { 5 } else { 1 }) {
            let file = CrashFile::new(base.clone());
            file.fail(Some(fails));
            let whole = run(&file);
            file.fail(None);
            failures += u64::from(!whole);
            // Of a run that failed, its end; of the whole one, each moment.
            let from = if whole { 0 } else { file.len_of_log() };
            for at in (from..=file.len_of_log()).step_by(if vhdx { 7 } else { 1 }) {
                let mut rounds = 0;
                let pick = |open: usize| {
                    rounds += 1;
                    (rounds <= 4).then(|| {
                        (0..open).map(|_| rounds == 2 || rounds > 2 && random.below(2) == 0).collect()
                    })
                };
                file.after_crash(&base, at, pick, |bytes| {
                    states += 1;
                    let left = CrashFile::new(bytes);
                    let found = backups(&left);
                    assert!(!found.is_empty(), "cut {cut}, after {fails} and {at}: no backup");
                    assert!(run(&left), "cut {cut}, after {fails} and {at}: the next move fails");
                    assert_eq!(backups(&left), [new - 1], "cut {cut}, after {fails} and {at}");
                    with(&left, &mut |content| {
                        let mut tail = vec![0; ((old - new) * SECTOR) as usize];
                        content.read_at(&mut tail, new * SECTOR).unwrap();
                        assert!(tail.iter().all(|byte| *byte == 0), "cut {cut}, after {fails} and {at}");
                    });
                });
            }
            if whole {
                break;
            }
        }
        assert!(states > 100 && failures > 0, "{states} states, {failures} failures");
    }
}
