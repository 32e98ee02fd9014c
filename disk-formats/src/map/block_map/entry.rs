//! Encoding of places, links to units, and lanes in 64-bit words.

use crate::contract::error::IoError;

/// A file, and the offset that the start of the granule has there. If only a part of the granule is in the file, the
/// offset may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// Index of the file.
    pub(crate) file: u32,
    /// Byte offset modulo 2^64; a multiple of the sector.
    pub(crate) offset: u64,
}

pub(super) const TAG_BITS: u32 = 2;
const FILE_BITS: u32 = 12;
/// Number of bits of a link below its stamp: the tag and the number of the unit.
pub(super) const STAMP_SHIFT: u32 = 28;
/// Number of units that a link can address.
pub(super) const MAX_UNITS: u32 = 1 << (STAMP_SHIFT - TAG_BITS);

/// Encode a place: the tag `WHOLE`, the file, and the sector, which may be negative.
pub(super) fn place_word(base: Base) -> u64 {
    let sector = (base.offset as i64 >> SECTOR_SHIFT) as u64;
    WHOLE | u64::from(base.file) << TAG_BITS | sector << (TAG_BITS + FILE_BITS)
}

/// Decode a word tagged `WHOLE`.
#[inline]
pub(super) fn base_of(word: u64) -> Base {
    let file = (word >> TAG_BITS) & ((1 << FILE_BITS) - 1);
    let sector = word as i64 >> (TAG_BITS + FILE_BITS);
    Base { file: file as u32, offset: (sector as u64) << SECTOR_SHIFT }
}

/// Whether the word says that all of the granule is in the top file.
#[inline]
pub(super) fn is_top(word: u64) -> bool {
    word & ((1 << TAG_BITS) - 1) == WHOLE && base_of(word).file == 0
}

/// The link to a unit with this stamp. A unit gets a new stamp each time it is reused.
pub(super) fn link(tag: u64, unit: u32, stamp: u64) -> u64 {
    stamp << STAMP_SHIFT | u64::from(unit) << TAG_BITS | tag
}

/// The number of the unit that a link points to.
#[inline]
pub(super) fn unit_of(link: u64) -> u32 {
    (link >> TAG_BITS) as u32 & (MAX_UNITS - 1)
}

/// Whether two words (links or states of a unit) have the same stamp.
#[inline]
pub(super) fn same_use(one: u64, other: u64) -> bool {
    (one ^ other) >> STAMP_SHIFT == 0
}

/// Base-2 logarithm of the lane width in bits for this number of places outside of the top file. 64-bit lanes hold the
/// places themselves.
pub(super) fn lane_shift(places: usize) -> u32 {
    match places {
        0..=1 => 0,
        2..=3 => 1,
        4..=15 => 2,
        16..=255 => 3,
        _ => DIRECT,
    }
}

/// Lane shift of lanes that hold places.
pub(super) const DIRECT: u32 = 6;

/// Mask of one lane.
#[inline]
pub(super) fn lane_mask(shift: u32) -> u64 {
    u64::MAX >> (64 - (1 << shift))
}

/// Multiplying a value by this word copies the value to every lane.
#[inline]
pub(super) fn splat(shift: u32) -> u64 {
    match shift {
        0 => u64::MAX,
        1 => 0x5555_5555_5555_5555,
        2 => 0x1111_1111_1111_1111,
        3 => 0x0101_0101_0101_0101,
        _ => 1,
    }
}

/// Number of lanes of a word that are not zero.
pub(super) fn nonzero_lanes(mut word: u64, shift: u32) -> u32 {
    // Combine each lane's bits into its lowest bit.
    let mut width = 1 << shift;
    while width > 1 {
        width /= 2;
        word |= word >> width;
    }
    (word & splat(shift)).count_ones()
}

/// Sectors are 512 bytes.
pub(super) const SECTOR_SHIFT: u32 = 9;

pub(super) const UNKNOWN: u64 = 0;
pub(super) const ZEROS: u64 = 1;
pub(super) const WHOLE: u64 = 2;
pub(super) const MIXED: u64 = 3;
/// Mask of the tag.
pub(super) const TAG: u64 = 3;

pub(super) const NO_BASE: IoError = IoError::Damaged("the map names a place that does not exist");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_links_come_back() {
        for base in [
            Base { file: 0, offset: 1 << 20 },
            Base { file: 4095, offset: (1 << 57) - 512 },
            Base { file: 3, offset: 0u64.wrapping_sub(2 << 20) },
        ] {
            assert_eq!(base_of(place_word(base)), base);
        }
        let (one, other) = (link(3, MAX_UNITS - 1, 1), link(3, MAX_UNITS - 1, 2));
        assert_eq!(
            (unit_of(one), same_use(one, other), same_use(one, one | 1 << 20)),
            (MAX_UNITS - 1, false, true)
        );
    }

    #[test]
    fn lanes_with_bits_are_counted() {
        assert_eq!(nonzero_lanes(0b1011, 0), 3);
        assert_eq!(nonzero_lanes(0b11_00_10_01, 1), 3);
        assert_eq!(nonzero_lanes(0xF010_0008, 2), 3);
        assert_eq!(nonzero_lanes(0xFF00_8001, 3), 3);
        assert_eq!(nonzero_lanes(u64::MAX, 3), 8);
        assert_eq!((nonzero_lanes(1 << 63, DIRECT), nonzero_lanes(0, DIRECT)), (1, 0));
        for shift in [0, 1, 2, 3, DIRECT] {
            assert_eq!(lane_mask(shift).wrapping_mul(splat(shift)), u64::MAX, "{shift}");
        }
    }
}
