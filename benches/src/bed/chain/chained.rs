//! The formats with chains.

use std::path::Path;
use std::sync::Arc;

use paradisk_disk_formats::{Access, Format, OpenError, vhd, vhdx};

/// Bytes of a block of a differencing VHD: the smaller of the two common sizes, because there may be a thousand images.
const VHD_BLOCK: u32 = 512 << 10;
/// Bytes of a block of a differencing VHDX: the smallest size.
const VHDX_BLOCK: u32 = 1 << 20;

/// A format with chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Chained {
    Vhd,
    Vhdx,
}

impl Chained {
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Vhd => "vhd",
            Self::Vhdx => "vhdx",
        }
    }

    pub(super) fn base(self, path: &Path, capacity: u64) -> Result<(), OpenError> {
        match self {
            Self::Vhd => vhd::create_dynamic(path, capacity, None),
            Self::Vhdx => vhdx::create_dynamic(path, capacity, vhdx::CreateOptions::default()),
        }
    }

    pub(super) fn child(self, path: &Path, parent: &Path) -> Result<(), OpenError> {
        match self {
            Self::Vhd => vhd::create_differencing(path, parent, Some(VHD_BLOCK)),
            Self::Vhdx => vhdx::create_differencing(path, parent, Some(VHDX_BLOCK)),
        }
    }

    pub(super) fn open_alone(self, path: &Path, access: Access) -> Result<Arc<dyn Format>, OpenError> {
        match self {
            Self::Vhd => vhd::open_alone(path, access),
            Self::Vhdx => vhdx::open_alone(path, access),
        }
    }
}
