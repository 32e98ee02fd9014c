//! The footer: finding, checking and creating it. Dynamic and differencing disks have a copy at the start of the file.

use std::io;
use std::time::SystemTime;

use zerocopy::{FromBytes, IntoBytes};

use super::geometry::Geometry;
use super::spec::{
    COOKIE, CREATOR, FEATURE_RESERVED, FILE_FORMAT_VERSION, FOOTER_SIZE, Footer, MAX_FIXED_SIZE,
    MAX_SPARSE_SIZE, NO_DATA_OFFSET, OLD_FOOTER_SIZE, SECTOR, disk_type,
};
use super::stamp;
use crate::contract::error::{BadField, ReadError};
use crate::host::store::{Store, last_nonzero};

/// Version 0.1.
const CREATOR_VERSION: u32 = 0x0000_0001;
/// Hyper-V as the creator, in Windows 10 and later.
const HYPER_V: [u8; 4] = *b"win ";
const HYPER_V_VERSION: u32 = 0x000A_0000;
/// The creator host (Windows) that nearly all VHDs have; the specification has none for Linux.
const CREATOR_HOST: [u8; 4] = *b"Wi2k";

/// The kinds of VHD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subformat {
    /// Raw data, then the footer.
    Fixed,
    /// Blocks that are allocated at their first write.
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
    /// At the end of the file; the offset of the footer.
    Trailing(u64),
    /// At the start of the file: the footer at the end is missing or damaged.
    Copy,
    /// Of a fixed disk; the offset of the footer. Behind it the file has only zeros: a power failure kept the size that
    /// a resize gave to the file, and not the footer at the new end. The file is to be cut behind this footer.
    Inside(u64),
}

impl Source {
    /// The offset of the footer behind the data, if there is one.
    pub(super) const fn trailing(self) -> Option<u64> {
        match self {
            Self::Trailing(at) | Self::Inside(at) => Some(at),
            Self::Copy => None,
        }
    }
}

/// A valid footer, and its properties.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) footer: Footer,
    pub(super) source: Source,
    pub(super) subformat: Subformat,
    /// Virtual size in bytes.
    pub(super) size: u64,
}

/// Read the footer of a file: the one at the end, or else the copy at the start.
///
/// # Errors
/// The host's, or the defect of the more useful of the two footers.
pub(super) fn find(store: &dyn Store) -> Result<Found, ReadError> {
    let len = store.len()?;
    let trailing = match trailing(store, len)? {
        Some((footer, data)) => match validate(&footer, data) {
            Ok((subformat, size)) => {
                return Ok(Found { footer, source: Source::Trailing(data), subformat, size });
            }
            Err(bad) => bad,
        },
        None => BadField::new(
            "VHD footer",
            "missing",
            "\"conectix\" 512 or 511 bytes before the end of the file, or at its start",
        ),
    };
    let Some(footer) = copy(store, len)? else { return Ok(inside(store, len)?.ok_or(trailing)?) };
    Ok(match validate(&footer, len) {
        Ok((Subformat::Fixed, _)) => inside(store, len)?.ok_or(trailing),
        Ok((subformat, size)) => Ok(Found { footer, source: Source::Copy, subformat, size }),
        Err(bad) if trailing.value == "missing" => Err(bad),
        Err(_) => Err(trailing),
    }?)
}

/// Bytes of stored zeros that are read in search of a footer before them.
const MOST_ZEROS: u64 = 64 << 20;

/// The footer of a fixed disk that only zeros follow: see [`Source::Inside`].
fn inside(store: &dyn Store, len: u64) -> io::Result<Option<Found>> {
    let mut last = [0; FOOTER_SIZE];
    let Some(at) = len.checked_sub(2 * FOOTER_SIZE as u64) else { return Ok(None) };
    store.read_at(&mut last, at + FOOTER_SIZE as u64)?;
    if last != [0; FOOTER_SIZE] {
        return Ok(None);
    }
    // From here on the host stores nothing.
    let (mut from, mut stored) = (0, len);
    while from < stored {
        let middle = from + (stored - from) / 2;
        match store.next_data(middle)? {
            u64::MAX => stored = middle,
            data => from = data.max(middle) + 1,
        }
    }
    let stored = stored.next_multiple_of(SECTOR).min(len);
    let Some(at) = last_nonzero(store, stored.saturating_sub(MOST_ZEROS), stored)? else { return Ok(None) };
    let mut bytes = [0; FOOTER_SIZE];
    store.read_at(&mut bytes, at)?;
    let Ok(footer) = Footer::read_from_bytes(&bytes) else { return Ok(None) };
    Ok(match validate(&footer, at) {
        Ok((Subformat::Fixed, size)) => {
            Some(Found { footer, source: Source::Inside(at), subformat: Subformat::Fixed, size })
        }
        _ => None,
    })
}

/// Whether the file has the footer of a fixed disk, and only zeros behind it: see [`Source::Inside`].
pub(crate) fn is_inside(store: &dyn Store) -> io::Result<bool> {
    Ok(inside(store, store.len()?)?.is_some())
}

impl Found {
    /// Cut the zeros behind the footer of a fixed disk: see [`Source::Inside`]. On stable storage on success.
    pub(super) fn cut_zeros(&mut self, store: &dyn Store) -> io::Result<()> {
        if let Source::Inside(at) = self.source {
            store.set_size(at + FOOTER_SIZE as u64)?;
            store.sync()?;
            self.source = Source::Trailing(at);
        }
        Ok(())
    }
}

/// The footer at the end of a file and its offset, if its cookie is valid.
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

/// The copy at the start of a file, if its cookie is valid.
pub(super) fn copy(store: &dyn Store, len: u64) -> io::Result<Option<Footer>> {
    let mut bytes = [0; FOOTER_SIZE];
    if len < 2 * FOOTER_SIZE as u64 {
        return Ok(None);
    }
    store.read_at(&mut bytes, 0)?;
    Ok(Footer::read_from_bytes(&bytes).ok().filter(|footer| footer.cookie == COOKIE))
}

/// Write the footer at `trailing` and, for disks that have one, the copy. On success both are on stable storage.
pub(super) fn rewrite(store: &dyn Store, footer: &Footer, trailing: Option<u64>) -> io::Result<()> {
    if footer.disk_type.get() != disk_type::FIXED {
        store.write_at(footer.as_bytes(), 0)?;
    }
    if let Some(at) = trailing {
        store.write_at(footer.as_bytes(), at)?;
    }
    store.sync()
}

/// Zero a footer at `at` that lies in a block: another one is on stable storage at `end`, behind the block, or behind that.
pub(super) fn erase(store: &dyn Store, at: u64, end: u64) -> io::Result<()> {
    let zeros = [0; FOOTER_SIZE];
    let part = end.saturating_sub(at).min(FOOTER_SIZE as u64) as usize;
    store.write_at(zeros.get(..part).unwrap_or_default(), at)?;
    store.sync()
}

/// Check all fields of a footer that is at offset `data` of its file. Returns the kind of disk and the virtual size.
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
    // The specification shows 32 bits of ones in a 64-bit field. Some programs write zero.
    let data_offset = footer.data_offset.get();
    let without = [NO_DATA_OFFSET, 0xFFFF_FFFF, 0].contains(&data_offset);
    match subformat {
        Subformat::Fixed if !without => {
            let expected = "all ones, as a fixed disk has no dynamic header";
            return Err(BadField::new("data offset", format!("{data_offset:#x}"), expected));
        }
        Subformat::Dynamic | Subformat::Differencing if without || !data_offset.is_multiple_of(SECTOR) => {
            let expected = "the offset of the dynamic header, a multiple of 512";
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

/// Refuse sizes that the kind of disk does not support.
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

/// The virtual size, and the name of the field that it is from. For disks by Virtual PC and QEMU the geometry counts,
/// unless it is the largest geometry, which has no meaning. For all other creators the current size counts.
fn virtual_size(footer: &Footer) -> (&'static str, u64) {
    let geometry = Geometry::of_footer(footer);
    let by_geometry = [*b"vpc ", *b"qemu"].contains(&footer.creator_application);
    match by_geometry && geometry != Geometry::MAX {
        true => ("disk geometry", geometry.size()),
        false => ("current size", footer.current_size.get()),
    }
}

/// The footer of a new disk. `data_offset` is the offset of its dynamic header.
pub(super) fn new(
    subformat: Subformat,
    size: u64,
    data_offset: u64,
    unique_id: [u8; 16],
    now: SystemTime,
) -> Footer {
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
        current_size: 0.into(),
        cylinders: 0.into(),
        heads: 0,
        sectors_per_track: 0,
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
    set_size(&mut footer, size);
    footer.seal();
    footer
}

/// Set the virtual size, and the geometry and creator from which every reader derives this size: an exact geometry, or
/// what Hyper-V writes. Readers take the size of Hyper-V's disks from the current size, as of disks with the largest
/// geometry.
pub(super) fn set_size(footer: &mut Footer, size: u64) {
    let geometry = Geometry::to_note(size);
    footer.current_size = size.into();
    footer.cylinders = geometry.cylinders.into();
    (footer.heads, footer.sectors_per_track) = (geometry.heads, geometry.sectors_per_track);
    match geometry.size() == size || geometry == Geometry::MAX {
        true => (footer.creator_application, footer.creator_version) = (CREATOR, CREATOR_VERSION.into()),
        false => set_hyper_v(footer),
    }
}

/// Make Hyper-V the creator. Every reader takes the size from the current size, and XenServer looks for no batmap.
pub(super) fn set_hyper_v(footer: &mut Footer) {
    (footer.creator_application, footer.creator_version) = (HYPER_V, HYPER_V_VERSION.into());
}

#[cfg(test)]
mod tests;
