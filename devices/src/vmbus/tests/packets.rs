//! Packets of the guest: words with their header, bytes at offsets.

use crate::testing::transfer10;

/// The first word of a packet that wants an answer.
pub(super) const fn header(kind: u64, descriptor: u64, payload: u64) -> u64 {
    kind | (2 + descriptor) << 16 | (2 + descriptor + payload) << 32 | 1 << 48
}

/// A packet without data.
pub(super) fn in_band(transaction: u64, payload: [u64; 8]) -> Vec<u64> {
    let mut words = vec![header(6, 0, 8), transaction];
    words.extend(payload);
    words
}

/// A packet with one range of memory.
pub(super) fn with_pages(
    transaction: u64,
    payload: [u64; 8],
    offset: u64,
    bytes: u64,
    pages: &[u64],
) -> Vec<u64> {
    let mut words = vec![header(9, 2 + pages.len() as u64, 8), transaction, 0xdead_beef | 1 << 32];
    words.push(bytes | offset << 32);
    words.extend(pages);
    words.extend(payload);
    words
}

/// A storage packet with this operation and the first word of its content.
pub(super) const fn vstor(operation: u64, content: u64) -> [u64; 8] {
    [operation | 1 << 32, content << 32, 0, 0, 0, 0, 0, 0]
}

/// A SCSI request; `direction` 0: to the disk, 1: from it, 2: no data.
pub(super) fn srb(lun: u8, cdb: &[u8], direction: u8, len: u32) -> [u64; 8] {
    let mut bytes = [0u8; 64];
    bytes[0] = 3;
    bytes[4] = 1;
    bytes[12] = 0x34;
    bytes[19] = lun;
    bytes[20] = cdb.len() as u8;
    bytes[21] = 20;
    bytes[22] = direction;
    bytes[24..28].copy_from_slice(&len.to_le_bytes());
    bytes[28..28 + cdb.len()].copy_from_slice(cdb);
    std::array::from_fn(|word| u64::from_le_bytes(bytes[8 * word..8 * word + 8].try_into().unwrap()))
}

/// READ(10) or WRITE(10).
pub(super) fn transfer(write: bool, lun: u8, lba: u32, sectors: u16) -> [u64; 8] {
    srb(lun, &transfer10(write, lba, sectors), u8::from(!write), u32::from(sectors) * 512)
}

/// Packet of a transfer to or from memory in one piece.
pub(super) fn transfer_at(transaction: u64, payload: [u64; 8], address: u64) -> Vec<u64> {
    let (bytes, offset) = (payload[3] & 0xffff_ffff, address % 4096);
    let pages: Vec<u64> = (0..(offset + bytes).div_ceil(4096)).map(|page| address / 4096 + page).collect();
    with_pages(transaction, payload, offset, bytes, &pages)
}
