//! The images: one of each format that QEMU writes, too, with every block allocated.

use std::path::{Path, PathBuf};

use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::{FormatName, OpenOptions, Raw, vhd, vhdx};

pub(crate) const COUNT: usize = 3;
/// Bytes of the smallest; the others are larger by more than a format may round off.
const SIZE: u64 = 256 << 20;
const STEP: u64 = 16 << 20;

/// An image.
pub(crate) struct Image {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) format: FormatName,
    /// QEMU's block driver.
    pub(crate) driver: &'static str,
}

impl Image {
    /// By size, the smallest first.
    pub(crate) fn all(folder: &Path) -> [Self; COUNT] {
        let kinds = [
            ("raw", FormatName::Raw, "raw"),
            ("VHD dynamic", FormatName::Vhd, "vpc"),
            ("VHDX dynamic", FormatName::Vhdx, "vhdx"),
        ];
        let mut sizes = (SIZE..).step_by(STEP as usize);
        kinds.map(|(name, format, driver)| {
            let (path, size) = (folder.join(driver), sizes.next().unwrap_or(SIZE));
            match format {
                FormatName::Vhd => vhd::create_dynamic(&path, size, None),
                FormatName::Vhdx => vhdx::create_dynamic(&path, size, vhdx::CreateOptions::default()),
                _ => Raw::create(&path, size),
            }
            .unwrap();
            fill(&path, format, size);
            Self { name, path, format, driver }
        })
    }
}

fn fill(path: &Path, format: FormatName, size: u64) {
    let opened = OpenOptions { format: Some(format), ..OpenOptions::new(path) }.open_format().unwrap();
    let content = Content::new(&*opened);
    let piece: Vec<u8> = (0..1u32 << 20).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    (0..size).step_by(piece.len()).for_each(|at| content.write_at(&piece, at).unwrap());
    drop(opened);
    rustix::fs::fsync(std::fs::File::open(path).unwrap()).unwrap();
}
