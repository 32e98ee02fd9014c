//! Format signatures in the first and last bytes of a file. Compiled for all builds: an image whose format is not part
//! of the build must not be opened as a raw disk.

use std::io;

use crate::host::store::Store;

/// First eight bytes of a VHD's footer (Virtual Hard Disk Image Format Specification 1.0, "Hard Disk Footer Format").
pub(crate) const VHD_COOKIE: [u8; 8] = *b"conectix";
/// Size of that footer in bytes.
pub(crate) const VHD_FOOTER_SIZE: usize = 512;
/// Size of a footer that was written before Virtual PC 2004: it lacks the last byte, which is zero.
pub(crate) const OLD_VHD_FOOTER_SIZE: usize = 511;
/// First eight bytes of a VHDX (\[MS-VHDX\] 2.2.1).
pub(crate) const VHDX_IDENTIFIER: [u8; 8] = *b"vhdxfile";

/// Whether the file has a VHD cookie at its start or in its last sector.
pub(crate) fn has_footer(store: &dyn Store) -> io::Result<bool> {
    let copy = store.len()? >= 2 * VHD_FOOTER_SIZE as u64 && begins(store, 0, VHD_COOKIE)?;
    Ok(copy || has_trailing_footer(store)?)
}

/// Whether the file ends with something that has a VHD cookie.
pub(crate) fn has_trailing_footer(store: &dyn Store) -> io::Result<bool> {
    let len = store.len()?;
    for size in [VHD_FOOTER_SIZE, OLD_VHD_FOOTER_SIZE] {
        if let Some(at) = len.checked_sub(size as u64)
            && begins(store, at, VHD_COOKIE)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the file begins with the VHDX identifier.
pub(crate) fn has_identifier(store: &dyn Store) -> io::Result<bool> {
    Ok(store.len()? >= VHDX_IDENTIFIER.len() as u64 && begins(store, 0, VHDX_IDENTIFIER)?)
}

/// Whether the bytes at `offset` are `wanted`. The caller has checked that the file is long enough.
fn begins(store: &dyn Store, offset: u64, wanted: [u8; 8]) -> io::Result<bool> {
    let mut found = [0; 8];
    store.read_at(&mut found, offset)?;
    Ok(found == wanted)
}
