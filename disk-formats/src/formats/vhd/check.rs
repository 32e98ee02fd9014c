//! Check and repair: reports all defects of an image in one run.

use std::io;
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::alloc::end_of;
use super::bat::{self, Defect};
use super::batmap::{self, Batmap};
use super::footer::{self, Found, Source, Subformat};
use super::layer::read_bat;
use super::layout::{self, Layout, locator_areas, locator_paths, named_locators};
use super::spec::{DynamicHeader, FOOTER_SIZE, Footer, SECTOR, UNALLOCATED};
use super::stamp;
use crate::contract::error::BadField;
use crate::formats::findings::{CheckReport, End, Finding, Severity};
use crate::host::store::Store;

/// Check an image without its parents, and report all defects. With `repair`, repair a lost copy of the footer, a
/// misplaced footer, and invalid BAT entries, whose blocks become unallocated and lose their data.
///
/// # Errors
/// The host's. Defects of the image are in the report.
pub(crate) fn check(store: Arc<dyn Store>, repair: bool, _end: End) -> io::Result<CheckReport> {
    check_in(&*store, repair)
}

pub(super) fn check_in(store: &dyn Store, repair: bool) -> io::Result<CheckReport> {
    let mut report = CheckReport::default();
    let Some(found) = report.found(footer::find(store))? else { return Ok(report) };
    let layout = match found.subformat {
        Subformat::Fixed => None,
        Subformat::Dynamic | Subformat::Differencing => {
            let read = layout::read(store, found.footer.data_offset.get(), found.size);
            let Some(layout) = report.found(read)? else { return Ok(report) };
            Some(layout)
        }
    };
    match layout {
        None => check_fixed(store, &found, repair, &mut report)?,
        Some((header, layout)) => check_sparse(store, &found, &header, layout, repair, &mut report)?,
    }
    if repair && report.findings.iter().any(|finding| finding.repaired.is_some()) {
        store.sync()?;
    }
    Ok(report)
}

fn check_fixed(store: &dyn Store, found: &Found, repair: bool, report: &mut CheckReport) -> io::Result<()> {
    if let Source::Inside(at) = found.source {
        let behind = store.len()? - at - FOOTER_SIZE as u64;
        if repair {
            found.clone().cut_zeros(store)?;
        }
        let bad = BadField::new(
            "VHD footer",
            format!("{behind} bytes of zeros behind it (a resize was interrupted)"),
            "at the end of the file",
        );
        report.add(Severity::Redundancy, bad, repair.then_some("the zeros cut"));
        report.leak(at - found.size, "bytes between the data and the footer");
        return Ok(());
    }
    let Source::Trailing(data) = found.source else { return Ok(()) };
    if store.len()? != data + FOOTER_SIZE as u64 {
        let repaired = if repair { Some("written in full") } else { None };
        if repair {
            store.write_at(found.footer.as_bytes(), data)?;
        }
        let bad = BadField::new("VHD footer", "511 bytes", "512 bytes");
        report.add(Severity::Redundancy, bad, repaired);
    }
    report.leak(data - found.size, "bytes between the data and the footer");
    Ok(())
}

fn check_sparse(
    store: &dyn Store,
    found: &Found,
    header: &DynamicHeader,
    layout: Layout,
    repair: bool,
    report: &mut CheckReport,
) -> io::Result<()> {
    let len = store.len()?;
    check_copy(store, found, len, repair, report)?;
    let areas: Vec<(u64, u64)> =
        locator_areas(found.subformat, header, len).map(|(_, at, _, space)| (at, at + space)).collect();
    check_locators((found.subformat, header), &areas, report);
    let mut table = read_bat(store, &layout, 0, u64::from(layout.used_entries()))?;
    report.total_blocks = table.len() as u64;
    let paths = locator_paths(found.subformat, header, len);
    let (blocks, lost) = check_table(&mut table, &layout, &paths, len, repair, report);
    check_last(store, found, &table, &layout, len, repair, report)?;
    let batmap = Batmap::find(store, &layout, len)?;
    let mut found = found.clone();
    let lossy = |finding: &Finding| finding.severity == Severity::Damage && finding.repaired.is_some();
    if report.findings.iter().any(lossy) {
        // The repair changes the disk's content.
        stamp::renew(&mut found.footer, store);
        if batmap.is_some() {
            // XenServer ignores a batmap with this creator: it may say that a lost block is present as a whole.
            batmap::disown(&mut found.footer);
            found.footer.seal();
        }
        footer::rewrite(store, &found.footer, found.source.trailing())?;
    }
    if repair && report.findings.iter().any(|finding| finding.field == "BAT entry") {
        let bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        let mut padded = bytes;
        padded.resize(Layout::bat_bytes(layout.used_entries()) as usize, 0xFF);
        store.write_at(&padded, layout.bat)?;
    }
    report.allocated_blocks = blocks.len() as u64;
    // The trailing footer belongs after everything else.
    let end = end_of(&table, (found.subformat, header), &layout, batmap.as_ref(), len);
    // Lost data may be in the unused space at the end.
    let there = if lost { found.source.trailing().unwrap_or(len).next_multiple_of(SECTOR) } else { 0 };
    let end = end.max(there);
    let areas: Vec<(u64, u64)> = areas.into_iter().chain(batmap.iter().flat_map(Batmap::areas)).collect();
    check_gaps(&blocks, &areas, &layout, report);
    check_tail(store, &found, &layout, (end, len), repair, report)
}

/// Check the copy of the footer at the start of the file.
fn check_copy(
    store: &dyn Store,
    found: &Found,
    len: u64,
    repair: bool,
    report: &mut CheckReport,
) -> io::Result<()> {
    let same = |footer: &Footer| footer.as_bytes() == found.footer.as_bytes();
    let value = match footer::copy(store, len)? {
        Some(footer) if same(&footer) => return Ok(()),
        Some(_) => "different",
        None => "missing",
    };
    if repair {
        store.write_at(found.footer.as_bytes(), 0)?;
    }
    let bad = BadField::new("copy of the footer", value, "the footer at the end of the file");
    report.add(Severity::Redundancy, bad, repair.then_some("written anew"));
    Ok(())
}

fn check_locators(
    (subformat, header): (Subformat, &DynamicHeader),
    areas: &[(u64, u64)],
    report: &mut CheckReport,
) {
    if named_locators(subformat, header).count() > areas.len() {
        let bad = BadField::new("parent locator", "outside the file", "inside it");
        report.add(Severity::Damage, bad, None);
    }
}

/// Check the entries of the BAT. Returns the valid ones in ascending order, and whether any is invalid. Invalid entries are removed from `table`.
fn check_table(
    table: &mut [u32],
    layout: &Layout,
    paths: &[(u64, u64)],
    len: u64,
    repair: bool,
    report: &mut CheckReport,
) -> (Vec<u32>, bool) {
    let repaired = repair.then_some("unallocated: its data is lost");
    let mut bad: Vec<u32> = Vec::new();
    let good = bat::check(table, layout, paths, len, |block, entry, defect| {
        let expected = match defect {
            Defect::OverMetadata => "outside the dynamic header and the BAT".to_owned(),
            Defect::BeyondEnd => format!("a sector before {}, the end of the file", len / SECTOR),
            Defect::OverLocator => "no block over a parent locator".to_owned(),
            Defect::Overlap(before, _) => {
                let end = layout.block_range(before).1 / SECTOR;
                format!("a sector from {end} on, where the block before it ends")
            }
        };
        let finding = BadField::new("BAT entry", format!("{entry} of block {block}"), expected);
        report.add(Severity::Damage, finding, repaired);
        bad.push(block);
    });
    let lost = !bad.is_empty();
    for block in bad {
        if let Some(entry) = table.get_mut(block as usize) {
            *entry = UNALLOCATED;
        }
    }
    (good, lost)
}

/// Report blocks that are cut off. The repair of the tail extends the file over them.
fn check_last(
    store: &dyn Store,
    found: &Found,
    table: &[u32],
    layout: &Layout,
    len: u64,
    repair: bool,
    report: &mut CheckReport,
) -> io::Result<()> {
    let there = found.source.trailing().unwrap_or(len);
    bat::cut_off(store, layout, table, there, |bad| {
        report.add(Severity::Damage, bad, repair.then_some("zeros in their place"));
    })
}

/// Report unused space between blocks, whose entries are in ascending order. Gaps smaller than a block are not reported, because they may be
/// alignment.
fn check_gaps(blocks: &[u32], areas: &[(u64, u64)], layout: &Layout, report: &mut CheckReport) {
    let mut others: Vec<(u64, u64)> = areas.iter().chain(&layout.metadata()).copied().collect();
    others.sort_unstable();
    let (mut others, mut blocks) = (others.into_iter().peekable(), blocks.iter().peekable());
    let (mut at, mut leaked) = (0, 0);
    loop {
        // Not one list of both: there may be millions of blocks.
        let block = blocks.peek().map(|entry| layout.block_range(**entry));
        let next = match (block, others.peek().copied()) {
            (Some(block), Some(other)) if other < block => others.next(),
            (Some(block), _) => blocks.next().map(|_| block),
            (None, _) => others.next(),
        };
        let Some((start, end)) = next else { break };
        let gap = start.saturating_sub(at);
        leaked += if gap >= layout.least_hole() { gap } else { 0 };
        at = at.max(end);
    }
    report.leak(leaked, "bytes between blocks");
}

/// Check the end of the file: the footer must follow the last block, with nothing in between.
fn check_tail(
    store: &dyn Store,
    found: &Found,
    layout: &Layout,
    (end, len): (u64, u64),
    repair: bool,
    report: &mut CheckReport,
) -> io::Result<()> {
    let footer = FOOTER_SIZE as u64;
    let (severity, value, leaked) = match found.source {
        Source::Trailing(at) if len - at != footer => (Severity::Redundancy, "511 bytes".to_owned(), 0),
        // Less than a block may be padding, or data of another program.
        Source::Trailing(at) if at >= end && at - end < layout.least_hole() => return Ok(()),
        Source::Trailing(at) if at < end => (Severity::Redundancy, "inside the last block".to_owned(), 0),
        Source::Trailing(at) => {
            (Severity::Leak, format!("{} bytes behind the last block", at - end), at - end)
        }
        Source::Copy | Source::Inside(_) => {
            (Severity::Redundancy, "missing".to_owned(), len.saturating_sub(end))
        }
    };
    let trailing = found.source.trailing();
    let end = layout.footer_place(end, trailing, layout.aligns_footer(end, trailing));
    report.leaked += leaked;
    if repair {
        // The old footer is kept until the new one is on stable storage, because the copy at the start may not be on
        // stable storage either.
        store.write_at(found.footer.as_bytes(), end)?;
        store.sync()?;
        store.set_size(end + footer)?;
        if let Source::Trailing(at) = found.source
            && at < end
        {
            footer::erase(store, at, end)?;
        }
    }
    let bad = BadField::new("VHD footer", value, "at the end of the file, behind the last block");
    report.add(severity, bad, repair.then_some("written there, the file cut"));
    Ok(())
}
