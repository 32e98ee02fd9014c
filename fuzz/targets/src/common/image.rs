//! Image files: how they are stored between runs, changed by the input and given valid checksums, and reads of any disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use paradisk_disk_formats::image::{Content, Runs};
use paradisk_disk_formats::vhdx::spec::{HEADER_SIZE, HEADERS_AT, REGION_TABLES_AT, TABLE_SIZE};

/// A file without its pages of zeros.
pub(crate) struct Stored {
    pub(crate) len: u64,
    pages: Vec<(u64, Vec<u8>)>,
}

impl Stored {
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a file");
        let pages = bytes.chunks(4096).zip((0..).step_by(4096));
        let pages = pages.filter(|(page, _)| page.iter().any(|byte| *byte != 0));
        Self { len: bytes.len() as u64, pages: pages.map(|(page, at)| (at, page.to_vec())).collect() }
    }

    /// Write the file again.
    pub(crate) fn write(&self, path: &Path) -> File {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(path).expect("a file");
        file.set_len(self.len).expect("free space");
        for (at, page) in &self.pages {
            file.write_all_at(page, *at).expect("a write");
        }
        file
    }
}

/// Records of 12 bytes: a selector, a place (two bytes), the number of bytes, the bytes.
pub(crate) fn records(input: &[u8]) -> impl Iterator<Item = (u8, u16, &[u8])> {
    input.chunks_exact(12).take(64).map(|record| {
        let place = u16::from_le_bytes([record[1], record[2]]);
        (record[0], place, &record[4..4 + 1 + usize::from(record[3]) % 8])
    })
}

/// Write a valid checksum into a structure of a VHD: one's complement of the sum of its other bytes.
pub(crate) fn seal_vhd_structure(bytes: &mut [u8], checksum_at: usize) {
    bytes[checksum_at..checksum_at + 4].fill(0);
    let sum = bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    bytes[checksum_at..checksum_at + 4].copy_from_slice(&(!sum).to_be_bytes());
}

/// Write valid checksums into a VHDX's headers and region tables, as far as the file has them.
pub(crate) fn seal_vhdx(file: &File) {
    let parts = HEADERS_AT.map(|at| (at, HEADER_SIZE)).into_iter();
    for (at, len) in parts.chain(REGION_TABLES_AT.map(|at| (at, TABLE_SIZE))) {
        let mut bytes = vec![0; len];
        if file.read_exact_at(&mut bytes, at).is_ok() {
            bytes[4..8].fill(0);
            file.write_all_at(&crc32c::crc32c(&bytes).to_le_bytes(), at + 4).expect("a write");
        }
    }
}

/// Read from some places of a disk, and find its first runs. The number of steps is bounded, because a disk may claim to be of
/// terabytes.
pub(crate) fn read_some(content: Content<'_>) {
    let mut buffer = [0; 4096];
    for step in 0..16 {
        let offset = content.capacity() / 16 * step / 4096 * 4096;
        if offset + 4096 <= content.capacity() {
            let _ = content.read_at(&mut buffer, offset);
        }
    }
    let _ = Runs::new(content).take(64).count();
}
