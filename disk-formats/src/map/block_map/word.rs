//! Tags of the map's words.

use crate::contract::error::IoError;

/// Sectors are 512 bytes.
pub(super) const SECTOR_SHIFT: u32 = 9;

pub(super) const UNKNOWN: u64 = 0;
pub(super) const ZEROS: u64 = 1;
pub(super) const WHOLE: u64 = 2;
pub(super) const MIXED: u64 = 3;
/// Mask of the tag.
pub(super) const TAG: u64 = 3;

pub(super) const NO_BASE: IoError = IoError::Damaged("the map names a place that does not exist");
