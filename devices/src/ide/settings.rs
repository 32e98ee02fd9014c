//! The drive's settings that the guest can change.

use super::spec::MAX_MULTIPLE;
use super::taskfile::Geometry;

/// The transfer mode that SET FEATURES has selected. It only affects IDENTIFY DEVICE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferMode {
    Pio,
    Multiword(u8),
    Ultra(u8),
}

impl TransferMode {
    /// Parse the sector count register; `None`: not supported.
    pub(super) fn parse(value: u8) -> Option<Self> {
        match (value >> 3, value & 7) {
            (0, 0 | 1) | (1, 0..=4) => Some(Self::Pio),
            (4, mode @ 0..=2) => Some(Self::Multiword(mode)),
            (8, mode @ 0..=2) => Some(Self::Ultra(mode)),
            _ => None,
        }
    }
}

/// Settings of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) transfer: TransferMode,
    /// Writes may be cached. If not, a write completes when it is on stable storage.
    pub(super) write_cache: bool,
    pub(super) look_ahead: bool,
    pub(super) smart: bool,
    /// Sectors of a block of READ MULTIPLE and WRITE MULTIPLE; 0: these commands are aborted.
    pub(super) multiple: u8,
    pub(super) geometry: Geometry,
}

impl Settings {
    /// Power-on settings.
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

    /// Apply a software reset. It leaves the write cache as it is: a driver that has disabled the cache sends no flushes.
    pub(super) const fn software_reset(&mut self) {
        self.multiple = MAX_MULTIPLE;
        self.geometry = Geometry::DEFAULT;
    }
}
