//! Reasons why the map cannot store a granule.
//!
//! A full map is not an error: the caller flushes and tries again. A broken link is an error ([`IoError::Damaged`]),
//! and panics in builds with debug assertions.

use crate::contract::error::IoError;

pub(super) const BROKEN: IoError = IoError::Damaged("the block map has a link to a unit that does not exist");

/// The granule cannot be stored before a flush: all units of the map are dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// The reason why a granule is not stored.
pub(super) enum Refused {
    Full,
    /// An invariant of the map is broken.
    Broken,
}

impl From<Full> for Refused {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

impl Refused {
    /// The result for the callers of the map.
    #[track_caller]
    pub(super) fn for_caller(self) -> Result<Full, IoError> {
        match self {
            Self::Full => Ok(Full),
            Self::Broken => {
                debug_assert!(false, "the block map has a link to a unit that does not exist");
                Err(BROKEN)
            }
        }
    }
}
