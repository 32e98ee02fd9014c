//! A file that calls itself a VHD: opened, checked, read, written, repaired, resized.
//!
//! The first byte says what is done, the second one where. With the lowest bit of the first byte, footers and header get valid
//! checksums, so that the code behind that check is reached.

use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::vhd;
use paradisk_disk_formats::vhd::spec::{DynamicHeader, FOOTER_SIZE, Footer, HEADER_SIZE};
use paradisk_disk_formats::{Access, FormatName, Image, OpenOptions, Repair, Scope, Shrink};

use crate::common::folder::temporary;
use crate::common::image::{read_some, seal_vhd_structure};

/// Give the structures at their usual places valid checksums.
fn seal(image: &mut [u8]) {
    let mut fix = |start: usize, len: usize, at: usize| {
        if let Some(bytes) = image.get_mut(start..start + len) {
            seal_vhd_structure(bytes, at);
        }
    };
    fix(0, FOOTER_SIZE, std::mem::offset_of!(Footer, checksum));
    fix(FOOTER_SIZE, HEADER_SIZE, std::mem::offset_of!(DynamicHeader, checksum));
    if image.len() > 2 * FOOTER_SIZE {
        let end = image.len() - FOOTER_SIZE;
        image.copy_within(..FOOTER_SIZE, end);
    }
}

pub(crate) fn run(data: &[u8]) {
    let [flags, place, image @ ..] = data else { return };
    let mut image = image.to_vec();
    if flags & 1 != 0 {
        seal(&mut image);
    }
    let folder = temporary();
    let path = folder.path().join("fuzzed.vhd");
    std::fs::write(&path, &image).expect("a file");
    let image = Image::of_format(&path, FormatName::Vhd);
    let _ = image.check(Repair::ReportOnly);
    let _ = image.info(Scope::Chain);
    let write = flags & 2 != 0;
    let options = OpenOptions { read_only: !write, ..OpenOptions::new(&path) };
    let use_it = |format: &dyn paradisk_disk_formats::Format| {
        let content = Content::new(format);
        read_some(content);
        if write && content.capacity() >= 4096 {
            let offset = content.capacity() / 256 * u64::from(*place) / 512 * 512;
            let offset = offset.min(content.capacity() - 4096) / 512 * 512;
            let _ = content.write_at(&[0x5A; 4096], offset);
            let _ = format.write_zeroes(offset, 4096, true);
            let _ = format.flush();
        }
    };
    if let Ok(format) = options.open_format() {
        use_it(&*format);
    }
    if let Ok(alone) = vhd::open_alone(&path, Access { read_only: !write, direct: false }) {
        use_it(&*alone);
    }
    if flags & 4 != 0 {
        let _ = image.check(Repair::Repair);
        let _ = image.compact(|_, _| true);
        let shrink = if flags & 8 != 0 { Shrink::Allow } else { Shrink::Refuse };
        let _ = image.resize(u64::from(*place) << 20, shrink);
    }
}
