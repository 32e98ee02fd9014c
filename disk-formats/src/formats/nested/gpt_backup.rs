//! Moves the backup GPT to where a smaller disk ends (UEFI 2.10, 5.3.2), so that the disk can be cut there.
//!
//! At each moment one of the two GPTs is valid: the new backup is on stable storage before the primary header refers to it, and the old
//! backup is zeroed after that.

use zerocopy::IntoBytes;

use super::table::{Disk, GptHeader, TableError, crc32, entries};
use crate::formats::field::BadField;
use crate::image::{Content, ImageError};

/// Move the backup GPT of a disk that is to have `size` bytes. Returns whether it was moved: not if the disk has no GPT, or a backup there.
///
/// # Errors
/// A damaged primary GPT; a partition or the GPT itself that does not fit; those of reading and writing.
pub(super) fn move_to(content: Content<'_>, size: u64) -> Result<bool, TableError> {
    let Some(sector) = content.gpt_sector().map_err(TableError::Image)? else { return Ok(false) };
    let disk = Disk::new(content, sector);
    let primary = entries(&disk, 1)?;
    let sectors = (size >> sector.shift()).min(disk.sectors);
    let old = primary.header.other.get();
    let entry_sectors = (primary.bytes.len() as u64).div_ceil(disk.sector);
    let moved = sectors.checked_sub(1 + entry_sectors).filter(|end| *end > primary.usable.start);
    let Some(end) = moved else {
        return Err(BadField::new("size", format!("{size} bytes"), "space for the GPT and its backup").into());
    };
    if old.saturating_add(1) == sectors {
        return Ok(false);
    }
    let last = (1..=primary.count()).filter_map(|number| Some((number, primary.get(number)?)));
    if let Some((number, entry)) = last.max_by_key(|(_, entry)| entry.last.get())
        && entry.last.get() >= end
    {
        let value = format!(
            "{number}, which ends at byte {}",
            entry.last.get().saturating_add(1).saturating_mul(disk.sector)
        );
        let expected = format!("one that ends by byte {}: make it smaller first", end * disk.sector);
        return Err(BadField::new("partition", value, expected).into());
    }
    let old_backup = (old > sectors).then(|| entries(&disk, old).ok()).flatten();

    let mut list = primary.bytes.clone();
    list.resize((entry_sectors * disk.sector) as usize, 0);
    disk.write(end, &list)?;
    let header = |own: u64, other: u64, entries: u64| {
        let header = GptHeader {
            own: own.into(),
            other: other.into(),
            entries: entries.into(),
            last_usable: (end - 1).into(),
            ..primary.header
        };
        sealed(&header, &primary.sealed, disk.sector)
    };
    disk.write(sectors - 1, &header(sectors - 1, 1, end))?;
    flush(content)?;
    disk.write(1, &header(1, sectors - 1, primary.header.entries.get()))?;
    flush(content)?;
    if let Some(backup) = old_backup {
        let first = backup.header.entries.get().max(sectors);
        let zeros = |from: u64, to: u64| match to.checked_sub(from) {
            Some(count) if count > 0 => disk.write(from, &vec![0; (count * disk.sector) as usize]),
            _ => Ok(()),
        };
        zeros(first, (backup.header.entries.get() + entry_sectors).min(disk.sectors))?;
        zeros(old, old + 1)?;
        flush(content)?;
    }
    Ok(true)
}

/// A header's sector: what follows the known fields stays, and the checksum is right.
fn sealed(header: &GptHeader, stored: &[u8], sector: u64) -> Vec<u8> {
    let mut bytes = stored.to_vec();
    let fields = GptHeader { crc: 0.into(), ..*header };
    if let Some(start) = bytes.get_mut(..size_of::<GptHeader>()) {
        start.copy_from_slice(fields.as_bytes());
    }
    let crc = crc32(&bytes);
    if let Some(field) = bytes.get_mut(16..20) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
    bytes.resize(sector as usize, 0);
    bytes
}

fn flush(content: Content<'_>) -> Result<(), TableError> {
    let flushed = content.format().flush();
    flushed.map_err(|source| TableError::Image(ImageError::Flush { path: content.path().into(), source }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use zerocopy::FromBytes;

    use super::*;
    use crate::disk::image::{Image, Shrink};
    use crate::formats::open::OpenOptions;
    use crate::formats::vhdx::{self, CreateOptions};
    use crate::formats::{flat::raw::Raw, format::Format, vhd};

    const MIB: u64 = 1 << 20;

    fn header(own: u64, other: u64, entries: u64, last: u64, list: &[u8]) -> Vec<u8> {
        let mut header = GptHeader::read_from_bytes(&[0; 92]).unwrap();
        header.signature = *b"EFI PART";
        (header.revision, header.size) = (0x0001_0000.into(), 92.into());
        (header.own, header.other, header.entries) = (own.into(), other.into(), entries.into());
        (header.first_usable, header.last_usable) = (34.into(), last.into());
        (header.count, header.entry_size, header.entries_crc) = (128.into(), 128.into(), crc32(list).into());
        sealed(&header, &[0; 92], 512)
    }

    /// A disk of 64 MiB with a GPT, whose partition is the MiB from 1 MiB on.
    fn fill(path: &Path) {
        let disk = OpenOptions::new(path).open_format().unwrap();
        let content = Content::new(&*disk);
        let mut list = vec![0; 128 * 128];
        list[..16].fill(7);
        list[32..40].copy_from_slice(&2048u64.to_le_bytes());
        list[40..48].copy_from_slice(&4095u64.to_le_bytes());
        let end = 64 * MIB / 512;
        let mut mbr = [0; 512];
        (mbr[450], mbr[510], mbr[511]) = (0xEE, 0x55, 0xAA);
        for (at, data) in [
            (0, &mbr[..]),
            (1, &header(1, end - 1, 2, end - 34, &list)),
            (2, &list),
            (end - 33, &list),
            (end - 1, &header(end - 1, 1, end - 33, end - 34, &list)),
        ] {
            content.write_at(data, at * 512).unwrap();
        }
        disk.flush().unwrap();
    }

    fn open(path: &Path) -> Arc<dyn Format> {
        OpenOptions { read_only: true, ..OpenOptions::new(path) }.open_format().unwrap()
    }

    #[test]
    fn a_disk_with_a_gpt_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.raw", "a.vhd", "a.vhdx", "fixed.vhd"] {
            let path = folder.path().join(name);
            match name {
                "a.raw" => Raw::create(&path, 64 * MIB).unwrap(),
                "a.vhd" => vhd::create_dynamic(&path, 64 * MIB, None).unwrap(),
                "a.vhdx" => vhdx::create_dynamic(&path, 64 * MIB, CreateOptions::default()).unwrap(),
                _ => vhd::create_fixed(&path, 64 * MIB).unwrap(),
            }
            fill(&path);
            let image = Image::open(&path).unwrap();
            let error = image.move_gpt_backup(MIB + 512).unwrap_err().to_string();
            assert!(
                error.contains("partition is 1, which ends at byte 2097152, expected one that ends by byte"),
                "{error}"
            );
            assert!(image.move_gpt_backup(20_000).unwrap_err().to_string().contains("space for the GPT"));
            for (size, moved) in [(32 * MIB, true), (32 * MIB, false), (32 * MIB - 1024, true)] {
                assert_eq!(image.move_gpt_backup(size).unwrap(), moved, "{name}");
                image.resize(size, Shrink::Allow).unwrap();
                let disk = open(&path);
                let disk = Disk::new(Content::new(&*disk), crate::disk::info::SectorSize::B512);
                let [primary, backup] = [1, size / 512 - 1].map(|at| entries(&disk, at).ok().unwrap());
                assert_eq!(primary.header.other.get(), size / 512 - 1);
                assert_eq!((backup.header.other.get(), backup.usable.end), (1, size / 512 - 33));
                assert_eq!(primary.get(1).unwrap().last.get(), 4095);
                assert!(primary.bytes == backup.bytes);
            }
        }
        let none = folder.path().join("none");
        Raw::create(&none, MIB).unwrap();
        assert!(!Image::open(&none).unwrap().move_gpt_backup(MIB / 2).unwrap());
    }
}
