//! The data of IDENTIFY DEVICE (ATA/ATAPI-7, 6.17) and of SMART (6.54).

use paradisk_disk_formats::DiskInfo;

use super::settings::{Settings, TransferMode};
use super::spec::{BLOCK, MAX_MULTIPLE, MAX_TRIM_BLOCKS};

const MODEL: &str = "PARADISK VIRTUAL DISK";
/// Sectors that 28 bits can address.
pub(super) const LBA28_SECTORS: u64 = 0x0fff_ffff;

/// The 256 words of IDENTIFY DEVICE.
struct Words([u16; BLOCK / 2]);

impl Words {
    fn set(&mut self, word: usize, value: u16) {
        self.0[word] = value;
    }

    /// Set a number of several words, the least significant first.
    fn set_wide(&mut self, word: usize, words: usize, value: u64) {
        for index in 0..words {
            self.set(word + index, (value >> (16 * index)) as u16);
        }
    }

    /// Set text: two characters in a word, the first in the upper half. Bytes that are not printable ASCII become question marks.
    fn set_text(&mut self, word: usize, words: usize, text: &str) {
        let printable = |byte: u8| if matches!(byte, b' '..=b'~') { byte } else { b'?' };
        let mut bytes = text.bytes().map(printable).chain(std::iter::repeat(b' '));
        for index in 0..words {
            let pair = [bytes.next(), bytes.next()].map(|byte| byte.unwrap_or(b' '));
            self.set(word + index, u16::from_be_bytes(pair));
        }
    }

    /// As bytes, with the checksum in the last word: all 512 bytes add up to zero.
    fn finish(mut self) -> [u8; BLOCK] {
        self.set(255, 0x00a5);
        let mut bytes = [0; BLOCK];
        for (to, word) in bytes.chunks_exact_mut(2).zip(self.0) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        with_checksum(bytes)
    }
}

fn with_checksum(mut bytes: [u8; BLOCK]) -> [u8; BLOCK] {
    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[BLOCK - 1] = bytes[BLOCK - 1].wrapping_sub(sum);
    bytes
}

/// The data of IDENTIFY DEVICE.
pub(super) fn identify(info: &DiskInfo, settings: &Settings, serial: &str) -> [u8; BLOCK] {
    let mut words = Words([0; BLOCK / 2]);
    let sectors = info.sectors();
    let set = |bit: u16, on: bool| u16::from(on) << bit;
    // A disk, and the geometry of large disks.
    words.set(0, 0x0040);
    words.set(1, (sectors / (16 * 63)).min(16_383) as u16);
    words.set(3, 16);
    words.set(6, 63);
    words.set_text(10, 10, serial);
    words.set_text(23, 4, env!("CARGO_PKG_VERSION"));
    words.set_text(27, 20, MODEL);
    words.set(47, 0x8000 | u16::from(MAX_MULTIPLE));
    // Doubleword I/O; IORDY, LBA, DMA.
    words.set(48, 1);
    words.set(49, 0x0b00);
    words.set(50, 0x4000);
    words.set(53, 0x0007);
    // The geometry in use.
    let geometry = settings.geometry;
    let cylinders = (sectors / geometry.cylinder()).min(65_535);
    words.set_wide(54, 1, cylinders);
    words.set(55, geometry.heads.into());
    words.set(56, geometry.sectors.into());
    words.set_wide(57, 2, cylinders * geometry.cylinder());
    if settings.multiple > 0 {
        words.set(59, 0x0100 | u16::from(settings.multiple));
    }
    words.set_wide(60, 2, sectors.min(LBA28_SECTORS));
    // Transfer modes: those supported, and in the upper half the one in use.
    let (multiword, ultra) = match settings.transfer {
        TransferMode::Pio => (0, 0),
        TransferMode::Multiword(mode) => (0x0100 << mode, 0),
        TransferMode::Ultra(mode) => (0, 0x0100 << mode),
    };
    words.set(63, 0x0007 | multiword);
    words.set(64, 0x0003);
    (65..=68).for_each(|word| words.set(word, 120));
    // ATA-4 to ATA-7.
    words.set(80, 0x00f0);
    // Supported: NOP, look-ahead, write cache, SMART; FLUSH CACHE (EXT), LBA48. Words 85 to 87: which of these are enabled.
    words.set(82, 0x4061);
    words.set(83, 0x7400);
    words.set(84, 0x4000);
    let enabled = set(0, settings.smart) | set(5, settings.write_cache) | set(6, settings.look_ahead);
    words.set(85, 0x4000 | enabled);
    words.set(86, 0x3400);
    words.set(87, 0x4000);
    words.set(88, 0x0007 | ultra);
    words.set(93, 0x4001);
    words.set_wide(100, 4, sectors);
    let logical = info.logical_sector.bytes();
    let physical = (info.physical_sector / logical).max(1).ilog2() as u16;
    words.set(106, 0x4000 | set(13, physical > 0) | set(12, logical > 512) | physical & 0xf);
    if logical > 512 {
        words.set_wide(117, 2, u64::from(logical / 2));
    }
    if let Some(discard) = info.discard.filter(|_| !info.read_only) {
        words.set(69, set(14, discard.reads_zero) | set(5, discard.reads_zero));
        words.set(105, MAX_TRIM_BLOCKS);
        words.set(169, 1);
    }
    // No rotation.
    words.set(217, 1);
    words.finish()
}

/// The values or thresholds of SMART attributes. The drive has no attributes.
pub(super) fn smart_attributes() -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    bytes[0] = 0x10;
    with_checksum(bytes)
}

/// A SMART log: of errors (1) or self-tests (6), without entries.
pub(super) fn smart_log() -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    bytes[0] = 1;
    with_checksum(bytes)
}
