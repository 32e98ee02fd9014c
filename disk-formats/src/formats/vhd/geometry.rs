//! Cylinders, heads and sectors: the specification's appendix "CHS Calculation".

use super::spec::{Footer, SECTOR};

/// A CHS geometry. Current guests do not use it; some programs derive the size from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Cylinders.
    pub cylinders: u16,
    /// Heads.
    pub heads: u8,
    /// Sectors per track.
    pub sectors_per_track: u8,
}

/// Number of sectors of the largest geometry.
const MAX_SECTORS: u64 = 65535 * 16 * 255;

impl Geometry {
    /// The largest geometry: it says nothing about the size.
    pub const MAX: Self = Self { cylinders: 65535, heads: 16, sectors_per_track: 255 };

    /// The geometry of a disk of `size` bytes. It may address less than `size`.
    #[must_use]
    pub fn of_size(size: u64) -> Self {
        let total = (size / SECTOR).min(MAX_SECTORS);
        let (mut sectors_per_track, mut heads, mut tracks) = (17, 0, total / 17);
        if total >= 65535 * 16 * 63 {
            (sectors_per_track, heads, tracks) = (255, 16, total / 255);
        } else {
            heads = tracks.div_ceil(1024).max(heads).max(4);
            if tracks >= heads * 1024 || heads > 16 {
                (sectors_per_track, heads, tracks) = (31, 16, total / 31);
            }
            if tracks >= heads * 1024 {
                (sectors_per_track, heads, tracks) = (63, 16, total / 63);
            }
        }
        Self {
            cylinders: u16::try_from(tracks / heads).unwrap_or(u16::MAX),
            heads: heads as u8,
            sectors_per_track: sectors_per_track as u8,
        }
    }

    /// The geometry to store for a disk of `size` bytes: one that addresses exactly this size, or else the largest.
    /// Programs differ in whether they derive the size from the geometry; none does so from the largest one.
    #[must_use]
    pub fn to_note(size: u64) -> Self {
        let geometry = Self::of_size(size);
        if geometry.size() == size { geometry } else { Self::MAX }
    }

    /// The geometry in a footer.
    #[must_use]
    pub fn of_footer(footer: &Footer) -> Self {
        Self {
            cylinders: footer.cylinders.get(),
            heads: footer.heads,
            sectors_per_track: footer.sectors_per_track,
        }
    }

    /// The number of bytes that it addresses.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::from(self.cylinders) * u64::from(self.heads) * u64::from(self.sectors_per_track) * SECTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_disks() {
        let chs = |sectors: u64| {
            let geometry = Geometry::of_size(sectors * SECTOR);
            (geometry.cylinders, geometry.heads, geometry.sectors_per_track)
        };
        // Calculated by hand: 64 MiB is 7,710 tracks of 17, 1 GiB is 33,288 tracks of 63. Then each limit.
        assert_eq!(chs(131_072), (963, 8, 17));
        assert_eq!(chs(2_097_152), (2080, 16, 63));
        assert_eq!(chs(65535 * 16 * 63 - 1), (65534, 16, 63));
        assert_eq!(chs(65535 * 16 * 63), (16191, 16, 255));
        assert_eq!(chs(MAX_SECTORS), (65535, 16, 255));
        assert_eq!(chs(u64::MAX / SECTOR), (65535, 16, 255));
        assert_eq!(chs(1), (0, 4, 17));
    }

    #[test]
    fn what_is_noted_is_exact_or_says_nothing() {
        let exact = Geometry::of_size(64 << 20).size();
        assert_eq!(Geometry::to_note(exact).size(), exact);
        assert_eq!(Geometry::to_note(64 << 20), Geometry::MAX);
    }

    #[test]
    fn never_more_than_the_size() {
        for size in (0..60).map(|power| 1u64 << power) {
            assert!(Geometry::of_size(size).size() <= size);
        }
    }
}
