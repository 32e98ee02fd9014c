//! Why the map does not enter a granule.
//!
//! A full map is no error: the caller flushes and tries again. A broken link is one ([`IoError::Damaged`]), and a panic
//! in builds with debug assertions.

use crate::error::IoError;

pub(super) const BROKEN: IoError = IoError::Damaged("the map has no memory where a link leads");

/// A granule cannot be entered before a flush: all units of the map are dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Why a granule is not entered.
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
    /// As the map's public functions report it.
    #[track_caller]
    pub(super) fn for_caller(self) -> Result<Full, IoError> {
        match self {
            Self::Full => Ok(Full),
            Self::Broken => {
                debug_assert!(false, "the map has no memory where a link leads");
                Err(BROKEN)
            }
        }
    }
}
