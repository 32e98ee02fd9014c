//! Partition tables, and images inside a partition of another disk: a disk with any MBR and GPT, opened as `FILE//N`.
//!
//! The first bytes say which partition is opened, and which tables the disk has before the input changes its sectors. With the highest
//! bit of the first byte set, the checksums of the GPT are made valid afterwards.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use paradisk_disk_formats::image::{Content, Runs};
use paradisk_disk_formats::{FormatName, Image, OpenOptions, Repair, Shrink, vhd};
use tempfile::TempDir;

use crate::common::folder::temporary;
use crate::common::input::Input;

const SECTOR: u64 = 512;
const SECTORS: u64 = 4096;
/// First sector of a partition that all tables have. A VHD begins there.
const PARTITION: u64 = 2048;

struct Rig {
    folder: TempDir,
    vhd: Vec<u8>,
}

fn rig() -> Rig {
    let folder = temporary();
    let path = folder.path().join("inner.vhd");
    vhd::create_dynamic(&path, 1 << 20, Some(4096)).expect("an image");
    let vhd = std::fs::read(&path).expect("a file");
    Rig { folder, vhd }
}

fn entry(kind: u8, first: u32, count: u32) -> [u8; 16] {
    let mut entry = [0; 16];
    entry[4] = kind;
    entry[8..12].copy_from_slice(&first.to_le_bytes());
    entry[12..].copy_from_slice(&count.to_le_bytes());
    entry
}

fn mbr(entries: &[[u8; 16]]) -> Vec<u8> {
    let mut sector = vec![0; 512];
    sector[446..446 + 16 * entries.len()].copy_from_slice(&entries.concat());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// A GPT of four entries, the first of them in use: header and entries.
fn gpt(own: u64, entries: u64) -> (Vec<u8>, Vec<u8>) {
    let mut header = vec![0; 512];
    header[..8].copy_from_slice(b"EFI PART");
    (header[10], header[12], header[80], header[84]) = (1, 92, 4, 128);
    for (at, value) in [(24, own), (32, SECTORS - own), (40, 34), (48, SECTORS - 34), (72, entries)] {
        header[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
    }
    let mut table = vec![0; 512];
    table[..16].fill(0xa5);
    table[32..40].copy_from_slice(&PARTITION.to_le_bytes());
    table[40..48].copy_from_slice(&(SECTORS - 40).to_le_bytes());
    (header, table)
}

/// CRC-32 of ISO 3309.
fn crc32(bytes: &[u8]) -> [u8; 4] {
    let step = |crc: u32, _| crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    (!bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))).to_le_bytes()
}

/// Good checksums for the GPT whose header is in this sector.
fn seal(file: &std::fs::File, sector: u64) {
    let mut header = [0; 512];
    if file.read_exact_at(&mut header, sector * SECTOR).is_err() {
        return;
    }
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (at, len) = (u64::from(word(72)) * SECTOR, word(80).saturating_mul(word(84)));
    let mut entries = vec![0; len.min(1 << 16) as usize];
    let _ = file.read_exact_at(&mut entries, at);
    header[88..92].copy_from_slice(&crc32(&entries));
    let size = (u32::from_le_bytes([header[12], header[13], header[14], header[15]]) as usize).min(512);
    header[16..20].fill(0);
    let crc = crc32(&header[..size]);
    header[16..20].copy_from_slice(&crc);
    file.write_all_at(&header, sector * SECTOR).expect("a write");
}

thread_local! {
    // Not in a static: its folder is removed when the thread ends.
    static RIG: Rig = rig();
}

pub(crate) fn run(data: &[u8]) {
    RIG.with(|rig| run_with(rig, data));
}

fn run_with(rig: &Rig, data: &[u8]) {
    let mut input = Input(data);
    let (how, number) = (input.u8(), input.u8());
    let path = rig.folder.path().join("disk.raw");
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.expect("a file");
    file.set_len(SECTORS * SECTOR).expect("a file");
    let put = |sector: u64, bytes: &[u8]| {
        let at = (sector * SECTOR).min(SECTORS * SECTOR);
        let len = (bytes.len() as u64).min(SECTORS * SECTOR - at) as usize;
        file.write_all_at(&bytes[..len], at).expect("a write");
    };
    if how & 1 == 0 {
        put(0, &mbr(&[entry(0xee, 1, u32::MAX)]));
        for (own, entries) in [(1, 2), (SECTORS - 1, SECTORS - 33)] {
            let (header, table) = gpt(own, entries);
            put(own, &header);
            put(entries, &table);
        }
    } else {
        let inner = (SECTORS - PARTITION) as u32 - 8;
        put(0, &mbr(&[entry(0x83, PARTITION as u32, inner), entry(5, 100, 1900)]));
        put(100, &mbr(&[entry(0x83, 8, 90), entry(5, 200, 300)]));
        put(300, &mbr(&[entry(0x83, 8, 90), entry(5, 600, 300)]));
        put(700, &mbr(&[entry(0x83, 8, 90)]));
    }
    put(PARTITION, &rig.vhd);
    while !input.is_empty() {
        const PLACES: [u64; 12] =
            [0, 1, 2, 3, 100, 300, 700, SECTORS - 33, SECTORS - 1, PARTITION, PARTITION + 1, PARTITION + 3];
        let (place, offset, len) = (input.u8(), input.u16() % 512, input.u8() % 17);
        let sector = PLACES.get(usize::from(place)).copied().unwrap_or(u64::from(place) << 4);
        file.write_all_at(input.bytes(len.into()), sector * SECTOR + u64::from(offset)).expect("a write");
    }
    if how & 0x80 != 0 {
        seal(&file, 1);
        seal(&file, SECTORS - 1);
    }
    drop(file);
    let mut name = path.into_os_string();
    name.push(match how >> 4 & 3 {
        0 => "//".to_owned(),
        1 => format!("//{number}//"),
        _ => format!("//{number}"),
    });
    let name = PathBuf::from(name);
    let write = how & 2 != 0;
    if let Ok(image) = Image::open(&name) {
        let repair = if how & 4 == 0 { Repair::ReportOnly } else { Repair::Repair };
        let _ = image.check(repair);
        if how & 8 != 0 && image.format() != FormatName::Raw {
            // Tools that work on files only refuse.
            let _ = image.resize(u64::from(number) << 16, Shrink::Refuse);
            let _ = image.compact(|_, _| true);
        }
    }
    let options = OpenOptions { read_only: !write, ..OpenOptions::new(&name) };
    let Ok(format) = options.open_format() else { return };
    let content = Content::new(&*format);
    let mut buffer = [0; 512];
    for step in 0..8 {
        let offset = content.capacity() / 8 * step / 512 * 512;
        if offset + 512 <= content.capacity() {
            let _ = content.read_at(&mut buffer, offset);
            if write {
                let _ = content.write_at(&[0x5a; 512], offset);
            }
        }
    }
    let _ = Runs::new(content).take(64).count();
    if write {
        let _ = format.flush();
    }
}
