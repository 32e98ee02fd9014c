//! Making fixed VHDs.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use zerocopy::IntoBytes;

use super::geometry::Geometry;
use super::spec::{
    COOKIE, EPOCH, FEATURE_RESERVED, FILE_FORMAT_VERSION, FOOTER_SIZE, Footer, MAX_SIZE, NO_DATA_OFFSET,
    SECTOR, disk_type,
};
use crate::{BackingFile, OpenError};

/// Our name as a creator. Readers take the size of unknown creators from the current size, which is exact.
const CREATOR: [u8; 4] = *b"pdsk";
/// Version 0.1.
const CREATOR_VERSION: u32 = 0x0000_0001;
/// The creator host of nearly all VHDs; there is none for Linux.
const CREATOR_HOST: [u8; 4] = *b"Wi2k";

/// Create a fixed VHD of `size` bytes that reads as zeros, with its space allocated where the file system can. It must
/// not exist.
///
/// # Errors
/// [`OpenError::Invalid`] for a size that is not whole sectors or above 2,040 GiB, [`OpenError::Os`] where the host
/// refuses; nothing is left behind then.
pub fn create_fixed(path: &Path, size: u64) -> Result<(), OpenError> {
    if size == 0 || size > MAX_SIZE || !size.is_multiple_of(SECTOR) {
        return Err(OpenError::Invalid {
            path: path.into(),
            field: "size",
            value: format!("{size} bytes"),
            expected: format!(
                "whole sectors of 512 bytes, at least one, at most {MAX_SIZE} bytes (2040 GiB)"
            ),
        });
    }
    let os = |action| move |source| OpenError::Os { path: path.into(), action, source };
    let file = BackingFile::create(path, 0)?;
    let written = write(&file, size).map_err(os("cannot write the image"));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn write(file: &BackingFile, size: u64) -> io::Result<()> {
    match fallocate(file.file(), FallocateFlags::empty(), 0, size + FOOTER_SIZE as u64) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.file().set_len(size + FOOTER_SIZE as u64)?,
        Err(errno) => return Err(errno.into()),
    }
    file.write_at(fixed_footer(size, unique_id()?, SystemTime::now()).as_bytes(), size)?;
    file.file().sync_all()
}

/// The footer of a new fixed disk.
pub(super) fn fixed_footer(size: u64, unique_id: [u8; 16], now: SystemTime) -> Footer {
    let geometry = Geometry::of_size(size);
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()).saturating_sub(EPOCH);
    let mut footer = Footer {
        cookie: COOKIE,
        features: FEATURE_RESERVED.into(),
        file_format_version: FILE_FORMAT_VERSION.into(),
        data_offset: NO_DATA_OFFSET.into(),
        time_stamp: u32::try_from(seconds).unwrap_or(u32::MAX).into(),
        creator_application: CREATOR,
        creator_version: CREATOR_VERSION.into(),
        creator_host_os: CREATOR_HOST,
        original_size: size.into(),
        current_size: size.into(),
        cylinders: geometry.cylinders.into(),
        heads: geometry.heads,
        sectors_per_track: geometry.sectors_per_track,
        disk_type: disk_type::FIXED.into(),
        checksum: 0.into(),
        unique_id,
        saved_state: 0,
        reserved: [0; 427],
    };
    footer.seal();
    footer
}

/// A random identity: RFC 9562, version 4.
fn unique_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    let got = getrandom(&mut id, GetRandomFlags::empty())?;
    if got != id.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    id[6] = id[6] & 0x0F | 0x40;
    id[8] = id[8] & 0x3F | 0x80;
    Ok(id)
}
