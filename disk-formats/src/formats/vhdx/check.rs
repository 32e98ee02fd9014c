//! Check and repair: reports all defects of an image in one run.

use std::io;
use std::sync::Arc;

use super::journal::{DataGuid, Journal, Sectors};
use super::layout::{ENTRY, Entry, Layout, Slot, State};
use super::opened::{MEMORY, Opened, Replaying, replay_log};
use super::scan::{Scan, fixed_space, mark};
use super::space::Space;
use super::spec::REGION_TABLES_AT;
use super::{header, log, region};
use crate::contract::error::{BadField, or_bad};
use crate::formats::findings::{CheckReport, End, Severity};
use crate::host::store::Store;

/// The repairs of BAT entries, as the report names them: of invalid ones, and of harmless deviations.
const LOST: &str = "unallocated: its data is lost";
const CLEARED: &str = "cleared";
/// The field of a leak in the report.
const LEAK: &str = "bytes of the file that nothing uses";
/// Number of BAT sectors that are repaired at once: 8 MiB.
const WAITING: usize = 2048;

/// Check an image without its parents, and report all defects. With `repair`, replay the log, or drop it if it is
/// damaged; write a lost header or region table again; remove invalid BAT entries, whose blocks lose their data. If the
/// file has no damage, it is truncated after the last used space, even that of a fixed disk.
///
/// # Errors
/// The host's. Defects of the image are in the report.
pub(crate) fn check(store: Arc<dyn Store>, repair: bool, end: End) -> io::Result<CheckReport> {
    let mut report = CheckReport::default();
    let Some(opened) = open(store, repair, &mut report)? else { return Ok(report) };
    let mut repairs = repair.then(|| Repairs::new(&opened));
    if let Some(bad) = opened.regions.other.clone() {
        if let Some(repairs) = &mut repairs {
            let table = region::with_bat(&opened.regions.table, opened.regions.bat);
            for at in REGION_TABLES_AT {
                repairs.sectors.patch(&*opened.store, at, &table)?;
            }
        }
        report.add(Severity::Redundancy, bad, repair.then_some("written anew"));
    }
    let space = check_table(&opened, &mut repairs, &mut report)?;
    if let Some(repairs) = repairs {
        let cut = match &space {
            // Lost data may be in the unused space.
            Some(space) if end == End::MayBeCut && !damaged(&report) && !repairs.lost => {
                Some(space.used_end()).filter(|used| *used < space.end())
            }
            _ => None,
        };
        repairs.close(cut)?;
        if let (Some(space), Some(used)) = (&space, cut) {
            let bytes = space.end() - used;
            report.add(Severity::Leak, BadField::new(LEAK, bytes.to_string(), "0"), Some("cut off"));
            report.leak(space.free_bytes() - bytes, LEAK);
            return Ok(report);
        }
    }
    report.leak(space.map_or(0, |space| space.free_bytes()), LEAK);
    Ok(report)
}

/// Whether the report has damage, repaired or not. Of the findings beyond the list, the report has only damage that was not repaired; for
/// repaired entries, see [`Repairs::lost`].
fn damaged(report: &CheckReport) -> bool {
    report.more.1 == Some(Severity::Damage)
        || report.findings.iter().any(|finding| finding.severity == Severity::Damage)
}

/// Repairs of region tables and BAT, written in parts.
struct Repairs<'a> {
    opened: &'a Opened,
    journal: Journal,
    sectors: Sectors,
    /// Repairs lose data, so children must become invalid.
    lost: bool,
    begun: Option<DataGuid>,
}

impl<'a> Repairs<'a> {
    fn new(opened: &'a Opened) -> Self {
        let journal = Journal::new(Arc::clone(&opened.store), opened.headers);
        Self { opened, journal, sectors: Sectors::default(), lost: false, begun: None }
    }

    fn put(&mut self, index: u64, entry: Entry, lost: bool) -> io::Result<()> {
        let at = self.opened.layout.bat.offset + index * ENTRY;
        self.sectors.patch(&*self.opened.store, at, &entry.0.to_le_bytes())?;
        self.lost |= lost;
        if self.sectors.len() >= WAITING { self.flush() } else { Ok(()) }
    }

    fn start_log(&mut self) -> io::Result<()> {
        let data_guid = if self.lost { DataGuid::New } else { DataGuid::Unchanged };
        if self.begun != Some(data_guid) {
            self.journal.close()?;
            self.journal.start_log(data_guid)?;
            self.begun = Some(data_guid);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.sectors.is_empty() {
            return Ok(());
        }
        self.start_log()?;
        self.journal.commit([std::mem::take(&mut self.sectors)], self.opened.store.len()?)
    }

    /// Write the remaining repairs, close the log, and truncate the file to `cut`.
    fn close(mut self, cut: Option<u64>) -> io::Result<()> {
        self.flush()?;
        if cut.is_some() {
            self.start_log()?;
        }
        self.journal.close()?;
        if let Some(end) = cut {
            // With the log closed, no log entry requires a longer file.
            self.opened.store.set_size(end)?;
            self.opened.store.sync()?;
        }
        Ok(())
    }
}

/// Check headers and log, then read the structures that the headers refer to.
fn open(store: Arc<dyn Store>, repair: bool, report: &mut CheckReport) -> io::Result<Option<Opened>> {
    let Some(mut headers) = report.found(header::read(&*store))? else { return Ok(None) };
    if headers.other_bad {
        if repair {
            headers.update(&*store, |_| ())?;
        }
        let bad = BadField::new("header", "only one that is valid", "two");
        report.add(Severity::Redundancy, bad, repair.then_some("written anew"));
    }
    if !headers.log_guid().is_nil() {
        match or_bad(log::find(&*store, headers.log_region(), headers.log_guid()))? {
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
                    // Continue without the log, to find other defects.
                    false => headers.current.log_guid = [0; 16],
                }
            }
        }
    }
    let replaying = if repair { Replaying::InFile } else { Replaying::InMemory(MEMORY) };
    report.found(replay_log(store, headers, replaying).and_then(Opened::of))
}

/// Check the entries of the BAT. Returns the used space, or `None` if the file is too large to track.
fn check_table(
    opened: &Opened,
    repairs: &mut Option<Repairs<'_>>,
    report: &mut CheckReport,
) -> io::Result<Option<Space>> {
    let (store, layout, len) = (&*opened.store, &opened.layout, opened.store.len()?);
    report.total_blocks = layout.blocks();
    let mut space = match fixed_space(opened, len, "at most 128 TiB") {
        Ok(space) => space,
        Err(bad) => {
            report.add(Severity::Damage, bad, None);
            return Ok(None);
        }
    };
    let mut table = Table { layout, repairs, report, partial: (0, Vec::new()) };
    let mut scan = Scan::new(layout);
    while let Some(part) = scan.part(store, layout)? {
        for (index, entry) in part {
            table.check(&mut space, index, entry, len)?;
        }
    }
    table.without_bitmap()?;
    Ok(Some(space))
}

/// A BAT that is being checked in the order of its indices.
struct Table<'a, 'b> {
    layout: &'a Layout,
    repairs: &'a mut Option<Repairs<'b>>,
    report: &'a mut CheckReport,
    /// A chunk and its partially present blocks (at most 32,768), until its bitmap block is reached.
    partial: (u64, Vec<u64>),
}

impl Table<'_, '_> {
    fn check(&mut self, space: &mut Space, index: u64, entry: Entry, len: u64) -> io::Result<()> {
        if let Some(bad) = mark(space, self.layout, index, entry, len) {
            return self.fix(Severity::Damage, bad, index, Entry::NOT_PRESENT, LOST);
        }
        let mut clean = entry;
        while let Some((next, expected)) = tidied(clean, self.layout.has_parent) {
            clean = next;
            let bad = BadField::new("BAT entry", format!("{:#x} at index {index}", entry.0), expected);
            self.fix(Severity::Redundancy, bad, index, clean, CLEARED)?;
        }
        match self.layout.slot(index) {
            Slot::Payload(block) => {
                self.report.allocated_blocks += u64::from(entry.present());
                if entry.state() == State::PartiallyPresent && self.layout.has_parent {
                    let chunk = self.layout.chunk(block);
                    if self.partial.0 != chunk {
                        self.without_bitmap()?;
                        self.partial.0 = chunk;
                    }
                    self.partial.1.push(block);
                }
            }
            // The entry of the bitmap block follows those of the chunk's payload blocks.
            Slot::Bitmap(chunk) if entry.present() && self.partial.0 == chunk => self.partial.1.clear(),
            Slot::Bitmap(_) => {}
        }
        Ok(())
    }

    /// Report the partially present blocks of the last chunk, because the chunk has no bitmap block.
    fn without_bitmap(&mut self) -> io::Result<()> {
        for block in std::mem::take(&mut self.partial.1) {
            let value = format!("partially present for block {block}");
            let expected = "another state, as its chunk has no bitmap block";
            let bad = BadField::new("BAT entry", value, expected);
            let index = self.layout.payload_index(block);
            self.fix(Severity::Damage, bad, index, Entry::NOT_PRESENT, LOST)?;
        }
        Ok(())
    }

    /// Report an entry, and repair it if requested.
    fn fix(
        &mut self,
        severity: Severity,
        bad: BadField,
        index: u64,
        to: Entry,
        repaired: &'static str,
    ) -> io::Result<()> {
        self.report.add(severity, bad, self.repairs.is_some().then_some(repaired));
        match self.repairs {
            Some(repairs) => repairs.put(index, to, severity == Severity::Damage),
            None => Ok(()),
        }
    }
}

/// The entry without one of its harmless deviations, and what was expected; `None` if it has none.
fn tidied(entry: Entry, has_parent: bool) -> Option<(Entry, &'static str)> {
    if entry.reserved() != 0 {
        return Some((Entry(entry.0 & !(0x1_FFFF << 3)), "0 in the reserved bits"));
    }
    match entry.state() {
        State::NotPresent | State::Zero if entry.offset() != 0 => {
            Some((Entry(entry.0 & 7), "offset 0 for a block that is not allocated"))
        }
        State::PartiallyPresent if !has_parent => {
            Some((Entry::fully(entry.offset()), "state 6, as there is no parent"))
        }
        _ => None,
    }
}
