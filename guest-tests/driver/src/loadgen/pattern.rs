//! What verified blocks hold: each sector of 512 bytes says where it belongs, how old it is, and proves its body.
//!
//! Words of 8 bytes: offset on the disk, generation, seed, then a body computed from the three. A block that was put in
//! the wrong place, an old one, or one made of pieces of two writes shows itself in the sector concerned.

use crate::adapter::{Buffer, PAGE};
use crate::platform::DmaRegion;
use crate::workload::Fault;

/// Bytes that carry a header of their own.
pub const SECTOR: usize = 512;
const HEADER_WORDS: usize = 3;

/// A request's buffer as the driver sees it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Memory with the whole buffer inside.
    pub region: &'a DmaRegion,
    /// The buffer. Starts on a multiple of 512 bytes.
    pub buffer: Buffer,
}

/// Which version of which data a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Byte offset of the block on the disk.
    pub offset: u64,
    /// Version.
    pub generation: u64,
    /// The job's seed.
    pub seed: u64,
}

impl Stamp {
    const fn sector(self, index: usize) -> Self {
        Self { offset: self.offset + (index * SECTOR) as u64, ..self }
    }

    const fn header(self) -> [u64; HEADER_WORDS] {
        [self.offset, self.generation, self.seed]
    }

    /// Word `index` of the sector's body.
    const fn body(self, index: usize) -> u64 {
        let key = self.offset.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ self.generation.wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
            ^ self.seed.wrapping_mul(0x1656_67b1_9e37_79f9);
        let word = key.wrapping_add((index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93));
        word ^ word >> 29
    }
}

impl View<'_> {
    fn sectors(&self) -> usize {
        self.buffer.len as usize / SECTOR
    }

    /// Offset in the region of sector `index`: sectors never cross a page.
    fn at(&self, index: usize) -> usize {
        let start = (self.buffer.address - self.region.address()) as usize;
        let within = start % PAGE + index * SECTOR;
        start - start % PAGE + within / PAGE * self.buffer.page_stride as usize + within % PAGE
    }

    /// Fill the buffer.
    pub fn stamp(&self, block: Stamp) {
        for index in 0..self.sectors() {
            let (stamp, at) = (block.sector(index), self.at(index));
            for (word, value) in stamp.header().into_iter().enumerate() {
                self.region.write(at + word * 8, value);
            }
            for word in HEADER_WORDS..SECTOR / 8 {
                self.region.write(at + word * 8, stamp.body(word));
            }
        }
    }

    /// Spoil the buffer, so that data which never arrive are not mistaken for what was there.
    pub fn spoil(&self) {
        for index in 0..self.sectors() {
            let at = self.at(index);
            self.region.write(at, !0u64);
            self.region.write(at + SECTOR - 8, self.region.read::<u64>(at + SECTOR - 8) ^ !0);
        }
    }

    /// Compare the buffer with what it should hold; the first difference.
    pub fn check(&self, block: Stamp) -> Option<Fault> {
        (0..self.sectors()).find_map(|index| self.check_sector(block.sector(index), self.at(index)))
    }

    fn check_sector(&self, stamp: Stamp, at: usize) -> Option<Fault> {
        let kinds = [Fault::WRONG_ADDRESS, Fault::WRONG_GENERATION, Fault::WRONG_GENERATION];
        let fault =
            |kind, expected, found| Some(Fault { kind, status: 0, offset: stamp.offset, expected, found });
        for (word, expected) in stamp.header().into_iter().enumerate() {
            let found = self.region.read(at + word * 8);
            if found != expected {
                return fault(kinds[word], expected, found);
            }
        }
        for word in HEADER_WORDS..SECTOR / 8 {
            let (expected, found) = (stamp.body(word), self.region.read(at + word * 8));
            if found != expected {
                return fault(Fault::WRONG_BODY, expected, found);
            }
        }
        None
    }
}
