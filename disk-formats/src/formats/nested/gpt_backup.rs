//! Moves the backup GPT to where a smaller disk ends (UEFI 2.10, 5.3.2), so that the disk can be cut there.
//!
//! The primary GPT is valid at each moment, and so is a backup, at the old place or the new one: the new entries are on stable storage before
//! the new header, the new header before the primary one refers to it, and the old backup is zeroed after that, its header last. If the new
//! backup would overlap the old one, its entries lie further below. Only where a partition leaves no space for that, the old backup
//! is overwritten, and the primary GPT alone is valid meanwhile.
//!
//! A move that was interrupted is completed by the next one: a header at the end of the disk that the primary GPT no longer refers to is zeroed,
//! too. At the end the protective MBR gets the new size (5.2.3).

use std::ops::Range;

use zerocopy::IntoBytes;

use super::table::{
    Disk, Entries, GptHeader, TableError, crc32, entries, header_at, mbr_partitions, protective_mbr,
};
use crate::contract::error::BadField;
use crate::formats::copy::content::{Content, ImageError};

/// A move of the backup GPT.
pub(super) struct Move<'a> {
    content: Content<'a>,
    disk: Disk<'a>,
    primary: Entries,
    /// Sectors of the disk after it was cut.
    sectors: u64,
    /// The first sector of the new backup's entries; `None`: the backup is in its place.
    list: Option<u64>,
    /// Sectors of old backups: entries, header.
    old: Vec<[Range<u64>; 2]>,
    /// The first sector of the disk with the new size.
    mbr: Option<Vec<u8>>,
}

impl<'a> Move<'a> {
    /// How the backup GPT of a disk that is to have `size` bytes is moved; `None` if the disk has no GPT, or nothing is to be changed.
    ///
    /// # Errors
    /// A damaged primary GPT; a partition or the GPT itself that does not fit; those of reading.
    pub(super) fn plan(content: Content<'a>, size: u64) -> Result<Option<Self>, TableError> {
        let Some(sector) = content.gpt_sector().map_err(TableError::Image)? else { return Ok(None) };
        let disk = Disk::new(content, sector);
        let primary = entries(&disk, 1)?;
        let sectors = (size >> sector.shift()).min(disk.sectors);
        let len = (primary.bytes.len() as u64).div_ceil(disk.sector);
        let start = primary.usable.start;
        let Some(end) = sectors.checked_sub(1 + len).filter(|end| *end > start) else {
            let expected = "space for the GPT and its backup";
            return Err(BadField::new("size", format!("{size} bytes"), expected).into());
        };
        let partitions = (1..=primary.count()).filter_map(|number| Some((number, primary.get(number)?)));
        let partitions = partitions.map(|(number, entry)| (number, entry.last.get().saturating_add(1), ""));
        // In a hybrid MBR, some may have no entry in the GPT.
        let hybrid = mbr_partitions(&disk)?.into_iter().map(|(number, end)| (number, end, " of the MBR"));
        let last = partitions.chain(hybrid).max_by_key(|(_, end, _)| *end);
        let used = last.map_or(start, |(_, end, _)| end);
        let backup = primary.header.other.get();
        let in_place = backup.checked_add(1) == Some(sectors);
        if let Some((number, _, table)) = last.filter(|_| used > end && !in_place) {
            let value = format!("{number}{table}, which ends at byte {}", used.saturating_mul(disk.sector));
            let expected = format!("one that ends by byte {}: make it smaller first", end * disk.sector);
            return Err(BadField::new("partition", value, expected).into());
        }
        let mut places = vec![backup, disk.sectors - 1];
        places.dedup();
        let mut old = Vec::new();
        for place in places {
            old.extend(old_backup(&disk, &primary, place, len)?);
        }
        // An old backup that the new one would overlap.
        let hit = old.iter().filter(|[list, header]| list.start < sectors && end < header.end);
        let below = hit.map(|[list, _]| list.start).min();
        let apart =
            below.unwrap_or(sectors - 1).checked_sub(len).filter(|list| *list >= used && *list > start);
        let list = (!in_place).then(|| apart.unwrap_or(end).min(end));
        // What lies below the end of the smaller disk is part of the new backup, or stays.
        for [list, header] in &mut old {
            list.start = list.start.max(sectors).min(list.end);
            header.start = header.start.max(sectors).min(header.end);
        }
        old.retain(|[_, header]| !header.is_empty());
        let mbr = protective_mbr(&disk, sectors)?;
        let plan = Self { content, disk, primary, sectors, list, old, mbr };
        Ok(Some(plan).filter(|plan| plan.list.is_some() || !plan.old.is_empty() || plan.mbr.is_some()))
    }

    /// The ranges of the disk that the move zeroes, in bytes.
    pub(super) fn zeroed(&self) -> Vec<Range<u64>> {
        let bytes = |run: &Range<u64>| run.start * self.disk.sector..run.end * self.disk.sector;
        self.old.iter().flatten().map(bytes).collect()
    }

    /// Move the backup.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn run(self) -> Result<(), TableError> {
        let (disk, primary, last) = (&self.disk, &self.primary, self.sectors - 1);
        if let Some(at) = self.list {
            let mut list = primary.bytes.clone();
            list.resize(list.len().next_multiple_of(disk.sector as usize), 0);
            disk.write(at, &list)?;
            self.flush()?;
            let header = |own: u64, other: u64, entries: u64| {
                let (own, other, entries) = (own.into(), other.into(), entries.into());
                let header =
                    GptHeader { own, other, entries, last_usable: (at - 1).into(), ..primary.header };
                sealed(&header, &primary.sealed, disk.sector)
            };
            disk.write(last, &header(last, 1, at))?;
            self.flush()?;
            disk.write(1, &header(1, last, primary.header.entries.get()))?;
            self.flush()?;
        }
        if let Some(mbr) = &self.mbr {
            disk.write(0, mbr)?;
        }
        for part in [0, 1] {
            for run in self.old.iter().filter_map(|old| old.get(part)).filter(|run| !run.is_empty()) {
                disk.write(run.start, &vec![0; ((run.end - run.start) * disk.sector) as usize])?;
            }
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), TableError> {
        let flushed = self.content.format().flush();
        let path = || self.content.path().into();
        flushed.map_err(|source| TableError::Image(ImageError::Flush { path: path(), source }))
    }
}

/// The sectors of a backup of this GPT whose header is in the sector `at`: its entries, which may be zeros already, and the header. Entries
/// that do not lie between the partitions and the header are not counted.
fn old_backup(
    disk: &Disk<'_>,
    primary: &Entries,
    at: u64,
    len: u64,
) -> Result<Option<[Range<u64>; 2]>, TableError> {
    if at < primary.usable.end {
        return Ok(None);
    }
    let header = match header_at(disk, at) {
        Ok((header, _)) if header.disk == primary.header.disk => header,
        Ok(_) | Err(TableError::Bad(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let list = header.entries.get();
    let behind = list > header.last_usable.get() && list.checked_add(len).is_some_and(|end| end <= at);
    Ok(Some([if behind { list..list + len } else { at..at }, at..at + 1]))
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

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use zerocopy::FromBytes;

    use super::*;
    use crate::contract::info::SectorSize;
    use crate::disk::image::{Image, Shrink};
    use crate::formats::flat::raw::Raw;
    use crate::formats::open::OpenOptions;
    use crate::formats::vhd;
    use crate::formats::vhdx::{self, CreateOptions};
    use crate::map::format::Format;

    const MIB: u64 = 1 << 20;
    /// Last sector of the partition that [`fill`] makes.
    const LAST: u64 = 63;

    fn header(own: u64, other: u64, entries: u64, last: u64, list: &[u8]) -> Vec<u8> {
        let mut header = GptHeader::read_from_bytes(&[0; 92]).unwrap();
        header.signature = *b"EFI PART";
        (header.revision, header.size) = (0x0001_0000.into(), 92.into());
        (header.own, header.other, header.entries) = (own.into(), other.into(), entries.into());
        (header.first_usable, header.last_usable) = (34.into(), last.into());
        (header.count, header.entry_size, header.entries_crc) = (128.into(), 128.into(), crc32(list).into());
        sealed(&header, &[0; 92], 512)
    }

    /// Give the disk a GPT with a partition.
    pub(in super::super) fn fill(content: Content<'_>) {
        let mut list = vec![0; 128 * 128];
        list[..16].fill(7);
        list[32..40].copy_from_slice(&40u64.to_le_bytes());
        list[40..48].copy_from_slice(&LAST.to_le_bytes());
        let end = content.capacity() / 512;
        let mut mbr = [0; 512];
        (mbr[450], mbr[454], mbr[510], mbr[511]) = (0xEE, 1, 0x55, 0xAA);
        mbr[458..462].copy_from_slice(&(end as u32 - 1).to_le_bytes());
        for (at, data) in [
            (0, &mbr[..]),
            (1, &header(1, end - 1, 2, end - 34, &list)),
            (2, &list),
            (end - 33, &list),
            (end - 1, &header(end - 1, 1, end - 33, end - 34, &list)),
        ] {
            content.write_at(data, at * 512).unwrap();
        }
        content.format().flush().unwrap();
    }

    /// The sectors of the valid backups in these sectors. The primary GPT must be valid, with the partition.
    pub(in super::super) fn backups(content: Content<'_>, places: &[u64]) -> Vec<u64> {
        let disk = Disk::new(content, SectorSize::B512);
        let primary = entries(&disk, 1).ok().expect("a primary GPT");
        assert_eq!(primary.get(1).map(|entry| entry.last.get()), Some(LAST));
        let valid = |at: &u64| entries(&disk, *at).is_ok_and(|backup| backup.bytes == primary.bytes);
        places.iter().copied().filter(valid).collect()
    }

    fn open(path: &Path) -> Arc<dyn Format> {
        OpenOptions { read_only: true, ..OpenOptions::new(path) }.open_format().unwrap()
    }

    fn create(path: &Path, size: u64) {
        match path.file_name().unwrap().to_str().unwrap() {
            "a.raw" => Raw::create(path, size).unwrap(),
            "a.vhd" => vhd::create_dynamic(path, size, None).unwrap(),
            "a.vhdx" => vhdx::create_dynamic(path, size, CreateOptions::default()).unwrap(),
            _ => vhd::create_fixed(path, size).unwrap(),
        }
        fill(Content::new(&*OpenOptions::new(path).open_format().unwrap()));
    }

    const NAMES: [&str; 4] = ["a.raw", "a.vhd", "a.vhdx", "fixed.vhd"];

    #[test]
    fn a_disk_with_a_gpt_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        for name in NAMES {
            let path = folder.path().join(name);
            create(&path, 64 * MIB);
            let image = Image::open(&path).unwrap();
            let error = image.move_gpt_backup(80 * 512).unwrap_err().to_string();
            assert!(
                error.contains("partition is 1, which ends at byte 32768, expected one that ends by byte"),
                "{error}"
            );
            assert!(
                image
                    .move_gpt_backup(20_000 / 512 * 512)
                    .unwrap_err()
                    .to_string()
                    .contains("space for the GPT")
            );
            // The third backup would overlap the second, so its entries lie below those.
            let (half, less) = (32 * MIB / 512, 32 * MIB / 512 - 2);
            for (sectors, moved, usable) in
                [(half, true, half - 33), (half, false, half - 33), (less, true, half - 33 - 32)]
            {
                let size = sectors * 512;
                assert_eq!(image.move_gpt_backup(size).unwrap(), moved, "{name}");
                image.resize(size, Shrink::Allow).unwrap();
                let disk = open(&path);
                let content = Content::new(&*disk);
                assert_eq!(backups(content, &[sectors - 1]), [sectors - 1]);
                let disk = Disk::new(content, SectorSize::B512);
                let [primary, backup] = [1, sectors - 1].map(|at| entries(&disk, at).ok().unwrap());
                assert_eq!(primary.header.other.get(), sectors - 1);
                assert_eq!((backup.header.other.get(), backup.usable.end), (1, usable));
                let mut mbr = [0; 512];
                content.read_at(&mut mbr, 0).unwrap();
                assert_eq!(mbr[458..462], (sectors as u32 - 1).to_le_bytes());
            }
        }
        let none = folder.path().join("none");
        Raw::create(&none, MIB).unwrap();
        assert!(!Image::open(&none).unwrap().move_gpt_backup(MIB / 2).unwrap());
    }

    /// The shrink is refused, so the GPT stays.
    #[test]
    fn what_the_resize_refuses_moves_no_gpt() {
        let folder = tempfile::tempdir().unwrap();
        let (size, small) = (64 * MIB, 32 * MIB);
        for name in NAMES {
            let path = folder.path().join(name);
            create(&path, size);
            let image = Image::open(&path).unwrap();
            let content = || {
                let mut data = vec![0; size as usize];
                Content::new(&*open(&path)).read_at(&mut data, 0).unwrap();
                data
            };
            let refused = |why: &str| {
                let before = content();
                let error = image.move_gpt_backup(small).unwrap_err().to_string();
                assert!(error.contains(why), "{name}: {error}");
                assert!(content() == before, "{name}: changed");
            };
            let used = OpenOptions::new(&path).open_format().unwrap();
            assert!(image.move_gpt_backup(small).is_err(), "{name} is in use");
            if name == "a.raw" {
                // What is cut off a raw disk is lost, whatever it is.
                continue;
            }
            Content::new(&*used).write_at(&[1; 512], size - 80 * 512).unwrap();
            used.flush().unwrap();
            drop(used);
            refused("data");
            // A header of another disk is data, too.
            let used = OpenOptions::new(&path).open_format().unwrap();
            Content::new(&*used).write_at(&[0; 512], size - 80 * 512).unwrap();
            let mut last = vec![0; 512];
            Content::new(&*used).read_at(&mut last, size - 512).unwrap();
            last[60] ^= 1;
            Content::new(&*used).write_at(&last, size - 512).unwrap();
            used.flush().unwrap();
            drop(used);
            refused("data");
        }
    }

    /// A hybrid MBR has other entries behind the protective one.
    #[test]
    fn the_protective_entry_follows_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.raw");
        create(&path, MIB);
        let disk = OpenOptions::new(&path).open_format().unwrap();
        let content = Content::new(&*disk);
        let count = |sectors: u64| {
            let disk = Disk::new(content, SectorSize::B512);
            let mbr = protective_mbr(&disk, sectors).ok().unwrap();
            mbr.map(|mbr| u32::from_le_bytes(mbr[458..462].try_into().unwrap()))
        };
        assert_eq!([count(2048), count(1000), count(1 << 32)], [None, Some(999), Some(u32::MAX)]);
        assert_eq!(count(u64::MAX), Some(u32::MAX));
        let mut mbr = [0; 512];
        content.read_at(&mut mbr, 0).unwrap();
        mbr[466] = 0x83;
        content.write_at(&mbr, 0).unwrap();
        assert_eq!([count(2048), count(1000), count(1 << 32)], [None, Some(999), None]);
        mbr[450] = 0;
        content.write_at(&mbr, 0).unwrap();
        assert_eq!(count(1000), None);
    }

    #[test]
    fn a_partition_that_only_a_hybrid_mbr_has_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.raw");
        create(&path, MIB);
        let disk = OpenOptions::new(&path).open_format().unwrap();
        let content = Content::new(&*disk);
        let mut mbr = [0; 512];
        content.read_at(&mut mbr, 0).unwrap();
        // Sectors 1000 to 1499.
        mbr[466] = 0x83;
        mbr[470..474].copy_from_slice(&1000u32.to_le_bytes());
        mbr[474..478].copy_from_slice(&500u32.to_le_bytes());
        content.write_at(&mbr, 0).unwrap();
        let plan = |sectors: u64| Move::plan(content, sectors * 512).map(|plan| plan.is_some());
        assert!(plan(1500 + 33).is_ok_and(|moves| moves));
        let Err(TableError::Bad(error)) = plan(1500 + 32) else { panic!("it would be overwritten") };
        let text = format!("{error:?}");
        assert!(text.contains("2 of the MBR, which ends at byte 768000"), "{text}");
    }
}
