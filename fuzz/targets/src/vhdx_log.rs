//! The log of a VHDX with any content: replayed in memory, then in the file. Both must give the same disk.
//!
//! The input is the beginning of the ring. With the lowest bit of its first byte set, it has changes of the ring of a disk in use. The
//! entries in the ring then get the log's GUID and, where their length allows it, a valid checksum.

use std::os::unix::fs::FileExt;

use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::vhdx::spec::{HEADER_SIZE, HEADERS_AT, MIB};
use paradisk_disk_formats::vhdx::{self, CreateOptions};
use paradisk_disk_formats::{Format, OpenOptions};
use tempfile::TempDir;

use crate::common::folder::temporary;
use crate::common::image;

const SIZE: u64 = 4 * MIB;
const SECTOR: usize = 4096;
const GUID: [u8; 16] = [0x42; 16];

/// Bytes of the ring that are made use of.
const RING: usize = 64 << 10;

/// An image whose headers have the log's GUID: its folder, its bytes with a log of zeros, and the log that the disk had written.
fn make() -> (TempDir, Vec<u8>, Vec<u8>) {
    let folder = temporary();
    let path = folder.path().join("fuzzed.vhdx");
    let options = CreateOptions { block_size: Some(1 << 20), ..CreateOptions::default() };
    vhdx::create_dynamic(&path, SIZE, options).expect("an image");
    let disk = OpenOptions::new(&path).open_format().expect("a disk");
    for block in [1, 2, 3] {
        Content::new(&*disk).write_at(&[0x11; 8192], block * MIB).expect("a write");
        disk.flush().expect("a flush");
    }
    drop(disk);
    let mut image = std::fs::read(&path).expect("a file");
    for at in HEADERS_AT.map(|at| at as usize) {
        let header = &mut image[at..at + HEADER_SIZE];
        header[48..64].copy_from_slice(&GUID);
        header[4..8].fill(0);
        let checksum = crc32c::crc32c(header).to_le_bytes();
        header[4..8].copy_from_slice(&checksum);
    }
    let ring = image[MIB as usize..][..RING].to_vec();
    image[MIB as usize..][..RING].fill(0);
    (folder, image, ring)
}

/// Give the entries good checksums.
fn seal(ring: &mut [u8]) {
    for start in (0..ring.len()).step_by(SECTOR) {
        let Some(header) = ring.get_mut(start..start + 64) else { continue };
        if !header.starts_with(b"loge") {
            continue;
        }
        header[32..48].copy_from_slice(&GUID);
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        if let Some(entry) = ring.get_mut(start..start.saturating_add(len)).filter(|entry| entry.len() >= 64)
        {
            entry[4..8].fill(0);
            let checksum = crc32c::crc32c(entry).to_le_bytes();
            entry[4..8].copy_from_slice(&checksum);
        }
    }
}

/// What can be read of the disk: where its metadata are good, 4 KiB of each half MiB.
fn contents(format: &dyn Format) -> Vec<Option<Vec<u8>>> {
    let content = Content::new(format);
    let part = |step: u64| {
        let mut bytes = vec![0; SECTOR];
        let at = step * MIB / 2;
        (at + SECTOR as u64 <= content.capacity() && content.read_at(&mut bytes, at).is_ok()).then_some(bytes)
    };
    (0..8).map(part).collect()
}

thread_local! {
    // Not in a static: its folder is removed when the thread ends.
    static IMAGE: (TempDir, Vec<u8>, Vec<u8>) = make();
}

pub(crate) fn run(data: &[u8]) {
    IMAGE.with(|image| run_with(image, data));
}

fn run_with((folder, image, used): &(TempDir, Vec<u8>, Vec<u8>), data: &[u8]) {
    let [flags, data @ ..] = data else { return };
    let mut ring = data.to_vec();
    ring.resize(RING, 0);
    if flags & 1 != 0 {
        ring.copy_from_slice(used);
        // Mostly headers and descriptors.
        for (sector, within, bytes) in image::records(data) {
            let (sector, within) = (usize::from(sector) % 16 * SECTOR, usize::from(within));
            let within = if within & 0x8000 == 0 { within % 160 } else { within % (SECTOR - 8) };
            ring[sector + within..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    seal(&mut ring);
    let path = folder.path().join("fuzzed.vhdx");
    let file = std::fs::File::create(&path).expect("a file");
    file.write_all_at(image, 0).expect("a write");
    file.write_all_at(&ring, MIB).expect("a write");
    drop(file);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::new(&path) };
    let in_memory = read_only.open_format().map(|format| contents(&*format));
    if let Ok(format) = OpenOptions::new(&path).open_format() {
        let replayed = contents(&*format);
        // A read-only disk refuses reads of payload that the log changes.
        if let Ok(in_memory) = in_memory {
            for (one, other) in in_memory.iter().zip(&replayed) {
                assert!(one.is_none() || other.is_none() || one == other);
            }
        }
        drop(format);
        let again = OpenOptions::new(&path).open_format().expect("replayed once, it opens");
        assert!(contents(&*again) == replayed);
    }
    // A replay may have made it very long.
    std::fs::remove_file(&path).expect("a file");
}
