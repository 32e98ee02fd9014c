//! Partition tables: MBR with logical partitions, and GPT (UEFI 2.10, chapter 5). The content is untrusted.

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::contract::error::{BadField, IoError};
use crate::contract::info::SectorSize;
use crate::formats::copy::content::{Content, ImageError};

/// Highest partition number.
pub(super) const MOST: u32 = 128;
/// Maximum size in bytes of the partition entries of a GPT.
const MOST_ENTRY_BYTES: u64 = 1 << 20;
/// Type of the protective MBR entry of a disk with a GPT.
const PROTECTIVE: u8 = 0xEE;

/// The error of a partition look-up.
pub(super) enum TableError {
    Bad(BadField),
    Image(ImageError),
}

impl From<BadField> for TableError {
    fn from(bad: BadField) -> Self {
        Self::Bad(bad)
    }
}

/// An entry of an MBR.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct MbrEntry {
    active: u8,
    first_chs: [u8; 3],
    kind: u8,
    last_chs: [u8; 3],
    first: U32,
    count: U32,
}

impl MbrEntry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85)
    }
}

/// An MBR, or the extended boot record of a logical partition.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Mbr {
    code: [u8; 446],
    entries: [MbrEntry; 4],
    signature: [u8; 2],
}

/// The header of a GPT.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct GptHeader {
    pub(super) signature: [u8; 8],
    pub(super) revision: U32,
    pub(super) size: U32,
    pub(super) crc: U32,
    pub(super) reserved: U32,
    pub(super) own: U64,
    pub(super) other: U64,
    pub(super) first_usable: U64,
    pub(super) last_usable: U64,
    pub(super) disk: [u8; 16],
    pub(super) entries: U64,
    pub(super) count: U32,
    pub(super) entry_size: U32,
    pub(super) entries_crc: U32,
}

/// The fields of a GPT entry up to the partition's location.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct GptEntry {
    kind: [u8; 16],
    id: [u8; 16],
    first: U64,
    pub(super) last: U64,
}

/// A disk addressed by sectors.
pub(super) struct Disk<'a> {
    content: Content<'a>,
    pub(super) sector: u64,
    pub(super) sectors: u64,
}

impl<'a> Disk<'a> {
    pub(super) fn new(content: Content<'a>, sector: SectorSize) -> Self {
        Self { content, sector: sector.bytes().into(), sectors: content.capacity() >> sector.shift() }
    }

    /// Write whole sectors.
    pub(super) fn write(&self, sector: u64, data: &[u8]) -> Result<(), TableError> {
        self.content.write_at(data, sector.saturating_mul(self.sector)).map_err(TableError::Image)
    }

    fn read(&self, sector: u64, len: u64) -> Result<Vec<u8>, TableError> {
        let mut bytes = vec![0; len as usize];
        let offset = sector.checked_mul(self.sector);
        let offset = offset.ok_or_else(|| {
            TableError::Image(ImageError::Io {
                path: self.content.path().into(),
                action: "read",
                offset: u64::MAX,
                source: IoError::OutOfRange,
            })
        })?;
        self.content.read_at(&mut bytes, offset).map_err(TableError::Image)?;
        Ok(bytes)
    }

    fn mbr(&self, sector: u64) -> Result<Mbr, TableError> {
        let bytes = self.read(sector, 512)?;
        let mbr = Mbr::read_from_bytes(&bytes).ok().filter(|mbr| mbr.signature == [0x55, 0xAA]);
        mbr.ok_or_else(|| {
            BadField::new("partition table", format!("missing in sector {sector}"), "an MBR or a GPT").into()
        })
    }

    /// The byte range of a run of sectors, which must be inside `within`.
    fn run(&self, first: u64, count: u64, within: &Range<u64>) -> Result<Range<u64>, TableError> {
        let end = first.checked_add(count).filter(|end| *end <= within.end);
        match end.filter(|_| count > 0 && first >= within.start) {
            Some(end) => Ok(first * self.sector..end * self.sector),
            None => {
                let value = format!("{count} sectors from {first} on");
                let expected = format!("inside the sectors {} to {}", within.start, within.end);
                Err(BadField::new("partition", value, expected).into())
            }
        }
    }
}

fn none(number: u32) -> TableError {
    BadField::new("partition", number.to_string(), "one that the partition table has").into()
}

/// The byte range of partition `number`, numbered as Linux does: entries of a GPT and of an MBR from 1, logical
/// partitions from 5.
pub(super) fn find(content: Content<'_>, number: u32) -> Result<Range<u64>, TableError> {
    if !(1..=MOST).contains(&number) {
        return Err(BadField::new("partition", number.to_string(), format!("1 to {MOST}")).into());
    }
    let info = content.format().info();
    let gpt = content.gpt_sector().map_err(TableError::Image)?;
    let disk = Disk::new(content, gpt.unwrap_or(info.logical_sector));
    let mbr = disk.mbr(0)?;
    if mbr.entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        return in_gpt(&disk, number);
    }
    if let Some(entry) = mbr.entries.iter().find(|entry| entry.active & 0x7F != 0) {
        let value = format!("{:#04x}", entry.active);
        return Err(BadField::new("boot indicator of a partition", value, "0x00 or 0x80").into());
    }
    let all = 1..disk.sectors;
    match mbr.entries.get(number as usize - 1) {
        Some(entry) if entry.kind == 0 => Err(none(number)),
        Some(entry) if entry.is_extended() => {
            let value = format!("{number}, an extended one");
            Err(BadField::new("partition", value, "one that holds data: those in it count from 5").into())
        }
        Some(entry) => disk.run(entry.first.get().into(), entry.count.get().into(), &all),
        None => {
            let extended =
                mbr.entries.iter().find(|entry| entry.is_extended()).ok_or_else(|| none(number))?;
            let (first, count) = (extended.first.get().into(), extended.count.get().into());
            disk.run(first, count, &all)?;
            logical(&disk, first..first + count, number)
        }
    }
}

/// Find a logical partition. Each has a boot record, which refers to the next one. The records must be in ascending
/// order, so the loop ends.
fn logical(disk: &Disk<'_>, extended: Range<u64>, number: u32) -> Result<Range<u64>, TableError> {
    let mut head = extended.start;
    for current in 5..=MOST {
        let [own, next, ..] = disk.mbr(head)?.entries;
        if current == number {
            if own.kind == 0 || own.is_extended() {
                return Err(none(number));
            }
            return disk.run(head + u64::from(own.first.get()), own.count.get().into(), &extended);
        }
        if !next.is_extended() {
            break;
        }
        let at = extended.start + u64::from(next.first.get());
        if at <= head || at >= extended.end {
            let expected = format!("between the sectors {head} and {}", extended.end);
            return Err(BadField::new("next logical partition", format!("sector {at}"), expected).into());
        }
        head = at;
    }
    Err(none(number))
}

/// Find a partition in the primary GPT, or if that is damaged in the backup at the end of the disk.
fn in_gpt(disk: &Disk<'_>, number: u32) -> Result<Range<u64>, TableError> {
    let entries = match entries(disk, 1) {
        Err(TableError::Bad(bad)) => match entries(disk, disk.sectors.saturating_sub(1)) {
            Ok(backup) => backup,
            Err(_) => return Err(bad.into()),
        },
        done => done?,
    };
    let entry = entries.get(number).ok_or_else(|| none(number))?;
    let (first, last) = (entry.first.get(), entry.last.get());
    let count = last.checked_sub(first).and_then(|count| count.checked_add(1)).unwrap_or(0);
    disk.run(first, count, &entries.usable)
}

/// A GPT: its header, and its entries in their stored form.
pub(super) struct Entries {
    pub(super) header: GptHeader,
    /// The header as stored, all of its size.
    pub(super) sealed: Vec<u8>,
    pub(super) bytes: Vec<u8>,
    size: usize,
    pub(super) usable: Range<u64>,
}

impl Entries {
    pub(super) fn count(&self) -> u32 {
        (self.bytes.len() / self.size) as u32
    }

    pub(super) fn get(&self, number: u32) -> Option<GptEntry> {
        let bytes = self.bytes.chunks_exact(self.size).nth(number as usize - 1)?;
        let (entry, _) = GptEntry::read_from_prefix(bytes).ok()?;
        (entry.kind != [0; 16]).then_some(entry)
    }
}

/// Read the header of a GPT in this sector. Returns its fields, and all of its bytes with a checksum of 0.
pub(super) fn header_at(disk: &Disk<'_>, sector: u64) -> Result<(GptHeader, Vec<u8>), TableError> {
    let bad = |field, value: String, expected: &str| TableError::Bad(BadField::new(field, value, expected));
    if sector >= disk.sectors {
        return Err(bad("GPT", "missing".into(), "a header in sector 1"));
    }
    let bytes = disk.read(sector, 512)?;
    let Ok((header, _)) = GptHeader::read_from_prefix(&bytes) else {
        return Err(bad("GPT", "missing".into(), "a header"));
    };
    if header.signature != *b"EFI PART" {
        return Err(bad("GPT signature", format!("{:02x?}", header.signature), "\"EFI PART\""));
    }
    let size = header.size.get() as usize;
    let Some(sealed) = bytes.get(..size).filter(|_| size >= size_of::<GptHeader>()) else {
        return Err(bad("GPT header size", size.to_string(), "92 to 512 bytes"));
    };
    let mut sealed = sealed.to_vec();
    if let Some(field) = sealed.get_mut(16..20) {
        field.fill(0);
    }
    let (stored, computed) = (header.crc.get(), crc32(&sealed));
    if stored != computed {
        return Err(bad("GPT header checksum", format!("{stored:#010x}"), &format!("{computed:#010x}")));
    }
    if header.own.get() != sector {
        return Err(bad("GPT header's own sector", header.own.get().to_string(), &sector.to_string()));
    }
    Ok((header, sealed))
}

/// Read the GPT whose header is in this sector.
pub(super) fn entries(disk: &Disk<'_>, sector: u64) -> Result<Entries, TableError> {
    let bad = |field, value: String, expected: &str| TableError::Bad(BadField::new(field, value, expected));
    let (header, sealed) = header_at(disk, sector)?;
    let usable = header.first_usable.get()..header.last_usable.get().saturating_add(1);
    if usable.start < 2 || usable.start >= usable.end || usable.end > disk.sectors {
        let value = format!("{} to {}", header.first_usable.get(), header.last_usable.get());
        return Err(bad("GPT usable sectors", value, &format!("inside 2 to {}", disk.sectors)));
    }
    let (count, entry) = (u64::from(header.count.get()), u64::from(header.entry_size.get()));
    let len = count * entry;
    if entry < 128 || !entry.is_power_of_two() || len == 0 || len > MOST_ENTRY_BYTES {
        let value = format!("{count} of {entry} bytes");
        return Err(bad("GPT partition entries", value, "a power of two of bytes from 128 on, 1 MiB in all"));
    }
    let at = header.entries.get();
    let end = at.checked_add(len.div_ceil(disk.sector)).filter(|end| *end <= disk.sectors);
    if at < 2 || end.is_none() {
        return Err(bad("GPT partition entries", format!("at sector {at}"), "inside the disk"));
    }
    let bytes = disk.read(at, len)?;
    let (stored, computed) = (header.entries_crc.get(), crc32(&bytes));
    if stored != computed {
        return Err(bad("GPT entries' checksum", format!("{stored:#010x}"), &format!("{computed:#010x}")));
    }
    Ok(Entries { header, sealed, bytes, size: entry as usize, usable })
}

/// The MBR of a disk that may have none.
fn first_mbr(disk: &Disk<'_>) -> Result<Option<Mbr>, TableError> {
    match disk.mbr(0) {
        Ok(mbr) => Ok(Some(mbr)),
        Err(TableError::Bad(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The partitions of a hybrid MBR beside the entry for the GPT: number, and the sector behind the last one.
pub(super) fn mbr_partitions(disk: &Disk<'_>) -> Result<Vec<(u32, u64)>, TableError> {
    let Some(mbr) = first_mbr(disk)? else { return Ok(Vec::new()) };
    let used = (1..).zip(&mbr.entries).filter(|(_, entry)| entry.kind != 0 && entry.kind != PROTECTIVE);
    Ok(used
        .map(|(number, entry)| (number, u64::from(entry.first.get()) + u64::from(entry.count.get())))
        .collect())
}

/// The first sector of a disk that is to have this number of sectors, if its protective MBR is to be changed: the size of the entry for the GPT
/// follows that of the disk. In a hybrid MBR, where other entries follow that one, it is only cut.
pub(super) fn protective_mbr(disk: &Disk<'_>, sectors: u64) -> Result<Option<Vec<u8>>, TableError> {
    let Some(mbr) = first_mbr(disk)? else { return Ok(None) };
    let mut entries = mbr.entries.iter().enumerate().filter(|(_, entry)| entry.kind != 0);
    let Some((number, entry)) = entries.find(|(_, entry)| entry.kind == PROTECTIVE) else { return Ok(None) };
    let first = u64::from(entry.first.get());
    let alone = mbr.entries.iter().filter(|entry| entry.kind != 0).count() == 1;
    let whole = sectors.saturating_sub(first).min(u32::MAX.into()) as u32;
    let count = entry.count.get();
    if count == whole || !alone && count < whole {
        return Ok(None);
    }
    let changed = MbrEntry { last_chs: [0xFF; 3], count: whole.into(), ..*entry };
    let mut bytes = disk.read(0, disk.sector)?;
    let at = std::mem::offset_of!(Mbr, entries) + number * size_of::<MbrEntry>();
    if let Some(stored) = bytes.get_mut(at..at + size_of::<MbrEntry>()) {
        stored.copy_from_slice(changed.as_bytes());
    }
    Ok(Some(bytes))
}

/// CRC-32 (ISO 3309), bit by bit: it runs only when a disk is opened.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _: u32| crc >> 1 ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests;
