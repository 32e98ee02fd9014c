//! The layout of blocks and bitmaps: arithmetic of the BAT (\[MS-VHDX\] 2.5), and its entries (2.5.1).

use super::region::Run;
use super::spec::{MIB, SECTORS_PER_CHUNK};
use crate::contract::info::SectorSize;

/// Bytes of a BAT entry.
pub(super) const ENTRY: u64 = 8;

/// The checked layout of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Virtual size in bytes.
    pub(super) size: u64,
    /// Base-2 logarithm of the block size, 20 to 28.
    pub(super) block_shift: u32,
    /// Logical sector.
    pub(super) sector: SectorSize,
    /// Location of the BAT.
    pub(super) bat: Run,
    /// Whether it is a differencing disk.
    pub(super) has_parent: bool,
}

impl Layout {
    /// Size of a payload block in bytes.
    pub(super) fn block_size(&self) -> u64 {
        1 << self.block_shift
    }

    /// Base-2 logarithm of the chunk ratio: the number of payload blocks that one bitmap block describes.
    pub(super) fn ratio_shift(&self) -> u32 {
        SECTORS_PER_CHUNK.trailing_zeros() + self.sector.shift() - self.block_shift
    }

    /// Number of payload blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block_size())
    }

    /// Number of chunks, which is the maximum number of bitmap blocks.
    pub(super) fn chunks(&self) -> u64 {
        self.blocks().div_ceil(1 << self.ratio_shift())
    }

    /// Number of entries that the BAT needs.
    pub(super) fn entries(&self) -> u64 {
        match self.has_parent {
            true => self.chunks() * ((1 << self.ratio_shift()) + 1),
            false => self.blocks() + (self.blocks() - 1) / (1 << self.ratio_shift()),
        }
    }

    /// Size in bytes that the BAT needs: whole MiB.
    pub(super) fn bat_bytes(&self) -> u64 {
        (self.entries() * ENTRY).next_multiple_of(MIB)
    }

    /// Index in the BAT of a payload block.
    pub(super) fn payload_index(&self, block: u64) -> u64 {
        block + (block >> self.ratio_shift())
    }

    /// Index in the BAT of a chunk's bitmap block.
    pub(super) fn bitmap_index(&self, chunk: u64) -> u64 {
        (chunk << self.ratio_shift()) + chunk + (1 << self.ratio_shift())
    }

    /// The block that an index of the BAT stands for.
    pub(super) fn slot(&self, index: u64) -> Slot {
        let pitch = (1 << self.ratio_shift()) + 1;
        let (chunk, within) = (index / pitch, index % pitch);
        match within {
            last if last == pitch - 1 => Slot::Bitmap(chunk),
            within => Slot::Payload((chunk << self.ratio_shift()) + within),
        }
    }

    /// Size in bytes of the block that an index of the BAT stands for.
    pub(super) fn slot_size(&self, index: u64) -> u64 {
        match self.slot(index) {
            Slot::Payload(_) => self.block_size(),
            Slot::Bitmap(_) => MIB,
        }
    }

    /// The chunk of a payload block.
    pub(super) fn chunk(&self, block: u64) -> u64 {
        block >> self.ratio_shift()
    }

    /// Number of bits of one block in its chunk's bitmap.
    pub(super) fn bits_per_block(&self) -> u64 {
        self.block_size() >> self.sector.shift()
    }

    /// Number of the bit for the sector at `offset` of the disk, in its chunk's bitmap block.
    pub(super) fn bit(&self, offset: u64) -> u64 {
        (offset >> self.sector.shift()) % SECTORS_PER_CHUNK
    }

    /// Whether a bit is set in bits of a bitmap block, the first of which has the number 0.
    pub(super) fn has_bit(bits: &[u8], bit: u64) -> bool {
        bits.get((bit / 8) as usize).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
    }
}

/// The block that an index of the BAT stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// A payload block.
    Payload(u64),
    /// The bitmap block of a chunk.
    Bitmap(u64),
}

/// Lowest bit of the file offset (in MiB) in an entry.
const OFFSET_SHIFT: u32 = 20;

/// A BAT entry in its on-disk form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u64);

/// The state of a payload block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not allocated: reads from the parent, or as zeros without a parent.
    NotPresent,
    /// Freed; this implementation reads zeros.
    Undefined,
    /// Zeros.
    Zero,
    /// Trimmed; this implementation reads zeros.
    Unmapped,
    /// All sectors are in the file.
    FullyPresent,
    /// Sectors whose bits are set are in the file; the others are read from the parent.
    PartiallyPresent,
    /// A reserved value.
    Reserved(u8),
}

impl Entry {
    /// No block.
    pub(super) const NOT_PRESENT: Self = Self(0);
    /// A block of zeros.
    pub(super) const ZERO: Self = Self(2);
    /// A trimmed block.
    pub(super) const UNMAPPED: Self = Self(3);

    /// A fully present block at `offset`. Bitmap blocks use the same entry.
    pub(super) fn fully(offset: u64) -> Self {
        Self(offset & !(MIB - 1) | 6)
    }

    /// A partially present block at `offset`.
    pub(super) fn partially(offset: u64) -> Self {
        Self(offset & !(MIB - 1) | 7)
    }

    /// The same entry with another offset.
    pub(super) fn moved(self, offset: u64) -> Self {
        Self(offset & !(MIB - 1) | self.0 & (MIB - 1))
    }

    /// Byte offset in the file; 0 if there is none.
    pub(super) fn offset(self) -> u64 {
        self.0 >> OFFSET_SHIFT << OFFSET_SHIFT
    }

    /// The reserved bits.
    pub(super) fn reserved(self) -> u64 {
        self.0 >> 3 & 0x1_FFFF
    }

    pub(super) fn state(self) -> State {
        match self.0 & 7 {
            0 => State::NotPresent,
            1 => State::Undefined,
            2 => State::Zero,
            3 => State::Unmapped,
            6 => State::FullyPresent,
            7 => State::PartiallyPresent,
            other => State::Reserved(other as u8),
        }
    }

    /// Whether the block has data in the file.
    pub(super) fn present(self) -> bool {
        matches!(self.state(), State::FullyPresent | State::PartiallyPresent)
    }

    /// Whether the entry has space in the file: for data, or kept by a trimmed block.
    pub(super) fn holds_space(self) -> bool {
        match self.state() {
            State::FullyPresent | State::PartiallyPresent => true,
            State::Undefined | State::Unmapped => self.offset() != 0,
            State::NotPresent | State::Zero | State::Reserved(_) => false,
        }
    }
}

#[cfg(test)]
mod entry_tests {
    use super::*;

    #[test]
    fn parts_of_an_entry() {
        let entry = Entry::partially(0x1234_5670_0000);
        assert_eq!(
            (entry.offset(), entry.state(), entry.reserved()),
            (0x1234_5670_0000, State::PartiallyPresent, 0)
        );
        assert_eq!(Entry(5).state(), State::Reserved(5));
        assert_eq!(Entry(8).reserved(), 1);
        assert!(
            Entry(MIB | 3).holds_space() && !Entry::UNMAPPED.holds_space() && !Entry(MIB | 2).holds_space()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: u64, block_shift: u32, sector: SectorSize, has_parent: bool) -> Layout {
        Layout { size, block_shift, sector, bat: Run { offset: 0, len: 0 }, has_parent }
    }

    #[test]
    fn chunk_ratios_of_the_specification() {
        for (shift, ratio) in [(20, 4096), (21, 2048), (25, 128), (28, 16)] {
            assert_eq!(1u64 << layout(1, shift, SectorSize::B512, false).ratio_shift(), ratio);
            assert_eq!(1u64 << layout(1, shift, SectorSize::B4096, false).ratio_shift(), ratio * 8);
        }
    }

    #[test]
    fn indices_are_apart_and_come_back() {
        for shift in [20, 24, 28] {
            let layout = layout(40 << 30, shift, SectorSize::B512, true);
            let mut indices: Vec<u64> =
                (0..layout.blocks()).map(|block| layout.payload_index(block)).collect();
            for block in 0..layout.blocks() {
                assert_eq!(layout.slot(layout.payload_index(block)), Slot::Payload(block));
            }
            for chunk in 0..layout.chunks() {
                assert_eq!(layout.slot(layout.bitmap_index(chunk)), Slot::Bitmap(chunk));
                indices.push(layout.bitmap_index(chunk));
            }
            indices.sort_unstable();
            indices.dedup();
            assert_eq!(indices.len() as u64, layout.blocks() + layout.chunks());
            assert!(indices.last().is_some_and(|last| *last < layout.entries()));
        }
    }

    #[test]
    fn sizes_of_tables() {
        // 64 TiB in blocks of 1 MiB.
        let most = layout(64 << 40, 20, SectorSize::B512, true);
        assert_eq!(most.entries(), (64 << 20) + (64 << 20) / 4096);
        assert_eq!(most.bat_bytes(), 513 << 20);
        assert_eq!(layout(1 << 20, 25, SectorSize::B512, false).entries(), 1);
        assert_eq!(layout(1 << 20, 25, SectorSize::B512, true).entries(), 129);
    }
}
