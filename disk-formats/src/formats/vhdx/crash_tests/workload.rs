//! Random requests on a disk, some with failures of the host, and the values that each unit may have after each change
//! of the file.
//!
//! [`Workload::run`] checks the disk after every request. [`Workload::crash`] cuts the file after every change. The
//! requests depend only on the seed.

use std::ops::Range;

use super::super::blocks::VhdxDisk;
use super::super::testing::{UNIT, picks};
use super::places::{Allowed, Places, check, settle};
use super::reopen::verify;
use crate::contract::error::IoError;
use crate::host::crash::{CrashFile, Image, stamped};
use crate::host::store::Store;
use crate::map::chain_map::testing::{flush, map_for_write};
use crate::map::epochs::Participant;
use crate::map::extent::{Extents, Place};
use crate::map::format::Format;
use crate::queue::conformance::Random;

enum Event {
    /// `sure`: completed; else old or new values may be there.
    Write {
        unit: usize,
        value: u64,
        sure: bool,
    },
    Flushed,
}

/// A mapped write whose payload is in flight.
struct Held {
    offset: u64,
    values: Vec<u64>,
    extents: Extents,
    generation: u8,
    /// Its range was changed in the meantime: the order is undefined.
    raced: bool,
}

/// A disk with random requests, and its possible values after each change of its file.
pub(super) struct Workload<'a> {
    places: &'a Places,
    pub(super) files: Vec<CrashFile>,
    base: Image,
    initial: Vec<u64>,
    /// Each event with the number of recorded changes at its start (writes) or end (flushes).
    events: Vec<(usize, Event)>,
    /// The values that the disk must have now.
    now: Allowed,
    held: Vec<Held>,
    random: Random,
    next: u64,
    differencing: bool,
    fixed: bool,
    /// Number of units of the map, if not the default.
    pub(super) units: Option<u32>,
}

impl<'a> Workload<'a> {
    pub(super) fn new(
        places: &'a Places,
        base: Image,
        below: &[CrashFile],
        initial: Vec<u64>,
        seed: u64,
    ) -> Self {
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

    pub(super) fn file(&self) -> &CrashFile {
        &self.files[0]
    }

    pub(super) fn run(&mut self, disk: &VhdxDisk, operations: usize, failures: bool) {
        self.fixed = disk.info().discard.is_none();
        let mut participant = disk.epochs().expect("a disk that is written").enter();
        for number in 0..operations {
            if failures {
                // Mostly soon, but sometimes late in the many changes at the start of a log.
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
                // Checking the disk may flush.
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

    /// Record a change that is about to be made. Returns the indices of the events, for [`unsure`](Self::unsure).
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

    /// The change has failed, or its result is undefined.
    fn unsure(&mut self, noted: Range<usize>) {
        for (_, event) in &mut self.events[noted] {
            if let Event::Write { unit, value, sure } = event {
                *sure = false;
                let entry = self.now[*unit].iter_mut().rev().find(|(noted, _)| noted == value);
                entry.expect("noted").1 = false;
            }
        }
    }

    /// Some sectors close to each other.
    fn close(&mut self) -> (u64, u64) {
        let (places, random) = (self.places, &mut self.random);
        let run = &places.runs[random.below(places.runs.len() as u64) as usize];
        let sectors = (run.end - run.start) / places.sector;
        let first = random.below(sectors);
        let count = 1 + random.below((sectors - first).min(12));
        (run.start + first * places.sector, count * places.sector)
    }

    /// Whole blocks, or any range, or sectors close to each other.
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
        let Some(extents) = map_for_write(disk, offset, len) else { return participant.end(generation) };
        self.held.push(Held { offset, values, extents, generation, raced: false });
        if !hold || self.held.len() > 3 {
            let last = self.held.len() - 1;
            self.arrive_at(last, disk, participant);
        }
    }

    /// Write the payload of one of the writes in flight.
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

    /// Discarded whole blocks read as zeros; without a parent, all discarded ranges do.
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
        if flush(disk, self.file()).is_ok() {
            self.events.push((self.file().len_of_log(), Event::Flushed));
        }
    }

    /// Cut the file after every change. Returns the number of states, and one of them.
    pub(super) fn crash(mut self, exhaustive: usize, samples: usize) -> (usize, Image) {
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
