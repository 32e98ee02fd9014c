//! The description of an image, for `image info`.

use super::chain::{Image, hex};
use super::footer::Source;
use super::layer::read_bat;
use super::locator;
use super::spec::{EPOCH, UNALLOCATED};
use crate::contract::error::OpenError;
use crate::contract::info::SectorSize;
use crate::formats::chain::{Describe, Member};
use crate::formats::info::{FormatInfo, ImageInfo, ParentInfo};

impl Describe for Image {
    fn describe(&self) -> Result<ImageInfo, OpenError> {
        let path = self.file.path();
        let os = OpenError::os(path, "cannot read the VHD's metadata");
        let footer = &self.found.footer;
        let blocks = match &self.sparse {
            None => None,
            // If the file is too short for a block, the table need not be read.
            Some((_, layout)) if self.file.size() < layout.metadata_bytes() + layout.block_size() => {
                Some((0, u64::from(layout.used_entries())))
            }
            Some((_, layout)) => {
                let table = read_bat(&*self.file, layout, 0, u64::from(layout.used_entries())).map_err(os)?;
                Some((table.iter().filter(|entry| **entry != UNALLOCATED).count() as u64, table.len() as u64))
            }
        };
        let parent = match self.child_header() {
            None => None,
            Some(header) => {
                let candidates = locator::candidates(&*self.file, header).map_err(os)?;
                Some(ParentInfo { id: hex(&header.parent_unique_id), candidates })
            }
        };
        let printable =
            |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        Ok(ImageInfo {
            path: path.into(),
            subformat: self.subformat(),
            size: self.found.size,
            file_size: self.file.size(),
            block_size: self.sparse.map(|(_, layout)| layout.block_size()),
            blocks,
            logical_sector: SectorSize::B512,
            physical_sector: 4096,
            id: hex(&footer.unique_id),
            creator: match self.raw {
                true => String::new(),
                false => footer.creator_application.iter().map(printable).collect(),
            },
            parent,
            format: FormatInfo::Vhd {
                time_stamp: EPOCH + u64::from(footer.time_stamp.get()),
                footer_from_copy: self.found.source == Source::Copy,
            },
        })
    }
}
