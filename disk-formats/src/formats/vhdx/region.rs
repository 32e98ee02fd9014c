//! The region tables: the locations of the BAT and the metadata (\[MS-VHDX\] 2.2.3).

use std::collections::HashSet;

use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::spec::{
    HEADER_SECTION, MAX_TABLE_ENTRIES, MIB, REGION_SIGNATURE, REGION_TABLES_AT, RegionEntry,
    RegionTableHeader, TABLE_SIZE, region,
};
use crate::contract::error::{BadField, ReadError};
use crate::host::store::Store;

/// A range of the file in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Run {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// The regions of a file.
#[derive(Clone, Debug)]
pub(super) struct Regions {
    pub(super) bat: Run,
    pub(super) metadata: Run,
    /// Optional regions of unknown types, which are preserved.
    pub(super) unknown: Vec<Run>,
    /// The table in use, without the zeros at its end: a chain may have many images.
    pub(super) table: Vec<u8>,
    /// The defect of one of the two tables, if any.
    pub(super) other: Option<BadField>,
}

impl Regions {
    /// Approximate memory use in bytes.
    pub(super) fn memory(&self) -> u64 {
        (self.table.len() + self.unknown.len() * size_of::<Run>()) as u64
    }
}

/// Read the tables; the first valid one is used. `log` is the location of the log, `len` the size of the file.
pub(super) fn read(store: &dyn Store, log: Run, len: u64) -> Result<Regions, ReadError> {
    let mut tables = Vec::new();
    let mut refused = None;
    for (number, at) in REGION_TABLES_AT.into_iter().enumerate() {
        let mut bytes = vec![0; TABLE_SIZE];
        store.read_at(&mut bytes, at)?;
        match entries(&bytes, number) {
            Ok(entries) => tables.push((bytes, entries)),
            Err(bad) => refused = refused.or(Some(bad)),
        }
    }
    if let [(first, _), (second, _)] = tables.as_slice()
        && first != second
    {
        refused = Some(BadField::new("region table 2", "different from table 1", "the same"));
    }
    let Some((mut table, entries)) = tables.into_iter().next() else {
        return Err(refused.unwrap_or_else(|| BadField::new("region table", "missing", "one")).into());
    };
    let (bat, metadata, unknown) = check(&entries, log, len)?;
    table.truncate(table.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    table.shrink_to_fit();
    Ok(Regions { bat, metadata, unknown, table, other: refused })
}

/// The entries of a table with a valid header and checksum.
fn entries(bytes: &[u8], number: usize) -> Result<Vec<RegionEntry>, BadField> {
    let of = |value: String| format!("{value} in table {}", number + 1);
    let Ok((header, rest)) = RegionTableHeader::read_from_prefix(bytes) else {
        return Err(BadField::new("region table", of("short".into()), "64 KiB"));
    };
    if header.signature != REGION_SIGNATURE {
        let value = of(format!("{:02x?}", header.signature));
        return Err(BadField::new("region table signature", value, "\"regi\""));
    }
    let (stored, computed) = (header.checksum.get(), checksum(bytes));
    if stored != computed {
        let value = of(format!("{stored:#010x}"));
        return Err(BadField::new("region table checksum", value, format!("{computed:#010x}")));
    }
    let count = header.entry_count.get();
    if count as usize > MAX_TABLE_ENTRIES {
        return Err(BadField::new("region table entry count", of(count.to_string()), "at most 2047"));
    }
    let parts = rest.chunks_exact(size_of::<RegionEntry>()).take(count as usize);
    Ok(parts.filter_map(|part| RegionEntry::read_from_bytes(part).ok()).collect())
}

fn checksum(table: &[u8]) -> u32 {
    let (head, rest) = table.split_at_checked(8).unwrap_or((table, &[]));
    let signature = head.get(..4).unwrap_or_default();
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(signature), &[0; 4]), rest)
}

fn check(entries: &[RegionEntry], log: Run, len: u64) -> Result<(Run, Run, Vec<Run>), BadField> {
    let (mut bat, mut metadata, mut unknown) = (None, None, Vec::new());
    let mut seen = HashSet::new();
    let mut runs = vec![(log, "log")];
    for entry in entries {
        let guid = Uuid::from_bytes_le(entry.guid);
        if !seen.insert(guid) {
            return Err(BadField::new("region", format!("{guid} twice"), "each once"));
        }
        let name = match guid {
            region::BAT => "BAT",
            region::METADATA => "metadata",
            _ => "unknown",
        };
        let (offset, length) = (entry.file_offset.get(), u64::from(entry.length.get()));
        let inside = offset.checked_add(length).is_some_and(|end| end <= len);
        let aligned = offset.is_multiple_of(MIB) && length.is_multiple_of(MIB) && length > 0;
        if !inside || !aligned || offset < HEADER_SECTION {
            let value = format!("{length} bytes at {offset:#x} ({name} region)");
            let expected = format!("whole MiB, behind the headers and before the end of the file at {len}");
            return Err(BadField::new("region", value, expected));
        }
        let run = Run { offset, len: length };
        match name {
            "BAT" => bat = Some(run),
            "metadata" => metadata = Some(run),
            _ if entry.required.get() & region::REQUIRED != 0 => {
                let expected = "a region that is known, as this one is required";
                return Err(BadField::new("region", guid.to_string(), expected));
            }
            _ => unknown.push(run),
        }
        runs.push((run, name));
    }
    runs.sort_unstable_by_key(|(run, _)| run.offset);
    for pair in runs.windows(2) {
        if let [(one, first), (other, second)] = pair
            && one.end() > other.offset
        {
            let value = format!("at {:#x} ({second}), inside the {first}", other.offset);
            return Err(BadField::new("region", value, "regions and log that do not overlap"));
        }
    }
    let lost = |name| BadField::new("region table", format!("without the {name} region"), "both regions");
    Ok((bat.ok_or_else(|| lost("BAT"))?, metadata.ok_or_else(|| lost("metadata"))?, unknown))
}

/// The region table of a new file.
pub(super) fn table(bat: Run, metadata: Run) -> Vec<u8> {
    let entry = |guid: Uuid, run: Run| RegionEntry {
        guid: guid.to_bytes_le(),
        file_offset: run.offset.into(),
        length: (run.len as u32).into(),
        required: region::REQUIRED.into(),
    };
    let header = RegionTableHeader {
        signature: REGION_SIGNATURE,
        checksum: 0.into(),
        entry_count: 2.into(),
        reserved: 0.into(),
    };
    let entries = [entry(region::BAT, bat), entry(region::METADATA, metadata)];
    let mut table = [header.as_bytes(), entries.as_bytes()].concat();
    table.resize(TABLE_SIZE, 0);
    seal(&mut table);
    table
}

/// A copy of the table with another location of the BAT.
pub(super) fn with_bat(table: &[u8], bat: Run) -> Vec<u8> {
    let mut table = table.to_vec();
    table.resize(TABLE_SIZE, 0);
    let entries = table.get_mut(size_of::<RegionTableHeader>()..).unwrap_or_default();
    for bytes in entries.chunks_exact_mut(size_of::<RegionEntry>()) {
        let Ok(mut entry) = RegionEntry::read_from_bytes(bytes) else { continue };
        if entry.guid == region::BAT.to_bytes_le() {
            entry.file_offset = bat.offset.into();
            entry.length = (bat.len as u32).into();
            bytes.copy_from_slice(entry.as_bytes());
        }
    }
    seal(&mut table);
    table
}

fn seal(table: &mut [u8]) {
    let checksum = checksum(table).to_le_bytes();
    if let Some(slot) = table.get_mut(4..8) {
        slot.copy_from_slice(&checksum);
    }
}
