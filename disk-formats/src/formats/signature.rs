//! Format signatures in the first and last bytes of a file. Compiled for all builds: an image whose format is not part
//! of the build must not be opened as a raw disk.
//!
//! A file that is neither VHD nor VHDX is a raw disk only if it has none of the signatures of [`Foreign`]: the images of
//! other programs, compressed files, and what a failed download leaves.

use std::io;

use crate::contract::info::SectorSize;
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

/// The size of the sectors that a GPT counts in: its header is in sector 1, and says so (UEFI 2.10, 5.3.2). `len`: bytes of
/// the disk.
pub(crate) fn gpt_sector<E>(
    len: u64,
    mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>,
) -> Result<Option<SectorSize>, E> {
    for sector in [SectorSize::B512, SectorSize::B4096] {
        let at = u64::from(sector.bytes());
        let mut header = [0; 32];
        if len >= 2 * at {
            read(&mut header, at)?;
        }
        if header.starts_with(b"EFI PART") && header[24..] == 1u64.to_le_bytes() {
            return Ok(Some(sector));
        }
    }
    Ok(None)
}

/// A kind of file that is no raw disk, although it is neither VHD nor VHDX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// What the file is, with its article.
    pub(crate) name: &'static str,
    /// What makes a disk of it.
    pub(crate) remedy: &'static str,
}

const IMAGE: &str = "convert it first (qemu-img convert -O raw)";
const PARTS: &str = "convert the whole image first with the program that made it";
const COMPRESSED: &str = "decompress it first";
const ARCHIVE: &str = "extract the disk first";
const POINTER: &str = "download the file that it stands for";
const TEXT: &str = "a download may have failed";

/// Name, remedy, offset of the signature, signature. Sources: docs/interop of QEMU (qcow2, qed), its block drivers, the
/// VMDK 5.0 and DMG descriptions, RFC 1952, RFC 8878, APPNOTE 6.3 and the formats' own headers.
const SIGNATURES: &[(&str, &str, usize, &[u8])] = &[
    ("a qcow2 image", IMAGE, 0, b"QFI\xfb"),
    ("a QED image", IMAGE, 0, b"QED\0"),
    ("a VMDK image", IMAGE, 0, b"KDMV"),
    ("a VMDK image", IMAGE, 0, b"COWD"),
    ("a VMDK image", IMAGE, 0, b"\xbe\xba\xfe\xca\0\0\0\0"),
    ("a VDI image", IMAGE, 64, b"\x7f\x10\xda\xbe"),
    ("a Parallels image", IMAGE, 0, b"WithoutFreeSpace"),
    ("a Parallels image", IMAGE, 0, b"WithouFreSpacExt"),
    ("a Bochs image", IMAGE, 0, b"Bochs Virtual HD Image"),
    ("a cloop image", IMAGE, 0, b"#!/bin/sh\n#V2.0 Format\n"),
    ("a copy-on-write file of User Mode Linux", PARTS, 0, b"OOOM"),
    ("a sparse image of Android", "convert it first (simg2img)", 0, b"\x3a\xff\x26\xed"),
    ("a sparse image of macOS", PARTS, 0, b"sprs"),
    ("a sparse image of macOS", PARTS, 0, b"shdw"),
    ("an Expert Witness image", PARTS, 0, b"EVF\x09\x0d\x0a\xff\0"),
    ("an Expert Witness image", PARTS, 0, b"EVF2\x0d\x0a\x81\0"),
    ("a Partclone image", PARTS, 0, b"partclone-image"),
    ("a WIM image", ARCHIVE, 0, b"MSWIM\0\0\0"),
    ("a VMA archive", ARCHIVE, 0, b"VMA\0\0\0\0\x01"),
    ("gzip-compressed", COMPRESSED, 0, b"\x1f\x8b\x08"),
    ("xz-compressed", COMPRESSED, 0, b"\xfd7zXZ\0"),
    ("zstd-compressed", COMPRESSED, 0, b"\x28\xb5\x2f\xfd"),
    ("bzip2-compressed", COMPRESSED, 4, b"1AY&SY"),
    ("lz4-compressed", COMPRESSED, 0, b"\x04\x22\x4d\x18"),
    ("lzip-compressed", COMPRESSED, 0, b"LZIP\x01"),
    ("lzop-compressed", COMPRESSED, 0, b"\x89LZO\0\r\n\x1a\n"),
    ("a zip archive", ARCHIVE, 0, b"PK\x03\x04"),
    ("a zip archive", ARCHIVE, 0, b"PK\x05\x06"),
    ("a 7z archive", ARCHIVE, 0, b"7z\xbc\xaf\x27\x1c"),
    ("a RAR archive", ARCHIVE, 0, b"Rar!\x1a\x07"),
    ("a tar archive (as an OVA)", ARCHIVE, 257, b"ustar"),
    ("a Git LFS pointer", POINTER, 0, b"version https://git-lfs"),
    ("a git-annex pointer", POINTER, 0, b"/annex/objects/"),
];

/// Name, remedy, and text that the file begins with in any case, after white space and a byte order mark.
const TEXTS: &[(&str, &str, &[u8])] = &[
    ("a VMDK descriptor", IMAGE, b"# Disk DescriptorFile"),
    ("an HTML page", TEXT, b"<!DOCTYPE html"),
    ("an HTML page", TEXT, b"<html"),
    ("an XML document", TEXT, b"<?xml"),
];

/// First bytes of a DMG's trailer, which fills the last 512 bytes of the file.
const DMG_TRAILER: [u8; 8] = *b"koly\0\0\0\x04";

impl Foreign {
    /// What the file is, if it has a signature.
    pub(crate) fn find(store: &dyn Store) -> io::Result<Option<Self>> {
        let len = store.len()?;
        let mut head = [0; 512];
        let head = &mut head[..len.min(512) as usize];
        store.read_at(head, 0)?;
        let has = |at: usize, wanted: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(wanted));
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
        let begins_with =
            |wanted: &[u8]| text.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted));
        let signed = SIGNATURES.iter().find(|(_, _, at, wanted)| has(*at, wanted));
        let signed = signed.map(|&(name, remedy, ..)| Self { name, remedy });
        let written = || TEXTS.iter().find(|(_, _, wanted)| begins_with(wanted));
        let found = signed.or_else(|| written().map(|&(name, remedy, _)| Self { name, remedy }));
        let Some(trailer) = len.checked_sub(512).filter(|_| found.is_none()) else { return Ok(found) };
        let dmg = begins(store, trailer, DMG_TRAILER)?;
        Ok(dmg.then_some(Self { name: "a DMG image", remedy: "convert it first (dmg2img)" }))
    }
}

/// Whether the bytes at `offset` are `wanted`. The caller has checked that the file is long enough.
fn begins(store: &dyn Store, offset: u64, wanted: [u8; 8]) -> io::Result<bool> {
    let mut found = [0; 8];
    store.read_at(&mut found, offset)?;
    Ok(found == wanted)
}
