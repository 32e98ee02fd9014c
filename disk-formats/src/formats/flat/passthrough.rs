//! Pass-through: a block device of the host, with its own sizes and limits.

use std::path::Path;
use std::sync::Arc;

use crate::contract::error::{BadField, OpenError, escaped};
use crate::contract::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::formats::flat::{Flat, Sectors};
use crate::formats::info::whole_sectors;
use crate::formats::signature::gpt_sector;
use crate::host::backing::{Access, BackingFile};

/// Pass-through disks.
#[derive(Debug)]
pub enum Passthrough {}

impl Passthrough {
    /// Open a block device.
    ///
    /// # Errors
    /// As [`BackingFile::open`]; [`OpenError::Invalid`] if `path` is not a block device, the device is empty or not whole
    /// sectors, or guests cannot address its sector size.
    pub fn open(path: &Path, access: Access) -> Result<Flat, OpenError> {
        Self::open_with(path, access, Sectors::default())
    }

    /// As [`open`](Self::open), with these sector sizes in place of the device's.
    ///
    /// # Errors
    /// The same.
    pub fn open_with(path: &Path, access: Access, sectors: Sectors) -> Result<Flat, OpenError> {
        let file = BackingFile::open(path, access)?;
        let invalid = |field, value: String, expected: &str| BadField::new(field, value, expected).of(path);
        let Some(device) = file.device().copied() else {
            return Err(invalid(
                "type of file",
                "a regular file".into(),
                "a block device (format raw opens files)",
            ));
        };
        let logical_sector = sectors.logical.or(SectorSize::from_bytes(device.logical)).ok_or_else(|| {
            invalid("logical sector size", format!("{} bytes", device.logical), "512 or 4096")
        })?;
        let capacity = file.size();
        whole_sectors(path, capacity, logical_sector)?;
        let discard = device.discard.filter(|_| file.can_discard());
        let info = DiskInfo {
            kind: Kind { format: "passthrough", subformat: None },
            capacity,
            logical_sector,
            physical_sector: sectors.physical(path, logical_sector, device.physical)?,
            read_only: !file.writable(),
            volatile_cache: file.writable() && (device.write_back || file.direct().is_none()),
            discard: discard.map(|granularity| DiscardLimits { granularity, reads_zero: false }),
            buffer_alignment: file.direct().map_or(1, |direct| direct.memory),
        };
        let read = |data: &mut [u8], at| file.read_at(data, at);
        let other = gpt_sector(capacity, read).ok().flatten().filter(|sector| *sector != logical_sector);
        let remark = other.map(|other| {
            let (other, own) = (other.bytes(), logical_sector.bytes());
            let path = escaped(path);
            format!("{path} has sectors of {own} bytes, and a GPT that counts in sectors of {other}: logical-sector-size={other} makes it readable")
        });
        Ok(Flat::whole(info, Arc::new(file)).remarking(remark))
    }
}
