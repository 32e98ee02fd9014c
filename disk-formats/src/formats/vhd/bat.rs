//! Checks the block allocation table (BAT) of an image.

use super::layout::Layout;
use super::spec::UNALLOCATED;

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
