//! Checks the block allocation table (BAT) of an image.

use std::io;

use super::layout::Layout;
use super::spec::{SECTOR, UNALLOCATED};
use crate::contract::error::BadField;
use crate::host::store::Store;

/// What is wrong with a BAT entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    /// The block overlaps the dynamic header, the BAT, or the copy of the footer.
    OverMetadata,
    /// The bitmap is not wholly inside the file.
    BeyondEnd,
    /// The block overlaps the path of a parent locator.
    OverLocator,
    /// The block overlaps another block: the valid entry and the number of that block.
    Overlap(u32, u32),
}

/// Check the entries of a BAT in a file of `len` bytes with parent locators at `paths`. Calls `found` with each invalid
/// entry: its block, the entry, what is wrong. Overlaps come last. Returns the valid entries in ascending order.
pub(super) fn check(
    table: &[u32],
    layout: &Layout,
    paths: &[(u64, u64)],
    len: u64,
    mut found: impl FnMut(u32, u32, Defect),
) -> Vec<u32> {
    let mut starts: Vec<(u32, u32)> = Vec::new();
    for (block, entry) in (0..).zip(table).filter(|(_, entry)| **entry != UNALLOCATED) {
        let (bitmap, end) = layout.block_range(*entry);
        match () {
            () if layout.hits_metadata(bitmap, end) => found(block, *entry, Defect::OverMetadata),
            () if bitmap + layout.bitmap > len => found(block, *entry, Defect::BeyondEnd),
            () if paths.iter().any(|(at, to)| bitmap < *to && *at < end) => {
                found(block, *entry, Defect::OverLocator);
            }
            () => starts.push((*entry, block)),
        }
    }
    starts.sort_unstable();
    let mut last: Option<(u32, u32)> = None;
    starts.retain(|(entry, block)| match last {
        Some((before, other)) if layout.block_range(before).1 > Layout::bitmap_at(*entry) => {
            found(*block, *entry, Defect::Overlap(before, other));
            false
        }
        _ => {
            last = Some((*entry, *block));
            true
        }
    });
    starts.into_iter().map(|(entry, _)| entry).collect()
}

/// Call `found` with each block of a checked BAT that has data beyond the byte `there` of the file: sectors of the disk whose bits are set. These
/// sectors are lost.
pub(super) fn cut_off(
    store: &dyn Store,
    layout: &Layout,
    table: &[u32],
    there: u64,
    mut found: impl FnMut(BadField),
) -> io::Result<()> {
    for (block, entry) in table.iter().enumerate().filter(|(_, entry)| **entry != UNALLOCATED) {
        let (data, (bitmap, end)) = (layout.data_at(*entry), layout.block_range(*entry));
        if end <= there {
            continue;
        }
        let mut bits = vec![0; layout.bitmap as usize];
        store.read_at(&mut bits, bitmap)?;
        let sectors = layout.block_size().min(layout.size - ((block as u64) << layout.block_shift)) / SECTOR;
        let lost = (there.saturating_sub(data) / SECTOR..sectors)
            .filter(|sector| Layout::has_bit(&bits, *sector))
            .count();
        if lost > 0 {
            found(BadField::new(
                "data of a block",
                format!("cut off at byte {there} of the file, {lost} sectors of block {block} are lost"),
                format!("a file of at least {end} bytes"),
            ));
        }
    }
    Ok(())
}
