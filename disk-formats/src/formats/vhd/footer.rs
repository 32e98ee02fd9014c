//! The footer: found, checked, made. Dynamic and differencing disks have a copy of it at the start of the file.

use std::io;
use std::time::SystemTime;

use zerocopy::{FromBytes, IntoBytes};

use super::geometry::Geometry;
use super::spec::{
    COOKIE, CREATOR, FEATURE_RESERVED, FILE_FORMAT_VERSION, FOOTER_SIZE, Footer, MAX_FIXED_SIZE,
    MAX_SPARSE_SIZE, NO_DATA_OFFSET, OLD_FOOTER_SIZE, SECTOR, disk_type,
};
use super::stamp;
use crate::formats::field::BadField;
use crate::host::store::Store;

/// Version 0.1.
const CREATOR_VERSION: u32 = 0x0000_0001;
/// The creator host of nearly all VHDs; there is none for Linux.
const CREATOR_HOST: [u8; 4] = *b"Wi2k";

/// The kinds of VHD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subformat {
    /// Raw data, then the footer.
    Fixed,
    /// Blocks that are allocated when they are first written.
    Dynamic,
    /// As dynamic, over a parent.
    Differencing,
}

impl Subformat {
    /// `fixed`, `dynamic` or `differencing`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Dynamic => "dynamic",
            Self::Differencing => "differencing",
        }
    }
}

/// Where a valid footer was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// At the end of the file, this many bytes before it.
    Trailing(u64),
    /// At the start: the one at the end is missing or damaged.
    Copy,
}

/// A footer that was found, and what it says.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) footer: Footer,
    pub(super) source: Source,
    pub(super) subformat: Subformat,
    /// Virtual size in bytes.
    pub(super) size: u64,
}

/// Read the footer of a file: the one at its end, else the copy.
///
/// Errors of the host come first, then what is wrong with the better of the two.
pub(super) fn find(store: &dyn Store) -> io::Result<Result<Found, BadField>> {
    let len = store.len()?;
    let trailing = match trailing(store, len)? {
        Some((footer, data)) => match validate(&footer, data) {
            Ok((subformat, size)) => {
                return Ok(Ok(Found { footer, source: Source::Trailing(data), subformat, size }));
            }
            Err(bad) => bad,
        },
        None => BadField::new(
            "VHD footer",
            "missing",
            "\"conectix\" 512 or 511 bytes before the end of the file, or at its start",
        ),
    };
    let Some(footer) = copy(store, len)? else { return Ok(Err(trailing)) };
    Ok(match validate(&footer, len) {
        Ok((Subformat::Fixed, _)) => Err(trailing),
        Ok((subformat, size)) => Ok(Found { footer, source: Source::Copy, subformat, size }),
        Err(bad) if trailing.value == "missing" => Err(bad),
        Err(_) => Err(trailing),
    })
}

/// The footer at the end of a file and the bytes before it, as far as its cookie shows one.
pub(super) fn trailing(store: &dyn Store, len: u64) -> io::Result<Option<(Footer, u64)>> {
    for size in [FOOTER_SIZE, OLD_FOOTER_SIZE] {
        let Some(data) = len.checked_sub(size as u64) else { continue };
        let mut bytes = [0; FOOTER_SIZE];
        if let Some(stored) = bytes.get_mut(..size) {
            store.read_at(stored, data)?;
        }
        match Footer::read_from_bytes(&bytes) {
            Ok(footer) if footer.cookie == COOKIE => return Ok(Some((footer, data))),
            _ => {}
        }
    }
    Ok(None)
}

/// The copy at the start of a file, as far as its cookie shows one.
pub(super) fn copy(store: &dyn Store, len: u64) -> io::Result<Option<Footer>> {
    let mut bytes = [0; FOOTER_SIZE];
    if len < 2 * FOOTER_SIZE as u64 {
        return Ok(None);
    }
    store.read_at(&mut bytes, 0)?;
    Ok(Footer::read_from_bytes(&bytes).ok().filter(|footer| footer.cookie == COOKIE))
}

/// Write a footer where it is in its file, and have it on stable storage: the copy of disks that have one, and at `trailing`.
pub(super) fn rewrite(store: &dyn Store, footer: &Footer, trailing: Option<u64>) -> io::Result<()> {
    if footer.disk_type.get() != disk_type::FIXED {
        store.write_at(footer.as_bytes(), 0)?;
    }
    if let Some(at) = trailing {
        store.write_at(footer.as_bytes(), at)?;
    }
    store.sync()
}

/// Check every field of a footer that has `data` bytes before it in its file: the kind of disk and its virtual size.
pub(super) fn validate(footer: &Footer, data: u64) -> Result<(Subformat, u64), BadField> {
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
    let subformat = match footer.disk_type.get() {
        disk_type::FIXED => Subformat::Fixed,
        disk_type::DYNAMIC => Subformat::Dynamic,
        disk_type::DIFFERENCING => Subformat::Differencing,
        other => {
            let expected = "2 (fixed), 3 (dynamic) or 4 (differencing)";
            return Err(BadField::new("disk type", other.to_string(), expected));
        }
    };
    // The specification shows 32 bits of ones in a field of 64; zero says as little.
    let data_offset = footer.data_offset.get();
    let without = [NO_DATA_OFFSET, 0xFFFF_FFFF, 0].contains(&data_offset);
    match subformat {
        Subformat::Fixed if !without => {
            let expected = "all ones, as a fixed disk has no dynamic header";
            return Err(BadField::new("data offset", format!("{data_offset:#x}"), expected));
        }
        Subformat::Dynamic | Subformat::Differencing if without || !data_offset.is_multiple_of(SECTOR) => {
            let expected = "where the dynamic header is, a multiple of 512";
            return Err(BadField::new("data offset", format!("{data_offset:#x}"), expected));
        }
        _ => {}
    }
    let (field, size) = virtual_size(footer);
    check_size(field, size, subformat)?;
    if subformat == Subformat::Fixed && size > data {
        let expected =
            format!("at most the {data} bytes before the footer (is it a piece of a split image?)");
        return Err(BadField::new(field, format!("{size} bytes"), expected));
    }
    Ok((subformat, size))
}

/// Refuse sizes that the kind of disk cannot have.
pub(super) fn check_size(field: &'static str, size: u64, subformat: Subformat) -> Result<(), BadField> {
    let (most, name) = match subformat {
        Subformat::Fixed => (MAX_FIXED_SIZE, "16 TiB"),
        Subformat::Dynamic | Subformat::Differencing => (MAX_SPARSE_SIZE, "2040 GiB"),
    };
    if size == 0 || size > most || !size.is_multiple_of(SECTOR) {
        let expected = format!(
            "whole sectors of 512 bytes, at least one, at most {most} bytes ({name}, {})",
            subformat.as_str()
        );
        return Err(BadField::new(field, format!("{size} bytes"), expected));
    }
    Ok(())
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

/// The footer of a new disk; `data_offset` is where its dynamic header is.
pub(super) fn new(
    subformat: Subformat,
    size: u64,
    data_offset: u64,
    unique_id: [u8; 16],
    now: SystemTime,
) -> Footer {
    let geometry = Geometry::to_note(size);
    let mut footer = Footer {
        cookie: COOKIE,
        features: FEATURE_RESERVED.into(),
        file_format_version: FILE_FORMAT_VERSION.into(),
        data_offset: data_offset.into(),
        time_stamp: stamp::of_time(now).into(),
        creator_application: CREATOR,
        creator_version: CREATOR_VERSION.into(),
        creator_host_os: CREATOR_HOST,
        original_size: size.into(),
        current_size: size.into(),
        cylinders: geometry.cylinders.into(),
        heads: geometry.heads,
        sectors_per_track: geometry.sectors_per_track,
        disk_type: match subformat {
            Subformat::Fixed => disk_type::FIXED,
            Subformat::Dynamic => disk_type::DYNAMIC,
            Subformat::Differencing => disk_type::DIFFERENCING,
        }
        .into(),
        checksum: 0.into(),
        unique_id,
        saved_state: 0,
        reserved: [0; 427],
    };
    footer.seal();
    footer
}

/// Give a footer another virtual size. It becomes ours: readers derive the size of some creators' disks from the geometry.
pub(super) fn set_size(footer: &mut Footer, size: u64) {
    let geometry = Geometry::to_note(size);
    footer.current_size = size.into();
    footer.cylinders = geometry.cylinders.into();
    (footer.heads, footer.sectors_per_track) = (geometry.heads, geometry.sectors_per_track);
    footer.creator_application = CREATOR;
    footer.creator_version = CREATOR_VERSION.into();
}

#[cfg(test)]
mod tests;
