//! The file layout of a dynamic or differencing disk, from its checked dynamic header.

use std::io;

use zerocopy::FromBytes;

use super::footer::Subformat;
use super::spec::{
    DynamicHeader, FOOTER_SIZE, HEADER_SIZE, HEADER_VERSION, ParentLocator, SECTOR, SPARSE_COOKIE,
    UNALLOCATED,
};
use crate::contract::error::{BadField, ReadError};
use crate::host::store::Store;

/// Maximum number of entries of a BAT, which bounds the table in memory to 256 MiB. A disk of 2,040 GiB with blocks of
/// 2 MiB has 1,044,480.
pub(super) const MAX_ENTRIES: u32 = 1 << 26;

/// Alignment of block data, unless the space is needed.
const ALIGNMENT: u64 = 4096;
/// Size in bytes of the part of a file that BAT entries can address.
pub(super) const REACH: u64 = UNALLOCATED as u64 * SECTOR;

/// A checked dynamic header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Virtual size in bytes.
    pub(super) size: u64,
    /// Byte offset of the dynamic header.
    pub(super) header: u64,
    /// Byte offset of the BAT.
    pub(super) bat: u64,
    /// Entries of the BAT.
    pub(super) entries: u32,
    /// Base-2 logarithm of the block size.
    pub(super) block_shift: u32,
    /// Size of a block's bitmap in bytes: whole sectors.
    pub(super) bitmap: u64,
}

impl Layout {
    /// Size of a block's data in bytes.
    pub(super) fn block_size(&self) -> u64 {
        1 << self.block_shift
    }

    /// Alignment of the data of new blocks, so that guest pages match the file system's blocks. If that would put the
    /// last blocks of a full disk beyond the reach of BAT entries, blocks are only aligned to sectors.
    pub(super) fn alignment(&self) -> u64 {
        let alignment = ALIGNMENT.min(self.block_size());
        let pitch = (self.bitmap + self.block_size()).next_multiple_of(alignment);
        let metadata = self.metadata().iter().map(|(_, end)| *end).fold(alignment, u64::max);
        match metadata + u64::from(self.used_entries()) * pitch <= REACH {
            true => alignment,
            false => SECTOR,
        }
    }

    /// Bytes that an unused range has at least if a block may have been there. A smaller one may be padding, or data of
    /// another program in a place that this program does not know.
    pub(super) fn least_hole(&self) -> u64 {
        (self.bitmap + self.block_size()).max(2 * ALIGNMENT)
    }

    /// Where the bitmap of a block begins that is placed at `end` or behind it.
    pub(super) fn next_block(&self, end: u64) -> u64 {
        (end + self.bitmap).next_multiple_of(self.alignment()) - self.bitmap
    }

    /// The place of the trailing footer, if everything else ends at `end` and a footer is at `trailing`. A footer less than a block behind the
    /// end stays ([`least_hole`](Self::least_hole)). Else it is put directly behind the end: QEMU puts its next block there, without
    /// clearing the space behind its bitmap, in which a footer would become data. In an image with [aligned footers](Self::aligns_footer) it is
    /// put where the bitmap of the next block will be.
    pub(super) fn footer_place(&self, end: u64, trailing: Option<u64>, aligned: bool) -> u64 {
        match trailing {
            Some(at) if at >= end && at - end < self.least_hole() => at,
            _ if aligned => self.next_block(end),
            _ => end,
        }
    }

    /// Whether an image whose footer is at `trailing`, where everything else ends at `end`, has its footers where the bitmap of the next block
    /// will be, as Hyper-V has, which puts the next block in the footer's place: so the data of that block are aligned.
    pub(super) fn aligns_footer(&self, end: u64, trailing: Option<u64>) -> bool {
        trailing.is_some_and(|at| at != end && at == self.next_block(end))
    }

    /// The ranges of the copy of the footer, the dynamic header and the BAT in the file.
    pub(super) fn metadata(&self) -> [(u64, u64); 3] {
        let header = (self.header, self.header + HEADER_SIZE as u64);
        [(0, SECTOR), header, (self.bat, self.bat + Self::bat_bytes(self.entries))]
    }

    /// Bytes of the copy of the footer, the dynamic header and the BAT.
    pub(super) fn metadata_bytes(&self) -> u64 {
        self.metadata().iter().map(|(start, end)| end - start).sum()
    }

    /// Whether `[start, end)` of the file overlaps one of the ranges of [`metadata`](Self::metadata).
    pub(super) fn hits_metadata(&self, start: u64, end: u64) -> bool {
        self.metadata().iter().any(|(from, to)| start < *to && *from < end)
    }

    /// The range of a block in the file: bitmap and data.
    pub(super) fn block_range(&self, entry: u32) -> (u64, u64) {
        (Self::bitmap_at(entry), self.data_at(entry) + self.block_size())
    }

    /// Number of blocks of the virtual size.
    pub(super) fn used_entries(&self) -> u32 {
        // At most 2,040 GiB in blocks of 512 bytes, which was checked to fit.
        self.size.div_ceil(self.block_size()) as u32
    }

    /// Size of the BAT on disk in bytes: whole sectors.
    pub(super) fn bat_bytes(entries: u32) -> u64 {
        (u64::from(entries) * 4).next_multiple_of(SECTOR)
    }

    /// Size in bytes of the bitmap of a block of this size.
    pub(super) fn bitmap_bytes(block_size: u64) -> u64 {
        (block_size / SECTOR).div_ceil(8).next_multiple_of(SECTOR)
    }

    /// Whether the bit of a sector is set in the bitmap of its block.
    pub(super) fn has_bit(bitmap: &[u8], sector: u64) -> bool {
        bitmap.get((sector / 8) as usize).is_some_and(|byte| byte & (0x80 >> (sector % 8)) != 0)
    }

    /// Byte offset of a block's bitmap, from its BAT entry.
    pub(super) fn bitmap_at(entry: u32) -> u64 {
        u64::from(entry) * SECTOR
    }

    /// Byte offset of a block's data, from its BAT entry.
    pub(super) fn data_at(&self, entry: u32) -> u64 {
        Self::bitmap_at(entry) + self.bitmap
    }
}

/// Refuse a disk of `size` bytes in blocks of `block_size` that a table cannot locate. The error says what it must have.
pub(super) fn check_blocks(size: u64, block_size: u64) -> Result<(), String> {
    let blocks = size.div_ceil(block_size);
    if blocks > u64::from(MAX_ENTRIES) {
        return Err(format!("at most {MAX_ENTRIES} blocks"));
    }
    let metadata = FOOTER_SIZE as u64 + HEADER_SIZE as u64 + Layout::bat_bytes(blocks as u32);
    if metadata + blocks * (Layout::bitmap_bytes(block_size) + block_size) > REACH {
        return Err("all blocks below 2 TiB of the file".to_owned());
    }
    Ok(())
}

/// Read and check the dynamic header at offset `at` of a disk of `size` bytes.
pub(super) fn read(store: &dyn Store, at: u64, size: u64) -> Result<(DynamicHeader, Layout), ReadError> {
    let len = store.len()?;
    if at.checked_add(HEADER_SIZE as u64).is_none_or(|end| end > len) {
        let expected = format!("space for a dynamic header of 1024 bytes in a file of {len}");
        return Err(BadField::new("data offset", format!("{at:#x}"), expected).into());
    }
    let mut bytes = [0; HEADER_SIZE];
    store.read_at(&mut bytes, at)?;
    let Ok(header) = DynamicHeader::read_from_bytes(&bytes) else {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    };
    Ok((header, check(&header, at, size, len)?))
}

fn check(header: &DynamicHeader, at: u64, size: u64, len: u64) -> Result<Layout, BadField> {
    if header.cookie != SPARSE_COOKIE {
        return Err(BadField::new(
            "dynamic header cookie",
            format!("{:02x?}", header.cookie),
            "\"cxsparse\"",
        ));
    }
    let (stored, computed) = (header.checksum.get(), header.computed_checksum());
    if stored != computed {
        let (value, expected) = (format!("{stored:#010x}"), format!("{computed:#010x}"));
        return Err(BadField::new("dynamic header checksum", value, expected));
    }
    let version = header.header_version.get();
    if version != HEADER_VERSION {
        return Err(BadField::new("dynamic header version", format!("{version:#010x}"), "0x00010000"));
    }
    let block_size = u64::from(header.block_size.get());
    if !block_size.is_power_of_two() || block_size < SECTOR {
        return Err(BadField::new("block size", block_size.to_string(), "a power of two, at least 512"));
    }
    let (entries, needed) = (header.max_table_entries.get(), size.div_ceil(block_size));
    if u64::from(entries) < needed || entries > MAX_ENTRIES {
        let expected =
            format!("at least {needed} for {size} bytes in blocks of {block_size}, at most {MAX_ENTRIES}");
        return Err(BadField::new("max table entries", entries.to_string(), expected));
    }
    let table = header.table_offset.get();
    let end = table.checked_add(Layout::bat_bytes(entries)).filter(|end| *end <= len);
    let header_end = at + HEADER_SIZE as u64;
    let apart = |end: &u64| table.is_multiple_of(SECTOR) && (table >= header_end || *end <= at);
    if end.filter(apart).is_none() {
        let expected = format!(
            "a multiple of 512 outside the dynamic header, with {entries} entries before the end of the file at {len}"
        );
        return Err(BadField::new("table offset", format!("{table:#x}"), expected));
    }
    if table < SECTOR {
        return Err(BadField::new("table offset", format!("{table:#x}"), "behind the copy of the footer"));
    }
    Ok(Layout {
        size,
        header: at,
        bat: table,
        entries,
        block_shift: block_size.trailing_zeros(),
        bitmap: Layout::bitmap_bytes(block_size),
    })
}

/// The parent locators that count. Only a differencing disk has any: what the header of another disk has in their place means nothing.
pub(super) fn named_locators(
    subformat: Subformat,
    header: &DynamicHeader,
) -> impl Iterator<Item = (usize, ParentLocator)> {
    let all = header.parent_locators.into_iter().enumerate();
    all.filter(move |(_, locator)| subformat == Subformat::Differencing && locator.platform_code != [0; 4])
}

/// The ranges of the file that have the locators' paths. The size of the space reserved for a path is not reliable.
pub(super) fn locator_paths(subformat: Subformat, header: &DynamicHeader, len: u64) -> Vec<(u64, u64)> {
    locator_areas(subformat, header, len).map(|(_, at, bytes, _)| (at, at + bytes)).collect()
}

/// The parent locators inside a file of `len` bytes: `(slot, offset, bytes of the path, bytes reserved)`.
///
/// Of a locator that claims space beyond the end of the file only the path counts. A claim up to the end of the file would include the
/// trailing footer, and each open and each repair would move the footer behind itself; a larger one would leave no gap for a block.
pub(super) fn locator_areas(
    subformat: Subformat,
    header: &DynamicHeader,
    len: u64,
) -> impl Iterator<Item = (usize, u64, u64, u64)> {
    named_locators(subformat, header).filter_map(move |(slot, locator)| {
        let (at, bytes) = (locator.data_offset.get(), u64::from(locator.data_length.get()));
        // Reserved space is in sectors by the specification, but many programs write bytes.
        let space = match u64::from(locator.data_space.get()) {
            sectors if sectors < SECTOR => sectors * SECTOR,
            bytes => bytes,
        };
        let end = at.checked_add(bytes)?;
        let space = if at.saturating_add(space) <= len { space.max(bytes) } else { bytes };
        (end <= len && at >= SECTOR).then_some((slot, at, bytes, space))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block sizes that Microsoft tested, 512 KiB and 2 MiB, must have space for all blocks of the largest disk.
    #[test]
    fn the_largest_disk_has_space_for_all_its_blocks() {
        let layout = |size: u64, shift: u32| {
            let entries = (size >> shift) as u32;
            let bitmap = Layout::bitmap_bytes(1 << shift);
            Layout { size, header: 512, bat: 1536, entries, block_shift: shift, bitmap }
        };
        let largest = super::super::spec::MAX_SPARSE_SIZE;
        let ends = |layout: &Layout| {
            let data = (layout.metadata()[2].1 + layout.bitmap).next_multiple_of(layout.alignment());
            let pitch = (layout.bitmap + layout.block_size()).next_multiple_of(layout.alignment());
            data - layout.bitmap + u64::from(layout.used_entries() - 1) * pitch
        };
        assert_eq!(layout(largest, 21).alignment(), 4096);
        assert_eq!(layout(largest, 19).alignment(), 512);
        assert_eq!(layout(largest / 2, 19).alignment(), 4096);
        assert!(ends(&layout(largest, 21)) < REACH && ends(&layout(largest, 19)) < REACH);
    }
}
