//! Power failures: a chain over files on record, cut everywhere, also in the replay of its log, with the changes that were not
//! durable lost in any combination.
//!
//! A run looks at 100,000 states. For a longer one, of other workloads: `PARADISK_CRASH_STATES=50000000 cargo test -p
//! paradisk-disk-formats vhdx::crash_tests -- --nocapture`.

use std::ops::Range;
use std::sync::Arc;

use super::disk::VhdxDisk;
use super::testing::{Shape, UNIT, new_image, open, opened, read, stamped, value_of};
use crate::disk::info::SectorSize;
use crate::error::IoError;
use crate::formats::format::{Flush, Format, Mapping};
use crate::host::crash::{CrashFile, Image};
use crate::host::store::{Store, io_error};
use crate::map::epochs::Participant;
use crate::map::extent::{Extents, Place};
use crate::queue::conformance::Random;

const MIB: u64 = 1 << 20;
/// States that a run looks at without a word from outside.
const STATES: usize = 100_000;
/// Tests that share them.
const TESTS: usize = 8;
/// Values of units that the parents have written, beside their numbers.
const PARENT: u64 = 1 << 40;
const MIDDLE: u64 = 1 << 41;

/// The places of a disk that are looked at: runs of units round the starts of blocks and in their middles.
struct Places {
    size: u64,
    block: u64,
    sector: u64,
    runs: Vec<Range<u64>>,
    /// Byte offset of each unit, rising.
    units: Vec<u64>,
}

impl Places {
    fn new(shape: Shape) -> Self {
        let (block, sector) = (u64::from(shape.block_size), u64::from(shape.sector.bytes()));
        // Of sectors: before and behind the start of a block, and in its middle.
        let (before, behind, middle) = if sector == UNIT { (8, 12, 6) } else { (2, 3, 1) };
        let mut runs: Vec<Range<u64>> = Vec::new();
        for start in (0..=shape.size.div_ceil(block)).map(|number| number * block) {
            runs.push(start.saturating_sub(before * sector)..start + behind * sector);
            runs.push(start + block / 2..start + block / 2 + middle * sector);
            // One that only changes with others.
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

    /// The units of a range of the disk, by their number.
    fn of(&self, offset: u64, len: u64) -> Range<usize> {
        let at = |end: u64| self.units.partition_point(|unit| *unit < end);
        at(offset)..at(offset + len)
    }

    fn values(&self, disk: &VhdxDisk, files: &[CrashFile]) -> Result<Vec<u64>, String> {
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

enum Event {
    /// `sure`: done; else it leaves old or new.
    Write {
        unit: usize,
        value: u64,
        sure: bool,
    },
    Flushed,
}

/// What a unit may hold: what was surely written last, and what may have been written since.
type Allowed = Vec<Vec<(u64, bool)>>;

fn settle(allowed: &mut Allowed) {
    for values in allowed {
        let last = values.iter().rposition(|(_, sure)| *sure).unwrap_or(0);
        values.drain(..last);
    }
}

fn check(places: &Places, values: &[u64], allowed: &Allowed) -> Result<(), String> {
    for ((unit, value), allowed) in places.units.iter().zip(values).zip(allowed) {
        if !allowed.iter().any(|(may, _)| may == value) {
            return Err(format!("{unit:#x} holds {value:x?}, and may hold {allowed:x?}"));
        }
    }
    Ok(())
}

/// A write that is mapped, and whose payload is in flight.
struct Held {
    offset: u64,
    values: Vec<u64>,
    extents: Extents,
    generation: u8,
    /// Something else was done to its place meanwhile: which comes last is open.
    raced: bool,
}

/// A disk at work, and what is known of it after each change of its file.
struct Workload<'a> {
    places: &'a Places,
    files: Vec<CrashFile>,
    base: Image,
    initial: Vec<u64>,
    /// With the length of the log when it began (writes) or ended (flushes).
    events: Vec<(usize, Event)>,
    /// As the disk is to be read now.
    now: Allowed,
    held: Vec<Held>,
    random: Random,
    next: u64,
    differencing: bool,
    fixed: bool,
    /// A map of so many units.
    units: Option<u32>,
}

impl<'a> Workload<'a> {
    fn new(places: &'a Places, base: Image, below: &[CrashFile], initial: Vec<u64>, seed: u64) -> Self {
        let mut files = vec![CrashFile::of(base.clone())];
        files.extend_from_slice(below);
        let now = initial.iter().map(|value| vec![(*value, true)]).collect();
        Self {
            places,
            files,
            base,
            initial,
            events: Vec::new(),
            now,
            held: Vec::new(),
            random: Random(seed << 1 | 1),
            next: seed << 20,
            differencing: !below.is_empty(),
            fixed: false,
            units: None,
        }
    }

    fn file(&self) -> &CrashFile {
        &self.files[0]
    }

    fn run(&mut self, disk: &VhdxDisk, operations: usize, failures: bool) {
        self.fixed = disk.info().discard.is_none();
        let mut participant = disk.epochs().expect("a disk that is written").enter();
        for number in 0..operations {
            if failures {
                // Mostly soon, but also late in the many changes with which a session begins.
                let within = 1 << self.random.below(8);
                let after = self.random.below(within);
                let fails = self.random.below(2) == 0;
                self.file().fail(fails.then_some(after));
            }
            match self.random.below(16) {
                0..6 => self.write(disk, &mut participant, false),
                6 => self.write(disk, &mut participant, true),
                7 => self.arrive(disk, &mut participant),
                8..10 => self.zero(disk),
                10..13 => self.discard(disk),
                _ => self.flush(disk),
            }
            settle(&mut self.now);
            if self.units.is_some() {
                // A look at the disk may have to flush.
                self.file().fail(None);
            }
            let values = self.places.values(disk, &self.files).expect("contents");
            check(self.places, &values, &self.now).unwrap_or_else(|why| panic!("operation {number}: {why}"));
        }
        self.file().fail(None);
        while !self.held.is_empty() {
            self.arrive(disk, &mut participant);
        }
    }

    /// Note what is about to be done; returns the events' numbers, for [`unsure`](Self::unsure).
    fn note(&mut self, offset: u64, values: &[u64], sure: bool) -> Range<usize> {
        let (at, units) = (self.file().len_of_log(), self.places.of(offset, values.len() as u64 * UNIT));
        for held in &mut self.held {
            let end = held.offset + held.values.len() as u64 * UNIT;
            held.raced |= held.offset < offset + values.len() as u64 * UNIT && offset < end;
        }
        let first = self.events.len();
        for unit in units {
            let value = values[((self.places.units[unit] - offset) / UNIT) as usize];
            self.events.push((at, Event::Write { unit, value, sure }));
            self.now[unit].push((value, sure));
        }
        first..self.events.len()
    }

    /// It has failed, or nothing is promised.
    fn unsure(&mut self, noted: Range<usize>) {
        for (_, event) in &mut self.events[noted] {
            if let Event::Write { unit, value, sure } = event {
                *sure = false;
                let entry = self.now[*unit].iter_mut().rev().find(|(noted, _)| noted == value);
                entry.expect("noted").1 = false;
            }
        }
    }

    /// Some sectors that are close together.
    fn close(&mut self) -> (u64, u64) {
        let (places, random) = (self.places, &mut self.random);
        let run = &places.runs[random.below(places.runs.len() as u64) as usize];
        let sectors = (run.end - run.start) / places.sector;
        let first = random.below(sectors);
        let count = 1 + random.below((sectors - first).min(12));
        (run.start + first * places.sector, count * places.sector)
    }

    /// Blocks, or from anywhere to anywhere, or sectors that are close together.
    fn wide(&mut self) -> (u64, u64) {
        let places = self.places;
        let kind = self.random.below(8);
        let (one, other) = (self.close().0, self.close());
        let end = other.0 + other.1;
        match kind {
            0..4 => {
                let start = one / places.block * places.block;
                let blocks = if kind == 0 { 2 } else { 1 };
                (start, (blocks * places.block).min(places.size - start))
            }
            4 if one < end => (one, end - one),
            _ => other,
        }
    }

    fn write(&mut self, disk: &VhdxDisk, participant: &mut Participant, hold: bool) {
        let (offset, len) = self.close();
        let count = len / UNIT;
        let values: Vec<u64> = (self.next..self.next + count).collect();
        self.next += count;
        let generation = participant.begin(disk.epochs().expect("a disk that is written"));
        let mut extents = Extents::new();
        if disk.map_write(offset, len, &mut extents) == Ok(Mapping::Blocked) {
            if disk.prepare_write(offset, len).is_err() {
                return participant.end(generation);
            }
            extents.clear();
            assert_eq!(disk.map_write(offset, len, &mut extents), Ok(Mapping::Ready));
        }
        self.held.push(Held { offset, values, extents, generation, raced: false });
        if !hold || self.held.len() > 3 {
            let last = self.held.len() - 1;
            self.arrive_at(last, disk, participant);
        }
    }

    /// The payload of one of the writes in flight.
    fn arrive(&mut self, disk: &VhdxDisk, participant: &mut Participant) {
        if !self.held.is_empty() {
            let one = self.random.below(self.held.len() as u64) as usize;
            self.arrive_at(one, disk, participant);
        }
    }

    fn arrive_at(&mut self, one: usize, disk: &VhdxDisk, participant: &mut Participant) {
        let held = self.held.swap_remove(one);
        let noted = self.note(held.offset, &held.values, true);
        let mut bytes = held.values.iter().flat_map(|value| stamped(*value));
        let mut done = true;
        for extent in held.extents.as_slice() {
            let Place::File { file: 0, offset } = extent.place else {
                panic!("a write to {:?}", extent.place)
            };
            let part: Vec<u8> = bytes.by_ref().take(extent.len as usize).collect();
            done &= self.file().write_at(&part, offset).is_ok();
        }
        if done {
            disk.written(held.offset, held.values.len() as u64 * UNIT);
        }
        if !done || held.raced {
            self.unsure(noted);
        }
        participant.end(held.generation);
    }

    fn zero(&mut self, disk: &VhdxDisk) {
        let (offset, len) = self.wide();
        let noted = self.note(offset, &vec![0; (len / UNIT) as usize], true);
        let may_unmap = self.random.below(2) == 0;
        if disk.write_zeroes(offset, len, may_unmap).is_err() {
            self.unsure(noted);
        }
    }

    /// Whole blocks read as zeros, and so does everything on a disk without a parent.
    fn discard(&mut self, disk: &VhdxDisk) {
        let (offset, len) = self.wide();
        if self.fixed {
            return assert_eq!(disk.discard(offset, len), Err(IoError::Unsupported));
        }
        let (block, end) = (self.places.block, offset + len);
        let first = offset.next_multiple_of(block).min(end);
        let last = if end == self.places.size { end } else { (end / block * block).max(first) };
        let parts =
            [(offset, first, !self.differencing), (first, last, true), (last, end, !self.differencing)];
        let noted = parts
            .map(|(from, to, sure)| (self.note(from, &vec![0; ((to - from) / UNIT) as usize], true), sure));
        let done = disk.discard(offset, len).is_ok();
        for (noted, _) in noted.into_iter().filter(|(_, sure)| !done || !sure) {
            self.unsure(noted);
        }
    }

    fn flush(&mut self, disk: &VhdxDisk) {
        let done = match disk.flush_kind() {
            Flush::Format => disk.flush(),
            Flush::SyncFiles => Store::sync(self.file()).map_err(|error| io_error(&error)),
        };
        if done.is_ok() {
            self.events.push((self.file().len_of_log(), Event::Flushed));
        }
    }

    /// Cut everywhere; the number of states looked at, and one of them.
    fn crash(mut self, exhaustive: usize, samples: usize) -> (usize, Image) {
        let mut allowed: Allowed = self.initial.iter().map(|value| vec![(*value, true)]).collect();
        let (mut states, mut last) = (0, self.base.clone());
        let mut events = self.events.iter().peekable();
        let mut at_cut = usize::MAX;
        let mut picked: Vec<Vec<bool>> = Vec::new();
        let mut random = Random(self.random.next());
        let mut other = Random(self.random.next());
        let pick = |cut: usize, open: usize| {
            if at_cut != cut {
                (at_cut, picked) = (cut, picks(open, exhaustive, samples, &mut random));
            }
            picked.pop()
        };
        let places = self.places;
        let below = &self.files[1..];
        self.files[0].all_states(&self.base, pick, |cut, image| {
            while let Some((_, event)) = events.next_if(|(at, _)| *at <= cut) {
                match event {
                    Event::Write { unit, value, sure } => allowed[*unit].push((*value, *sure)),
                    Event::Flushed => settle(&mut allowed),
                }
            }
            states += 1;
            let deep = other.below(48);
            states += verify(places, &image, below, &allowed, deep, &mut other)
                .unwrap_or_else(|why| panic!("cut at {cut}: {why}"));
            if other.below(states as u64 / 2 + 1) == 0 {
                last = image;
            }
        });
        (states, last)
    }
}

/// Which of `open` changes survive: every combination of up to `exhaustive`; of more all, none, and some, few to most.
fn picks(open: usize, exhaustive: usize, samples: usize, random: &mut Random) -> Vec<Vec<bool>> {
    if open <= exhaustive {
        return (0..1 << open).map(|bits: u64| (0..open).map(|at| bits >> at & 1 == 1).collect()).collect();
    }
    let of_sixteen = [16, 0].into_iter().chain([15, 8, 1].into_iter().cycle());
    let pick = |of_sixteen| (0..open).map(|_| random.below(16) < of_sixteen).collect();
    of_sixteen.take(samples).map(pick).collect()
}

fn with(image: &Image, below: &[CrashFile]) -> Vec<CrashFile> {
    let mut files = vec![CrashFile::of(image.clone())];
    files.extend_from_slice(below);
    files
}

/// Open what a crash has left: with the log in memory, then with the log replayed. Now and then (by `deep`) cut the replay, or
/// use the disk. How many more states were looked at.
fn verify(
    places: &Places,
    image: &Image,
    below: &[CrashFile],
    allowed: &Allowed,
    deep: u64,
    random: &mut Random,
) -> Result<usize, String> {
    let files = with(image, below);
    let disk = open(&files, true).map_err(|why| format!("read-only: {why}"))?;
    let values = places.values(&disk, &files).map_err(|why| format!("read-only: {why}"))?;
    check(places, &values, allowed).map_err(|why| format!("read-only: {why}"))?;
    let disk = open(&files, false)?;
    if places.values(&disk, &files)? != values {
        return Err("replayed it holds something else".into());
    }
    match deep {
        0 => cut_replay(places, image, &files, &values, random),
        1..3 => go_on(places, disk, &files, values, random).map(|()| 0),
        _ => Ok(0),
    }
}

/// Cut the replay that was made in `files` everywhere, and open the disk again.
fn cut_replay(
    places: &Places,
    image: &Image,
    files: &[CrashFile],
    values: &[u64],
    random: &mut Random,
) -> Result<usize, String> {
    let (mut states, mut result) = (0, Ok(()));
    let (mut at_cut, mut picked) = (usize::MAX, Vec::new());
    let pick = |cut: usize, open: usize| {
        if at_cut != cut {
            (at_cut, picked) = (cut, picks(open, 1, 4, random));
        }
        picked.pop()
    };
    files[0].all_states(image, pick, |cut, left| {
        states += 1;
        for read_only in [true, false] {
            let files = with(&left, &files[1..]);
            let found = open(&files, read_only).and_then(|disk| places.values(&disk, &files));
            match found {
                Ok(found) if found == values => {}
                Ok(_) => result = Err(format!("replay cut at {cut}: it holds something else")),
                Err(why) => result = Err(format!("replay cut at {cut}: {why}")),
            }
        }
    });
    result.map(|()| states)
}

/// Write everywhere, close the disk, and open it without a log.
fn go_on(
    places: &Places,
    disk: VhdxDisk,
    files: &[CrashFile],
    mut values: Vec<u64>,
    random: &mut Random,
) -> Result<(), String> {
    let failed = |error: IoError| format!("going on: {error}");
    for run in &places.runs {
        if random.below(3) > 0 {
            let value = 1 << 50 | run.start;
            let bytes = stamped(value).repeat(((run.end - run.start) / UNIT) as usize);
            disk.write_now(run.start, &bytes).map_err(failed)?;
            values[places.of(run.start, run.end - run.start)].fill(value);
        }
        if random.below(4) == 0 {
            disk.flush().map_err(failed)?;
        }
    }
    if places.values(&disk, files)? != values {
        return Err("going on: it does not hold what was written".into());
    }
    drop(disk);
    if !opened(&files[0], true)?.headers.log_guid().is_nil() {
        return Err("the log of a disk that was closed is open".into());
    }
    let disk = open(files, true)?;
    let found = places.values(&disk, files)?;
    match found.iter().zip(&values).position(|(found, value)| found != value) {
        None => Ok(()),
        Some(at) => Err(format!(
            "going on: closed, {:#x} holds {:x}, expected {:x}",
            places.units[at], found[at], values[at]
        )),
    }
}

/// A chain without the top, and what is read there.
fn parents(shape: Shape, places: &Places, count: usize) -> (Vec<CrashFile>, Vec<u64>) {
    let (mut files, mut values) = (Vec::new(), vec![0; places.units.len()]);
    let per_sector = (places.sector / UNIT) as usize;
    for number in 0..count {
        let image = new_image(shape, files.first().map(CrashFile::image).as_ref());
        files.insert(0, CrashFile::of(image));
        let disk = open(&files, false).expect("a disk");
        for (sector, units) in values.chunks_mut(per_sector).enumerate() {
            // The first has most of the sectors of most blocks, the others some of some.
            let block = places.units[sector * per_sector] / places.block;
            let wanted = if number == 0 {
                sector % 5 != 3 && block != 2
            } else {
                sector % 3 == 1 && block.is_multiple_of(2)
            };
            if wanted {
                let value = if number == 0 { PARENT } else { MIDDLE } + sector as u64;
                disk.write_now(places.units[sector * per_sector], &stamped(value).repeat(per_sector))
                    .expect("space");
                units.fill(value);
            }
        }
        drop(disk);
    }
    if count > 0 {
        let disk = open(&files, true).expect("a disk");
        assert!(places.values(&disk, &files).expect("contents") == values, "the parents");
    }
    (files, values)
}

/// Lives of disks of a shape, every one begun from what the crash before has left, until enough states were looked at.
fn lives(shape: Shape, depth: usize, seed: u64) {
    lives_with(shape, depth, seed, None);
}

/// As [`lives`], with a map of so many units.
fn lives_with(shape: Shape, depth: usize, seed: u64, units: Option<u32>) {
    let wanted = std::env::var("PARADISK_CRASH_STATES").ok().and_then(|states| states.parse().ok());
    let wanted = wanted.unwrap_or(STATES).div_ceil(TESTS);
    let places = Places::new(shape);
    let (below, initial) = parents(shape, &places, depth - 1);
    let first = new_image(shape, below.first().map(CrashFile::image).as_ref());
    let (mut states, mut round, mut evictions) = (0, 0, 0);
    while states < wanted {
        let (mut image, mut initial) = (first.clone(), initial.clone());
        for life in 0..4 {
            let failures = (round + life) % 2 == 1;
            let mut work = Workload::new(&places, image, &below, initial, seed << 32 | round << 8 | life);
            work.units = units;
            let mut disk = open(&work.files, false).expect("a disk");
            if let Some(units) = units {
                disk = disk.with_map_units(units);
            }
            work.run(&disk, 24, failures);
            evictions += disk.map_memory().expect("a map").evictions;
            if life % 2 == 0 {
                drop(disk);
            } else {
                // Killed: what it would do at its end does not reach the file.
                work.file().fail(Some(0));
                drop(disk);
                work.file().fail(None);
            }
            let (looked_at, last) = work.crash(2, 5);
            states += looked_at;
            let files = with(&last, &below);
            initial = places.values(&open(&files, true).expect("a disk"), &files).expect("contents");
            image = last;
        }
        round += 1;
    }
    println!("{states} states after a crash in {round} rounds, {evictions} evictions");
    assert!(units.is_none() || evictions > 10, "{evictions}");
}

const SMALL: Shape =
    Shape { size: 4 * MIB + MIB / 2, block_size: 1 << 20, sector: SectorSize::B512, fixed: false };

#[test]
fn a_dynamic_disk_survives() {
    lives(SMALL, 1, 1);
}

#[test]
fn a_dynamic_disk_of_large_sectors_and_blocks_survives() {
    lives(Shape { size: 9 * MIB, block_size: 4 << 20, sector: SectorSize::B4096, ..SMALL }, 1, 2);
}

#[test]
fn a_fixed_disk_survives() {
    lives(Shape { fixed: true, ..SMALL }, 1, 3);
}

#[test]
fn a_differencing_disk_survives() {
    lives(SMALL, 2, 4);
}

#[test]
fn a_differencing_disk_of_large_sectors_survives() {
    lives(Shape { sector: SectorSize::B4096, ..SMALL }, 2, 5);
}

#[test]
fn a_chain_of_three_survives() {
    lives(Shape { size: 5 * MIB, block_size: 2 << 20, ..SMALL }, 3, 6);
}

#[test]
fn a_differencing_disk_with_a_small_map_survives() {
    // A page, and a granule for each of the four that are looked at together.
    lives_with(Shape { size: 8 * MIB + MIB / 2, ..SMALL }, 2, 7, Some(5));
}

#[test]
fn a_chain_of_three_with_a_small_map_survives() {
    // Granules of 2 MiB with three places take four units: a write reaches over two of the disk's five. Zeros over more may fail.
    lives_with(Shape { size: 9 * MIB, block_size: 4 << 20, ..SMALL }, 3, 8, Some(9));
}

/// Chains of two to five images, each written by some threads at once through a map that forgets all the time.
#[test]
fn chains_with_small_maps_hold_what_was_written() {
    let shape = Shape { size: 12 * MIB, ..SMALL };
    let (mut files, mut evictions): (Vec<CrashFile>, u64) = (Vec::new(), 0);
    let mut values = vec![0; (shape.size / UNIT) as usize];
    for depth in 1..=5 {
        files.insert(0, CrashFile::of(new_image(shape, files.first().map(CrashFile::image).as_ref())));
        let stores: Vec<Arc<dyn Store>> =
            files.iter().map(|file| Arc::new(file.clone()) as Arc<dyn Store>).collect();
        let disk = open(&files, false).expect("a disk").with_map_units(16);
        evictions += crate::map::chain_map::testing::hammer(&disk, &stores, &mut values, depth).evictions;
        drop(disk);
        let disk = open(&files, true).expect("a disk");
        assert_eq!(crate::map::chain_map::testing::contents(&disk, &stores), values, "depth {depth}");
    }
    assert!(evictions > 100, "{evictions}");
}

/// A guest touches many granules of a large disk: the map stays within its budget, also in flushes of everything at once.
#[test]
fn a_map_stays_within_its_budget() {
    let shape = Shape { size: 2 << 40, ..SMALL };
    let parent = CrashFile::of(new_image(shape, None));
    let files = [CrashFile::of(new_image(shape, Some(&parent.image()))), parent];
    let disk = open(&files, false).expect("a disk").with_map_units(60);
    let place = |number: u64| number * 7919 % (2 << 20) * MIB;
    for round in 0..2 {
        for number in 0..400 {
            disk.write_now(place(number) + round * UNIT, &stamped(number + 1)).expect("space");
        }
        disk.flush().expect("a flush");
        let memory = disk.map_memory().expect("a map");
        assert!(memory.peak <= memory.budget && memory.evictions > 0, "{memory:?}");
    }
    drop(disk);
    let disk = open(&files, true).expect("a disk");
    for number in 0..400 {
        let mut bytes = [0; 3 * UNIT as usize];
        read(&disk, &files, &mut bytes, place(number)).expect("a read");
        let found: Vec<_> = bytes.chunks_exact(UNIT as usize).map(value_of).collect();
        assert_eq!(found, [Some(number + 1), Some(number + 1), Some(0)], "{number}");
    }
}

/// A write is mapped, its block is discarded, and other blocks are allocated before the payload has arrived.
#[test]
fn a_late_payload_reaches_no_other_block() {
    let files = [CrashFile::of(new_image(SMALL, None))];
    let disk = open(&files, false).expect("a disk");
    disk.write_now(0, &stamped(1)).expect("space");
    disk.flush().expect("a flush");
    let place = |offset: u64| {
        disk.prepare_write(offset, UNIT).expect("space");
        let mut extents = Extents::new();
        assert_eq!(disk.map_write(offset, UNIT, &mut extents), Ok(Mapping::Ready));
        match extents.as_slice() {
            [extent] => extent.place,
            other => panic!("{other:?}"),
        }
    };
    let epochs = disk.epochs().expect("a disk that is written");
    let (mut queue, mut other) = (epochs.enter(), epochs.enter());
    let generation = queue.begin(epochs);
    let late = place(0);
    let Place::File { offset: old, .. } = late else { panic!("{late:?}") };
    disk.discard(0, MIB).expect("a discard");
    for block in [0, 1, 2] {
        disk.flush().expect("a flush");
        // Requests of another queue come and go.
        let generation = other.begin(epochs);
        assert_ne!(place(block * MIB), late, "block {block}");
        other.end(generation);
    }
    files[0].write_at(&stamped(2), old).expect("space");
    disk.written(0, UNIT);
    queue.end(generation);
    for block in [0, 1, 2] {
        let mut bytes = [1; UNIT as usize];
        read(&disk, &files, &mut bytes, block * MIB).expect("a read");
        assert_eq!(value_of(&bytes), Some(0), "block {block}");
    }
    // Now it is given away, empty.
    disk.flush().expect("a flush");
    assert_eq!(place(3 * MIB), late);
    let mut bytes = [1; UNIT as usize];
    read(&disk, &files, &mut bytes, 3 * MIB).expect("a read");
    assert_eq!(value_of(&bytes), Some(0));
}

/// More changes than an entry of the log takes: a block may be partially present no sooner than its chunk has a bitmap block.
#[test]
fn changes_of_several_entries_come_in_an_order_that_can_be_read() {
    const SIZE: u64 = 2 << 30;
    let shape = Shape { size: SIZE, ..SMALL };
    let parent = CrashFile::of(new_image(shape, None));
    let base = new_image(shape, Some(&parent.image()));
    let files = [CrashFile::of(base.clone()), parent];
    // Their bitmaps take a sector each, and nearly all of an entry; the BAT takes the rest, and another.
    let blocks = || (0..123).map(|number| number * 16 * MIB);
    let disk = open(&files, false).expect("a disk");
    for at in blocks() {
        disk.write_now(at, &stamped(1)).expect("space");
    }
    let begun = files[0].len_of_log();
    disk.flush().expect("a flush");
    let mut cut_before = 0;
    let mut looked_at = 0;
    let pick = |cut: usize, open: usize| {
        let first = cut >= begun && std::mem::replace(&mut cut_before, cut) != cut;
        first.then(|| vec![true; open])
    };
    files[0].all_states(&base, pick, |cut, image| {
        looked_at += 1;
        let files = [CrashFile::of(image), files[1].clone()];
        let disk = open(&files, true).expect("a disk");
        for at in blocks().step_by(32) {
            let mut bytes = [0; UNIT as usize];
            read(&disk, &files, &mut bytes, at).unwrap_or_else(|why| panic!("cut at {cut}, {at:#x}: {why}"));
            assert!(matches!(value_of(&bytes), Some(0 | 1)), "cut at {cut}, {at:#x}");
        }
    });
    assert!(looked_at > 126, "{looked_at}");
}

/// The memory for blocks that a guest frees without a flush is bounded.
#[test]
fn many_freed_blocks_do_not_wait_for_a_flush() {
    let shape = Shape { size: 300 << 30, ..SMALL };
    let parent = CrashFile::of(new_image(shape, None));
    let files = [CrashFile::of(new_image(shape, Some(&parent.image()))), parent];
    let disk = open(&files, false).expect("a disk");
    disk.discard(0, shape.size).expect("a discard");
    let table = opened(&files[0], false).expect("metadata");
    let mut freed = 0u64;
    super::scan::scan(&*table.store, &table.layout, |_, _| freed += 1).expect("a table");
    assert!(freed >= (300 << 10) - (2 << 16), "{freed}");
    let mut bytes = [1; UNIT as usize];
    read(&disk, &files, &mut bytes, shape.size - UNIT).expect("a read");
    assert_eq!(value_of(&bytes), Some(0));
}
