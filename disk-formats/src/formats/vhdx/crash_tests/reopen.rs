//! Opens the states that a crash may leave.
//!
//! The disk has the same values with the log in memory and with the log replayed, even if the replay is cut. It is
//! writable. After it is closed, it has no log.

use super::super::blocks::VhdxDisk;
use super::super::testing::{UNIT, open, opened, picks};
use super::places::{Allowed, Places, check};
use crate::contract::error::IoError;
use crate::host::crash::{CrashFile, Image, stamped};
use crate::map::format::Format;
use crate::queue::conformance::Random;

pub(super) fn with(image: &Image, below: &[CrashFile]) -> Vec<CrashFile> {
    let mut files = vec![CrashFile::of(image.clone())];
    files.extend_from_slice(below);
    files
}

/// Open a state after a crash: with the log in memory, then with the log replayed. Sometimes (by `deep`) cut the
/// replay, or use the disk. Returns the number of additional states.
pub(super) fn verify(
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

/// Cut the replay in `files` after every change, and open the disk again.
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

/// Write to all places, close the disk, and open it without a log.
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
