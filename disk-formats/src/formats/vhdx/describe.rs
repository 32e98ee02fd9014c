//! The description of an image, for `image info`.

use super::chain::Image;
use super::layout::Slot;
use super::scan::scan;
use super::spec::FILE_SIGNATURE;
use crate::contract::error::OpenError;
use crate::formats::chain::Describe;
use crate::formats::info::{FormatInfo, ImageInfo, ParentInfo};
use crate::host::store::Store;

impl Describe for Image {
    fn describe(&self) -> Result<ImageInfo, OpenError> {
        let path = self.file.path();
        let os = OpenError::os(path, "cannot read the VHDX's metadata");
        let (opened, parameters) = (&self.opened, &self.opened.metadata.parameters);
        let mut allocated = 0;
        scan(&*opened.store, &opened.layout, |index, entry| {
            allocated += u64::from(matches!(opened.layout.slot(index), Slot::Payload(_)) && entry.present());
        })
        .map_err(os)?;
        let parent = opened.metadata.locator.as_ref().map(|locator| ParentInfo {
            id: locator.linkages().0.to_string(),
            candidates: locator.candidates(path),
        });
        Ok(ImageInfo {
            path: path.into(),
            subformat: parameters.subformat(),
            size: parameters.size,
            file_size: self.file.size(),
            block_size: Some(u64::from(parameters.block_size)),
            blocks: Some((allocated, opened.layout.blocks())),
            logical_sector: parameters.logical,
            physical_sector: parameters.physical,
            id: parameters.disk_id.to_string(),
            creator: creator(&*opened.store).map_err(os)?,
            parent,
            format: FormatInfo::Vhdx {
                data_write_guid: opened.headers.data_write_guid().to_string(),
                log_entries: opened.replayed,
            },
        })
    }
}

/// The creator that the file names. The text is arbitrary.
fn creator(store: &dyn Store) -> std::io::Result<String> {
    let mut bytes = [0; 512];
    store.read_at(&mut bytes, FILE_SIGNATURE.len() as u64)?;
    let units = bytes.chunks_exact(2).map(|unit| unit.try_into().map_or(0, u16::from_le_bytes));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    let text = String::from_utf16_lossy(&units);
    Ok(text.chars().map(|letter| if letter.is_control() { '.' } else { letter }).collect())
}
