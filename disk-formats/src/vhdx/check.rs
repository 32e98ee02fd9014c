//! Checking an image: all that is wrong with it in one run, and repairing what can be repaired.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::alloc::{mark, scan};
use super::bat::{Entry, State};
use super::header;
use super::journal::{Journal, Visible};
use super::layout::{ENTRY, Slot};
use super::log;
use super::opened::{Opened, settle};
use super::region;
use super::sectors::Sectors;
use super::space::{MAX_FILE, Space};
use super::spec::{MIB, REGION_TABLES_AT};
use crate::field::BadField;
use crate::store::Store;
use crate::{Access, BackingFile, CheckReport, OpenError, Severity, nested};

/// What repairing does about an entry of the BAT that points nowhere.
const LOST: &str = "unallocated: its data is lost";
const CLEARED: &str = "cleared";

/// Check an image by itself, without its parents: all that is wrong, in one run. Where `repair` is set, repair what can be: the
/// log is replayed, or dropped where it is damaged; a lost header or region table is written anew; entries of the BAT that
/// point nowhere are taken out (their data is lost).
///
/// # Errors
/// As [`BackingFile::open`], and the host's while reading. What is wrong with the image is in the report.
pub fn check(path: &Path, repair: bool) -> Result<CheckReport, OpenError> {
    let checked = match nested::open_store(path, !repair) {
        Some(inside) => check_in(inside?, repair).map(CheckReport::without_leaks),
        None => {
            let file = BackingFile::open(path, Access { read_only: !repair, direct: false })?;
            check_in(Arc::new(file), repair)
        }
    };
    checked.map_err(|source| OpenError::Os { path: path.into(), action: "cannot check", source })
}

pub(super) fn check_in(store: Arc<dyn Store>, repair: bool) -> io::Result<CheckReport> {
    let mut report = CheckReport::default();
    let Some(opened) = open(store, repair, &mut report)? else { return Ok(report) };
    let mut sectors = Sectors::default();
    if let Some(bad) = opened.regions.other.clone() {
        if repair {
            let table = region::with_bat(&opened.regions.table, opened.regions.bat);
            for at in REGION_TABLES_AT {
                sectors.patch(&*opened.store, at, &table)?;
            }
        }
        report.add(Severity::Redundancy, bad, repair.then_some("written anew"));
    }
    let fixes = check_table(&opened, repair, &mut report)?;
    if repair {
        for (index, entry) in &fixes {
            sectors.patch(
                &*opened.store,
                opened.layout.bat.offset + index * ENTRY,
                &entry.0.to_le_bytes(),
            )?;
        }
        if !sectors.is_empty() {
            let lost = report.findings.iter().any(|finding| finding.repaired == Some(LOST));
            let mut journal = Journal::new(Arc::clone(&opened.store), opened.headers);
            journal.begin(if lost { Visible::New } else { Visible::Unchanged })?;
            journal.commit([sectors], opened.store.len()?)?;
            journal.close()?;
        }
    }
    Ok(report)
}

/// Headers and log, then what they lead to.
fn open(store: Arc<dyn Store>, repair: bool, report: &mut CheckReport) -> io::Result<Option<Opened>> {
    let mut headers = match header::read(&*store)? {
        Ok(headers) => headers,
        Err(bad) => {
            report.add(Severity::Damage, bad, None);
            return Ok(None);
        }
    };
    if headers.other_bad {
        if repair {
            headers.update(&*store, |_| ())?;
        }
        let bad = BadField::new("header", "only one that is valid", "two");
        report.add(Severity::Redundancy, bad, repair.then_some("written anew"));
    }
    if !headers.log_guid().is_nil() {
        match log::find(&*store, headers.log_region(), headers.log_guid())? {
            Ok(replay) => {
                let value = format!("{} entries to be replayed", replay.entries());
                let bad = BadField::new("log", value, "none, as after closing");
                report.add(Severity::Redundancy, bad, repair.then_some("replayed"));
            }
            Err(bad) => {
                let dropped = "dropped: changes since the image was opened last may be lost";
                report.add(Severity::Damage, bad, repair.then_some(dropped));
                match repair {
                    true => headers.update(&*store, |header| header.log_guid = [0; 16])?,
                    // To see what else there is.
                    false => headers.current.log_guid = [0; 16],
                }
            }
        }
    }
    let opened = match settle(store, headers, repair)? {
        Ok(settled) => Opened::of(settled)?,
        Err(bad) => Err(bad),
    };
    Ok(opened.map_err(|bad| report.add(Severity::Damage, bad, None)).ok())
}

/// Each entry of the BAT; those that have to change.
fn check_table(opened: &Opened, repair: bool, report: &mut CheckReport) -> io::Result<Vec<(u64, Entry)>> {
    let (layout, len) = (&opened.layout, opened.store.len()?);
    report.total_blocks = layout.blocks();
    if len > MAX_FILE {
        let bad = BadField::new("file size", format!("{len} bytes"), "at most 128 TiB");
        report.add(Severity::Damage, bad, None);
        return Ok(Vec::new());
    }
    let mut space = Space::new(len.next_multiple_of(MIB));
    for run in opened.fixed_runs() {
        space.mark(run);
    }
    let (mut fixes, mut partial, mut bitmaps) = (Vec::new(), Vec::new(), Vec::new());
    scan(&*opened.store, layout, |index, entry| {
        let slot = layout.slot(index);
        if let Some(bad) = mark(&mut space, layout, index, entry, len) {
            report.add(Severity::Damage, bad, repair.then_some(LOST));
            fixes.push((index, Entry::NOT_PRESENT));
            return;
        }
        if let Some((clean, expected)) = tidied(entry, layout.has_parent) {
            let bad = BadField::new("BAT entry", format!("{:#x} at index {index}", entry.0), expected);
            report.add(Severity::Redundancy, bad, repair.then_some(CLEARED));
            fixes.push((index, clean));
        }
        match slot {
            Slot::Payload(block) => {
                report.allocated_blocks += u64::from(entry.present());
                if entry.state() == State::PartiallyPresent && layout.has_parent {
                    partial.push(block);
                }
            }
            Slot::Bitmap(chunk) if entry.present() => bitmaps.push(chunk),
            Slot::Bitmap(_) => {}
        }
    })?;
    for block in partial {
        if bitmaps.binary_search(&layout.chunk(block)).is_err() {
            let value = format!("partially present for block {block}");
            let expected = "another state, as its chunk has no bitmap block (run `image check --repair`)";
            report.add(Severity::Damage, BadField::new("BAT entry", value, expected), repair.then_some(LOST));
            fixes.push((layout.payload_index(block), Entry::NOT_PRESENT));
        }
    }
    report.leak(space.free_bytes(), "bytes of the file that nothing uses");
    Ok(fixes)
}

/// The entry without what does no harm and should not be there.
fn tidied(entry: Entry, has_parent: bool) -> Option<(Entry, &'static str)> {
    if entry.reserved() != 0 {
        return Some((Entry(entry.0 & !(0x1_FFFF << 3)), "0 in the reserved bits"));
    }
    match entry.state() {
        State::NotPresent | State::Zero if entry.offset() != 0 => {
            Some((Entry(entry.0 & 7), "no place in the file for a block that is not there"))
        }
        State::PartiallyPresent if !has_parent => {
            Some((Entry::fully(entry.offset()), "state 6, as there is no parent"))
        }
        _ => None,
    }
}
