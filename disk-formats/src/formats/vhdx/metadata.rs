//! The metadata region: the properties of the disk (\[MS-VHDX\] 2.6).

use std::collections::HashSet;
use std::io;

use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::journal::Sectors;
use super::layout::Layout;
use super::locator::Locator;
use super::region::Run;
use super::spec::{
    BLOCK_SIZES, FileParameters, HAS_PARENT, LEAVE_BLOCK_ALLOCATED, MAX_ITEM, MAX_SIZE, MAX_TABLE_ENTRIES,
    METADATA_SIGNATURE, MIB, MetadataEntry, MetadataTableHeader, TABLE_SIZE, item,
};
use crate::contract::error::{BadField, ReadError};
use crate::contract::info::SectorSize;
use crate::host::store::Store;

/// Maximum size of a metadata region in bytes.
const MAX_REGION: u64 = 128 << 20;
/// Maximum number of user items.
const MAX_USER_ITEMS: usize = 1024;

/// The properties of a disk.
#[derive(Clone, Debug)]
pub(super) struct Metadata {
    pub(super) parameters: Parameters,
    /// The parent locator of a differencing disk.
    pub(super) locator: Option<Locator>,
    entries: Vec<MetadataEntry>,
    region: Run,
}

/// The metadata items that every disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) block_size: u32,
    /// Whether it is a fixed disk.
    pub(super) leave_allocated: bool,
    pub(super) has_parent: bool,
    /// Virtual size in bytes.
    pub(super) size: u64,
    /// Identity that guests see.
    pub(super) disk_id: Uuid,
    pub(super) logical: SectorSize,
    /// Bytes.
    pub(super) physical: u32,
}

impl Parameters {
    /// The kind of disk, as the command line names it.
    pub(super) fn subformat(&self) -> &'static str {
        match (self.has_parent, self.leave_allocated) {
            (true, _) => "differencing",
            (false, true) => "fixed",
            (false, false) => "dynamic",
        }
    }

    /// The layout of a disk with these parameters and its BAT at `bat`.
    pub(super) fn layout(&self, bat: Run) -> Layout {
        Layout {
            size: self.size,
            block_shift: self.block_size.trailing_zeros(),
            sector: self.logical,
            bat,
            has_parent: self.has_parent,
        }
    }

    /// Refuse values that the format does not support.
    pub(super) fn check(&self) -> Result<(), BadField> {
        if !self.block_size.is_power_of_two() || !BLOCK_SIZES.contains(&self.block_size) {
            let expected = "a power of two from 1 MiB to 256 MiB";
            return Err(BadField::new("block size", self.block_size.to_string(), expected));
        }
        let sector = u64::from(self.logical.bytes());
        if self.size == 0 || !self.size.is_multiple_of(sector) || self.size > MAX_SIZE {
            let expected = format!("whole sectors of {sector} bytes, at least one, at most 64 TiB");
            return Err(BadField::new("virtual disk size", format!("{} bytes", self.size), expected));
        }
        Ok(())
    }
}

/// Read the metadata region.
pub(super) fn read(store: &dyn Store, region: Run) -> Result<Metadata, ReadError> {
    if region.len > MAX_REGION {
        let value = format!("{} bytes", region.len);
        return Err(BadField::new("metadata region", value, "at most 128 MiB").into());
    }
    let mut table = vec![0; TABLE_SIZE];
    store.read_at(&mut table, region.offset)?;
    let entries = entries(&table, region.len)?;
    let mut items = Items { store, region, entries: &entries };
    let parameters = items.parameters()?;
    parameters.check()?;
    let locator = match parameters.has_parent {
        false => None,
        true => match items.bytes(item::PARENT_LOCATOR)? {
            None => {
                return Err(BadField::new("parent locator", "missing", "one, as there is a parent").into());
            }
            Some(bytes) => Some(Locator::parse(&bytes)?),
        },
    };
    Ok(Metadata { parameters, locator, entries, region })
}

fn entries(table: &[u8], region: u64) -> Result<Vec<MetadataEntry>, BadField> {
    let Ok((header, rest)) = MetadataTableHeader::read_from_prefix(table) else {
        return Err(BadField::new("metadata table", "short", "64 KiB"));
    };
    if header.signature != METADATA_SIGNATURE {
        let value = format!("{:02x?}", header.signature);
        return Err(BadField::new("metadata table signature", value, "\"metadata\""));
    }
    let count = usize::from(header.entry_count.get());
    if count > MAX_TABLE_ENTRIES {
        return Err(BadField::new("metadata entry count", count.to_string(), "at most 2047"));
    }
    let parts = rest.chunks_exact(size_of::<MetadataEntry>()).take(count);
    let entries: Vec<MetadataEntry> =
        parts.filter_map(|part| MetadataEntry::read_from_bytes(part).ok()).collect();
    let users = entries.iter().filter(|entry| entry.flags.get() & item::IS_USER != 0).count();
    if users > MAX_USER_ITEMS {
        return Err(BadField::new("metadata items of the user", users.to_string(), "at most 1024"));
    }
    check_places(&entries, region)?;
    check_names(&entries)?;
    Ok(entries)
}

fn check_places(entries: &[MetadataEntry], region: u64) -> Result<(), BadField> {
    let mut places: Vec<(u64, u64)> = Vec::new();
    for entry in entries {
        let (offset, length) = (u64::from(entry.offset.get()), u64::from(entry.length.get()));
        let good = match length {
            0 => offset == 0,
            _ => offset >= TABLE_SIZE as u64 && length <= u64::from(MAX_ITEM) && offset + length <= region,
        };
        if !good {
            let value = format!("{length} bytes at {offset} ({})", Uuid::from_bytes_le(entry.item_id));
            let expected = format!("at most 1 MiB, behind the table, inside the region of {region} bytes");
            return Err(BadField::new("metadata item", value, expected));
        }
        places.push((offset, offset + length));
    }
    places.retain(|(start, end)| start < end);
    places.sort_unstable();
    for pair in places.windows(2) {
        if let [(_, end), (start, _)] = pair
            && start < end
        {
            return Err(BadField::new(
                "metadata item",
                format!("at {start}, inside another"),
                "items that do not overlap",
            ));
        }
    }
    Ok(())
}

fn check_names(entries: &[MetadataEntry]) -> Result<(), BadField> {
    let mut seen = HashSet::new();
    for entry in entries {
        let (id, flags) = (Uuid::from_bytes_le(entry.item_id), entry.flags.get());
        if !seen.insert((id, flags & item::IS_USER)) {
            return Err(BadField::new("metadata item", format!("{id} twice"), "each once"));
        }
        let user = flags & item::IS_USER != 0;
        if id == item::INCOMPLETE_FILE && !user {
            let expected = "none: the file's creation was not completed";
            return Err(BadField::new("incomplete file item", "present", expected));
        }
        let known = !user
            && [
                item::FILE_PARAMETERS,
                item::VIRTUAL_DISK_SIZE,
                item::VIRTUAL_DISK_ID,
                item::LOGICAL_SECTOR_SIZE,
                item::PHYSICAL_SECTOR_SIZE,
                item::PARENT_LOCATOR,
            ]
            .contains(&id);
        if flags & item::IS_REQUIRED != 0 && !known {
            let expected = "an item that is known, as this one is required";
            return Err(BadField::new("metadata item", id.to_string(), expected));
        }
    }
    Ok(())
}

/// Access to the items by GUID.
struct Items<'a> {
    store: &'a dyn Store,
    region: Run,
    entries: &'a [MetadataEntry],
}

impl Items<'_> {
    fn bytes(&mut self, id: Uuid) -> io::Result<Option<Vec<u8>>> {
        let Some(entry) = system(self.entries, id) else { return Ok(None) };
        let mut bytes = vec![0; entry.length.get() as usize];
        self.store.read_at(&mut bytes, self.region.offset + u64::from(entry.offset.get()))?;
        Ok(Some(bytes))
    }

    fn fixed<const N: usize>(&mut self, id: Uuid, name: &'static str) -> Result<[u8; N], ReadError> {
        let expected = format!("an item of {N} bytes");
        let Some(bytes) = self.bytes(id)? else {
            return Err(BadField::new(name, "missing", expected).into());
        };
        let wrong = |_| BadField::new(name, format!("{} bytes", bytes.len()), expected);
        Ok(bytes.as_slice().try_into().map_err(wrong)?)
    }

    fn parameters(&mut self) -> Result<Parameters, ReadError> {
        let file = self.fixed::<8>(item::FILE_PARAMETERS, "file parameters")?;
        let size = self.fixed::<8>(item::VIRTUAL_DISK_SIZE, "virtual disk size")?;
        let id = self.fixed::<16>(item::VIRTUAL_DISK_ID, "virtual disk id")?;
        let logical = self.fixed::<4>(item::LOGICAL_SECTOR_SIZE, "logical sector size")?;
        let physical = self.fixed::<4>(item::PHYSICAL_SECTOR_SIZE, "physical sector size")?;
        let file = FileParameters::read_from_bytes(&file)
            .map_err(|_| BadField::new("file parameters", "short", "8 bytes"))?;
        let sector = |bytes: [u8; 4], name| {
            let value = u32::from_le_bytes(bytes);
            SectorSize::from_bytes(value).ok_or_else(|| BadField::new(name, value.to_string(), "512 or 4096"))
        };
        Ok(Parameters {
            block_size: file.block_size.get(),
            has_parent: file.flags.get() & HAS_PARENT != 0,
            leave_allocated: file.flags.get() & (LEAVE_BLOCK_ALLOCATED | HAS_PARENT) == LEAVE_BLOCK_ALLOCATED,
            size: u64::from_le_bytes(size),
            disk_id: Uuid::from_bytes_le(id),
            logical: sector(logical, "logical sector size")?,
            physical: sector(physical, "physical sector size")?.bytes(),
        })
    }
}

fn system(entries: &[MetadataEntry], id: Uuid) -> Option<&MetadataEntry> {
    entries.iter().find(|entry| entry.item_id == id.to_bytes_le() && entry.flags.get() & item::IS_USER == 0)
}

impl Metadata {
    /// Approximate memory use in bytes.
    pub(super) fn memory(&self) -> u64 {
        let entries = self.entries.len() * size_of::<MetadataEntry>();
        entries as u64 + self.locator.as_ref().map_or(0, Locator::memory)
    }

    /// Change the content of an item; the changed sectors are added to `sectors`, to be logged.
    ///
    /// # Errors
    /// The host's, or `StorageFull` if the region has no space for a longer item.
    pub(super) fn change(
        &self,
        store: &dyn Store,
        sectors: &mut Sectors,
        id: Uuid,
        content: &[u8],
    ) -> io::Result<()> {
        let missing = || io::Error::other("the metadata item is not there");
        let number = self
            .entries
            .iter()
            .position(|entry| entry.item_id == id.to_bytes_le() && entry.flags.get() & item::IS_USER == 0)
            .ok_or_else(missing)?;
        let mut entry = *self.entries.get(number).ok_or_else(missing)?;
        if content.len() > entry.length.get() as usize {
            // Append it after all items: the old content must stay until the table has changed.
            let end = |entry: &MetadataEntry| entry.offset.get() + entry.length.get();
            let at = self.entries.iter().map(end).max().unwrap_or(0).max(TABLE_SIZE as u32);
            let fits = u64::from(at) + content.len() as u64 <= self.region.len;
            if !fits || content.len() > MAX_ITEM as usize {
                return Err(io::ErrorKind::StorageFull.into());
            }
            entry.offset = at.into();
        }
        entry.length = (content.len() as u32).into();
        sectors.patch(store, self.region.offset + u64::from(entry.offset.get()), content)?;
        let at = size_of::<MetadataTableHeader>() + number * size_of::<MetadataEntry>();
        sectors.patch(store, self.region.offset + at as u64, entry.as_bytes())
    }
}

/// The metadata region of a new disk: the table and its items, without padding at the end.
pub(super) fn new_region(parameters: &Parameters, locator: Option<&[u8]>) -> Vec<u8> {
    let mut flags = 0;
    flags |= if parameters.leave_allocated { LEAVE_BLOCK_ALLOCATED } else { 0 };
    flags |= if parameters.has_parent { HAS_PARENT } else { 0 };
    let file = FileParameters { block_size: parameters.block_size.into(), flags: flags.into() };
    let disk = item::IS_VIRTUAL_DISK | item::IS_REQUIRED;
    let mut items: Vec<(Uuid, u32, Vec<u8>)> = vec![
        (item::FILE_PARAMETERS, item::IS_REQUIRED, file.as_bytes().to_vec()),
        (item::VIRTUAL_DISK_SIZE, disk, parameters.size.to_le_bytes().to_vec()),
        (item::VIRTUAL_DISK_ID, disk, parameters.disk_id.to_bytes_le().to_vec()),
        (item::LOGICAL_SECTOR_SIZE, disk, parameters.logical.bytes().to_le_bytes().to_vec()),
        (item::PHYSICAL_SECTOR_SIZE, disk, parameters.physical.to_le_bytes().to_vec()),
    ];
    items.extend(locator.map(|bytes| (item::PARENT_LOCATOR, item::IS_REQUIRED, bytes.to_vec())));
    let header = MetadataTableHeader {
        signature: METADATA_SIGNATURE,
        reserved: 0.into(),
        entry_count: (items.len() as u16).into(),
        reserved2: [0; 20],
    };
    let mut region = vec![0; TABLE_SIZE];
    let mut table = header.as_bytes().to_vec();
    for (id, flags, bytes) in items {
        let entry = MetadataEntry {
            item_id: id.to_bytes_le(),
            offset: (region.len() as u32).into(),
            length: (bytes.len() as u32).into(),
            flags: flags.into(),
            reserved: 0.into(),
        };
        table.extend_from_slice(entry.as_bytes());
        region.extend_from_slice(&bytes);
        // With this alignment, no item of fixed size (at most 16 bytes) crosses a sector.
        region.resize(region.len().next_multiple_of(16), 0);
    }
    if let Some(slot) = region.get_mut(..table.len()) {
        slot.copy_from_slice(&table);
    }
    region
}

/// Bytes of the metadata region of a new disk.
pub(super) const NEW_REGION: u64 = MIB;
