//! A fixed VHD: its footer is read and checked when it is opened; afterwards it is a run of a file.

use std::io;
use std::path::Path;
use std::sync::Arc;

use zerocopy::FromBytes;

use super::geometry::Geometry;
use super::spec::{
    COOKIE, FEATURE_RESERVED, FILE_FORMAT_VERSION, FOOTER_SIZE, Footer, NO_DATA_OFFSET, OLD_FOOTER_SIZE,
    SECTOR, disk_type,
};
use crate::backing::{Access, BackingFile};
use crate::raw::file_info;
use crate::{DiskInfo, Extents, Format, IoError, Kind, Mapping, OpenError, Place, SectorSize};

/// A fixed VHD as a format.
#[derive(Debug)]
pub struct FixedVhd {
    info: DiskInfo,
    footer: Footer,
    files: [Arc<BackingFile>; 1],
}

/// A field that may not be what it is: the words of [`OpenError::Invalid`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadField {
    pub(super) field: &'static str,
    pub(super) value: String,
    pub(super) expected: String,
}

impl BadField {
    fn new(field: &'static str, value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { field, value: value.into(), expected: expected.into() }
    }
}

/// The footer of a fixed disk, or of one that is well-formed and not supported.
#[derive(Debug)]
pub(super) enum Parsed {
    /// Its virtual size in bytes.
    Fixed(u64),
    /// `dynamic` or `differencing`.
    NotYet(&'static str),
}

impl FixedVhd {
    /// Open a fixed VHD.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names the footer's field, [`OpenError::Unsupported`] for dynamic and differencing disks and for
    /// direct I/O on storage with larger sectors; else as [`BackingFile::open`].
    pub fn open(path: &Path, access: Access) -> Result<Self, OpenError> {
        let file = BackingFile::open(path, access)?;
        let bad = |bad: BadField| OpenError::Invalid {
            path: path.into(),
            field: bad.field,
            value: bad.value,
            expected: bad.expected,
        };
        let unsupported = |reason| OpenError::Unsupported { path: path.into(), reason };
        let (footer, data) = find_footer(&file)
            .map_err(|source| OpenError::Os {
                path: path.into(),
                action: "cannot read the VHD footer",
                source,
            })?
            .ok_or_else(|| {
                bad(BadField::new(
                    "VHD footer",
                    "missing",
                    "\"conectix\" 512 or 511 bytes before the end of the file",
                ))
            })?;
        let capacity = match validate(&footer, data).map_err(bad)? {
            Parsed::Fixed(capacity) => capacity,
            Parsed::NotYet(kind) => {
                return Err(unsupported(format!("a {kind} VHD: only fixed VHDs are supported so far")));
            }
        };
        if let Some(direct) = file.direct().filter(|direct| u64::from(direct.offset) > SECTOR) {
            return Err(unsupported(format!(
                "direct I/O moves {} bytes at the least here, and a VHD has sectors of 512: open it with direct=off",
                direct.offset
            )));
        }
        let kind = Kind { format: "vhd", subformat: Some("fixed") };
        let info = file_info(&file, kind, capacity, SectorSize::B512);
        Ok(Self { info, footer, files: [Arc::new(file)] })
    }

    /// The footer.
    #[must_use]
    pub fn footer(&self) -> &Footer {
        &self.footer
    }
}

/// The footer at the end of a file and the bytes before it; `None` where there is no footer.
fn find_footer(file: &BackingFile) -> io::Result<Option<(Footer, u64)>> {
    for size in [FOOTER_SIZE, OLD_FOOTER_SIZE] {
        let Some(data) = file.size().checked_sub(size as u64) else { continue };
        let mut bytes = [0; FOOTER_SIZE];
        if let Some(stored) = bytes.get_mut(..size) {
            file.read_at(stored, data)?;
        }
        match Footer::read_from_bytes(&bytes) {
            Ok(footer) if footer.cookie == COOKIE => return Ok(Some((footer, data))),
            _ => {}
        }
    }
    Ok(None)
}

/// Whether a file ends with what could be a footer.
pub(crate) fn has_footer(file: &BackingFile) -> io::Result<bool> {
    Ok(find_footer(file)?.is_some())
}

/// Check every field of a footer that has `data` bytes before it in its file.
pub(super) fn validate(footer: &Footer, data: u64) -> Result<Parsed, BadField> {
    if footer.cookie != COOKIE {
        return Err(BadField::new("footer cookie", format!("{:02x?}", footer.cookie), "\"conectix\""));
    }
    let (stored, computed) = (footer.checksum.get(), footer.computed_checksum());
    if stored != computed {
        return Err(BadField::new("footer checksum", format!("{stored:#010x}"), format!("{computed:#010x}")));
    }
    let version = footer.file_format_version.get();
    if version != FILE_FORMAT_VERSION {
        return Err(BadField::new("file format version", format!("{version:#010x}"), "0x00010000"));
    }
    let features = footer.features.get();
    if features & FEATURE_RESERVED == 0 {
        return Err(BadField::new("features", format!("{features:#x}"), "bit 1 set"));
    }
    match footer.disk_type.get() {
        disk_type::FIXED => {}
        disk_type::DYNAMIC => return Ok(Parsed::NotYet("dynamic")),
        disk_type::DIFFERENCING => return Ok(Parsed::NotYet("differencing")),
        other => {
            return Err(BadField::new(
                "disk type",
                other.to_string(),
                "2 (fixed), 3 (dynamic) or 4 (differencing)",
            ));
        }
    }
    // The specification shows 32 bits of ones in a field of 64; zero says as little.
    let data_offset = footer.data_offset.get();
    if ![NO_DATA_OFFSET, 0xFFFF_FFFF, 0].contains(&data_offset) {
        let expected = "all ones, as a fixed disk has no dynamic header";
        return Err(BadField::new("data offset", format!("{data_offset:#x}"), expected));
    }
    let (field, size) = virtual_size(footer);
    if size == 0 || !size.is_multiple_of(SECTOR) {
        return Err(BadField::new(
            field,
            format!("{size} bytes"),
            "whole sectors of 512 bytes, at least one",
        ));
    }
    if size > data {
        let expected =
            format!("at most the {data} bytes before the footer (is it a piece of a split image?)");
        return Err(BadField::new(field, format!("{size} bytes"), expected));
    }
    Ok(Parsed::Fixed(size))
}

/// The virtual size and the field that says so. Virtual PC and QEMU mean the geometry, unless it is the largest, which
/// means nothing; everybody else means the current size.
fn virtual_size(footer: &Footer) -> (&'static str, u64) {
    let geometry = Geometry::of_footer(footer);
    let by_geometry = [*b"vpc ", *b"qemu"].contains(&footer.creator_application);
    match by_geometry && geometry != Geometry::MAX {
        true => ("disk geometry", geometry.size()),
        false => ("current size", footer.current_size.get()),
    }
}

impl Format for FixedVhd {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        extents.push(len, Place::File { file: 0, offset });
        Ok(Mapping::Ready)
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.map_read(offset, len, extents)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.files[0].discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.files[0].write_zeroes(offset, len, may_unmap)
    }
}

#[cfg(test)]
mod tests;
