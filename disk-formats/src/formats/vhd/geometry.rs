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

    /// The geometry to store for a disk of `size` bytes: one that addresses exactly this size, or else
    /// [`of_size`](Self::of_size), which is what Hyper-V writes.
    ///
    /// Some programs derive the size from the geometry, so it should be exact. XenServer refuses a geometry that is
    /// larger than `of_size`, with the cylinders compared first. Of several, the one with at most 63 sectors per track
    /// (the limit of a BIOS), the most heads and the most sectors per track is stored.
    #[must_use]
    pub fn to_note(size: u64) -> Self {
        let (total, usual) = (size / SECTOR, Self::of_size(size));
        if usual.size() == size {
            return usual;
        }
        let order = |geometry: &Self| (geometry.cylinders, geometry.heads, geometry.sectors_per_track);
        let tracks: Vec<u8> = (1..=63).rev().chain(64..=255).collect();
        let (bios, large) = tracks.split_at(63);
        let shapes = [bios, large].into_iter().flat_map(|sectors| {
            (1..=16).rev().flat_map(move |heads| sectors.iter().map(move |sectors| (heads, *sectors)))
        });
        let mut exact = shapes.filter_map(|(heads, sectors_per_track)| {
            let track = u64::from(heads) * u64::from(sectors_per_track);
            let cylinders = u16::try_from(total / track).ok().filter(|cylinders| *cylinders > 0)?;
            total.is_multiple_of(track).then_some(Self { cylinders, heads, sectors_per_track })
        });
        exact.find(|geometry| order(geometry) <= order(&usual)).unwrap_or(usual)
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
    fn what_is_noted_is_exact_wherever_it_can_be() {
        let chs = |size: u64| {
            let geometry = Geometry::to_note(size);
            (geometry.cylinders, geometry.heads, geometry.sectors_per_track)
        };
        assert_eq!(chs(10 << 20), (32, 16, 40));
        assert_eq!(chs(64 << 20), (256, 16, 32));
        // With 32 sectors per track it would have more cylinders than the usual geometry.
        assert_eq!(chs(1 << 30), (2048, 16, 64));
        let usual = Geometry::of_size(64 << 20);
        assert_eq!(Geometry::to_note(usual.size()), usual);
        // Whole MiB below 31.5 GiB, from where on the usual geometry has 255 sectors per track.
        for size in (2..32_256).map(|size: u64| size << 20) {
            let geometry = Geometry::to_note(size);
            assert_eq!(geometry.size(), size, "{size}");
            assert!(geometry.cylinders <= Geometry::of_size(size).cylinders, "{size}");
        }
        // A prime number of sectors, and more than any geometry addresses.
        assert_eq!(Geometry::to_note(1_000_003 * SECTOR), Geometry::of_size(1_000_003 * SECTOR));
        assert_eq!(Geometry::to_note(200 << 30), Geometry::MAX);
    }

    #[test]
    fn never_more_than_the_size() {
        for size in (0..60).map(|power| 1u64 << power) {
            assert!(Geometry::of_size(size).size() <= size);
        }
    }
}
