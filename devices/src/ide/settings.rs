//! What the guest may change of a drive.

use super::spec::MAX_MULTIPLE;
use super::taskfile::Geometry;

/// The transfer mode that SET FEATURES chose. It changes nothing but what IDENTIFY says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferMode {
    Pio,
    Multiword(u8),
    Ultra(u8),
}

impl TransferMode {
    /// From the sector count register; `None`: a mode that the drive does not have.
    pub(super) fn parse(value: u8) -> Option<Self> {
        match (value >> 3, value & 7) {
            (0, 0 | 1) | (1, 0..=4) => Some(Self::Pio),
            (4, mode @ 0..=2) => Some(Self::Multiword(mode)),
            (8, mode @ 0..=2) => Some(Self::Ultra(mode)),
            _ => None,
        }
    }
}

/// What the guest may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) transfer: TransferMode,
    /// Writes may be cached: false on a disk with a volatile cache means that each is on stable storage when it ends.
    pub(super) write_cache: bool,
    pub(super) look_ahead: bool,
    pub(super) smart: bool,
    /// Sectors of a block of READ MULTIPLE and WRITE MULTIPLE; 0: these are aborted.
    pub(super) multiple: u8,
    pub(super) geometry: Geometry,
}

impl Settings {
    /// After power-on.
    pub(super) const fn new(volatile_cache: bool) -> Self {
        Self {
            transfer: TransferMode::Ultra(2),
            write_cache: volatile_cache,
            look_ahead: true,
            smart: true,
            multiple: MAX_MULTIPLE,
            geometry: Geometry::DEFAULT,
        }
    }

    /// After a software reset. The write cache stays as it is: a driver that has switched it off relies on it.
    pub(super) const fn software_reset(&mut self) {
        self.multiple = MAX_MULTIPLE;
        self.geometry = Geometry::DEFAULT;
    }
}
