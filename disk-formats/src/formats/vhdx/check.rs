//! Checking an image: all that is wrong with it in one run, and repairing what can be repaired.

use std::io;
use std::sync::Arc;

use super::bat::{Entry, State};
use super::header;
use super::journal::{Journal, Visible};
use super::layout::{ENTRY, Layout, Slot};
use super::log;
use super::opened::{MEMORY, Opened, Replaying, settle};
use super::region;
use super::scan::{Scan, mark};
use super::sectors::Sectors;
use super::space::{MAX_FILE, Space};
use super::spec::{MIB, REGION_TABLES_AT};
use crate::formats::field::BadField;
use crate::host::store::Store;
use crate::image::findings::{CheckReport, End, Severity};

/// What repairing does about an entry of the BAT that points nowhere.
const LOST: &str = "unallocated: its data is lost";
const CLEARED: &str = "cleared";
/// What a leak is called.
const LEAK: &str = "bytes of the file that nothing uses";
/// Sectors of the BAT that are repaired at once: 8 MiB.
const WAITING: usize = 2048;

/// Check an image by itself, without its parents: all that is wrong, in one run. Where `repair` is set, repair what can be: the
/// log is replayed, or dropped where it is damaged; a lost header or region table is written anew; entries of the BAT that
/// point nowhere are taken out (their data is lost). A file without damage is cut behind what it uses, that of a fixed disk, too.
///
/// # Errors
/// The host's. What is wrong with the image is in the report.
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
            // What was lost may lie in what nothing uses.
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

/// Whether damage was found, repaired or not.
fn damaged(report: &CheckReport) -> bool {
    report.more.1 == Some(Severity::Damage)
        || report.findings.iter().any(|finding| finding.severity == Severity::Damage)
}

/// Changes of region tables and BAT that repair them, written some at a time.
struct Repairs<'a> {
    opened: &'a Opened,
    journal: Journal,
    sectors: Sectors,
    /// Data are lost by them: children must become invalid.
    lost: bool,
    begun: Option<Visible>,
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

    fn begin(&mut self) -> io::Result<()> {
        let visible = if self.lost { Visible::New } else { Visible::Unchanged };
        if self.begun != Some(visible) {
            self.journal.close()?;
            self.journal.begin(visible)?;
            self.begun = Some(visible);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.sectors.is_empty() {
            return Ok(());
        }
        self.begin()?;
        self.journal.commit([std::mem::take(&mut self.sectors)], self.opened.store.len()?)
    }

    /// Write what is left, end the session, and cut the file where that is wanted.
    fn close(mut self, cut: Option<u64>) -> io::Result<()> {
        self.flush()?;
        if cut.is_some() {
            self.begin()?;
        }
        self.journal.close()?;
        if let Some(end) = cut {
            // With the log closed nothing claims that the file is longer.
            self.opened.store.set_size(end)?;
            self.opened.store.sync()?;
        }
        Ok(())
    }
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
                    // To find what else is wrong.
                    false => headers.current.log_guid = [0; 16],
                }
            }
        }
    }
    let replaying = if repair { Replaying::InFile } else { Replaying::InMemory(MEMORY) };
    let opened = match settle(store, headers, replaying)? {
        Ok(settled) => Opened::of(settled)?,
        Err(bad) => Err(bad),
    };
    Ok(opened.map_err(|bad| report.add(Severity::Damage, bad, None)).ok())
}

/// Check each entry of the BAT; what is in use, unless the file is too large to track.
fn check_table(
    opened: &Opened,
    repairs: &mut Option<Repairs<'_>>,
    report: &mut CheckReport,
) -> io::Result<Option<Space>> {
    let (store, layout, len) = (&*opened.store, &opened.layout, opened.store.len()?);
    report.total_blocks = layout.blocks();
    if len > MAX_FILE {
        let bad = BadField::new("file size", format!("{len} bytes"), "at most 128 TiB");
        report.add(Severity::Damage, bad, None);
        return Ok(None);
    }
    let mut space = Space::new(len.next_multiple_of(MIB));
    for run in opened.fixed_runs() {
        space.mark(run);
    }
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

/// A BAT that is being checked, in the order of its indices.
struct Table<'a, 'b> {
    layout: &'a Layout,
    repairs: &'a mut Option<Repairs<'b>>,
    report: &'a mut CheckReport,
    /// A chunk, and its partially present blocks, until its bitmap block is seen: at most 32,768.
    partial: (u64, Vec<u64>),
}

impl Table<'_, '_> {
    fn check(&mut self, space: &mut Space, index: u64, entry: Entry, len: u64) -> io::Result<()> {
        if let Some(bad) = mark(space, self.layout, index, entry, len) {
            return self.fix(Severity::Damage, bad, index, Entry::NOT_PRESENT, LOST);
        }
        if let Some((clean, expected)) = tidied(entry, self.layout.has_parent) {
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
            // It comes behind the blocks of its chunk.
            Slot::Bitmap(chunk) if entry.present() && self.partial.0 == chunk => self.partial.1.clear(),
            Slot::Bitmap(_) => {}
        }
        Ok(())
    }

    /// The partially present blocks of the last chunk whose bitmap block was not seen.
    fn without_bitmap(&mut self) -> io::Result<()> {
        for block in std::mem::take(&mut self.partial.1) {
            let value = format!("partially present for block {block}");
            let expected = "another state, as its chunk has no bitmap block (run `image check --repair`)";
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
