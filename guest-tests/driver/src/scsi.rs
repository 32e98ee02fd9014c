//! SCSI command descriptor blocks and sense data, as an initiator needs them (SPC-4, SBC-3).

/// Status GOOD.
pub const GOOD: u8 = 0x00;
/// Status CHECK CONDITION: sense data were delivered.
pub const CHECK_CONDITION: u8 = 0x02;
/// Sense key UNIT ATTENTION.
pub const UNIT_ATTENTION: u8 = 0x06;

/// A command descriptor block. It is kept as the words that drivers store: words made of bytes would be loaded right after the
/// bytes were stored, which stalls the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdb {
    words: [u64; 2],
    len: u8,
}

impl Cdb {
    const fn of(bytes: [u8; 16], len: u8) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        let (low, high) = ([a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]);
        Self { words: [u64::from_le_bytes(low), u64::from_le_bytes(high)], len }
    }

    /// From its bytes, 16 at the most.
    #[must_use]
    pub fn new(cdb: &[u8]) -> Self {
        let mut bytes = [0; 16];
        let len = cdb.len().min(16);
        bytes[..len].copy_from_slice(&cdb[..len]);
        Self::of(bytes, len as u8)
    }

    /// TEST UNIT READY.
    #[must_use]
    pub const fn test_unit_ready() -> Self {
        Self::of([0; 16], 6)
    }

    /// INQUIRY, standard data.
    #[must_use]
    pub const fn inquiry(len: u16) -> Self {
        let mut bytes = [0; 16];
        bytes[0] = 0x12;
        [bytes[3], bytes[4]] = len.to_be_bytes();
        Self::of(bytes, 6)
    }

    /// READ CAPACITY (10).
    #[must_use]
    pub const fn read_capacity10() -> Self {
        let mut bytes = [0; 16];
        bytes[0] = 0x25;
        Self::of(bytes, 10)
    }

    /// READ CAPACITY (16), by SERVICE ACTION IN (16).
    #[must_use]
    pub const fn read_capacity16(len: u32) -> Self {
        let mut bytes = [0; 16];
        bytes[0] = 0x9e;
        bytes[1] = 0x10;
        [bytes[10], bytes[11], bytes[12], bytes[13]] = len.to_be_bytes();
        Self::of(bytes, 16)
    }

    /// SYNCHRONIZE CACHE (10), the whole medium.
    #[must_use]
    pub const fn synchronize_cache() -> Self {
        let mut bytes = [0; 16];
        bytes[0] = 0x35;
        Self::of(bytes, 10)
    }

    /// READ or WRITE (6): `lba` below 2^21, `blocks` 1 to 256.
    #[must_use]
    pub const fn transfer6(write: bool, lba: u32, blocks: u16) -> Self {
        let mut bytes = [0; 16];
        let [_, high, middle, low] = lba.to_be_bytes();
        bytes[0] = if write { 0x0a } else { 0x08 };
        bytes[1] = high & 0x1f;
        bytes[2] = middle;
        bytes[3] = low;
        // 0 means 256.
        bytes[4] = blocks as u8;
        Self::of(bytes, 6)
    }

    /// READ or WRITE (10).
    #[inline(always)]
    #[must_use]
    pub const fn transfer10(write: bool, lba: u32, blocks: u16) -> Self {
        let code = if write { 0x2a } else { 0x28 };
        // The address is big-endian in bytes 2 to 5, the count in 7 and 8.
        let [high, low] = blocks.to_be_bytes();
        let first = code | (lba.swap_bytes() as u64) << 16 | (high as u64) << 56;
        Self { words: [first, low as u64], len: 10 }
    }

    /// READ or WRITE (16).
    #[must_use]
    pub const fn transfer16(write: bool, lba: u64, blocks: u32) -> Self {
        let code = if write { 0x8a } else { 0x88 };
        // The address is big-endian in bytes 2 to 9, the count in 10 to 13.
        let lba = lba.swap_bytes();
        let second = lba >> 48 | (blocks.swap_bytes() as u64) << 16;
        Self { words: [code | lba << 16, second], len: 16 }
    }

    /// READ or WRITE in the form that Linux's disk driver takes: 10 bytes while they can say it, else 16.
    #[inline(always)]
    #[must_use]
    pub const fn transfer(write: bool, lba: u64, blocks: u32) -> Self {
        if lba <= u32::MAX as u64 && blocks <= u16::MAX as u32 {
            Self::transfer10(write, lba as u32, blocks as u16)
        } else {
            Self::transfer16(write, lba, blocks)
        }
    }

    /// Bytes of the block.
    #[must_use]
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is a READ or WRITE of any length: those have a doorbell of their own on some adapters.
    #[must_use]
    pub const fn is_read_write(&self) -> bool {
        matches!(self.words[0] as u8, 0x08 | 0x0a | 0x28 | 0x2a | 0xa8 | 0xaa | 0x88 | 0x8a)
    }

    /// The 16 bytes, zeros behind the length, as two little-endian words.
    #[must_use]
    pub const fn words(&self) -> [u64; 2] {
        self.words
    }
}

/// Sense data, as far as a driver looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// Sense key.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
}

impl Sense {
    /// From fixed or descriptor format (SPC-4, 4.5); `None` where it is neither or too short.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let byte = |index: usize| bytes.get(index).copied();
        match byte(0)? & 0x7f {
            0x70 | 0x71 => Some(Self { key: byte(2)? & 15, asc: byte(12)?, ascq: byte(13)? }),
            0x72 | 0x73 => Some(Self { key: byte(1)? & 15, asc: byte(2)?, ascq: byte(3)? }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(cdb: Cdb) -> [u8; 16] {
        let [low, high] = cdb.words();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..].copy_from_slice(&high.to_le_bytes());
        bytes
    }

    #[test]
    fn transfers_take_the_short_form_while_it_can_say_it() {
        assert_eq!(
            bytes(Cdb::transfer(false, 0x0102_0304, 0x0506)),
            [0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0, 0, 0, 0, 0, 0, 0]
        );
        let far = Cdb::transfer(true, 1 << 32, 8);
        assert_eq!((far.len(), bytes(far)), (16, [0x8a, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]));
        assert_eq!(Cdb::transfer(true, 0, 0x1_0000).len(), 16);
        assert_eq!(bytes(Cdb::transfer6(true, 0x12_3456, 256))[..6], [0x0a, 0x12, 0x34, 0x56, 0, 0]);
    }

    #[test]
    fn only_reads_and_writes_ring_the_read_write_doorbell() {
        assert!(Cdb::transfer6(false, 0, 1).is_read_write() && Cdb::transfer16(true, 0, 1).is_read_write());
        assert!(!Cdb::inquiry(36).is_read_write() && !Cdb::synchronize_cache().is_read_write());
    }

    #[test]
    fn sense_in_both_formats() {
        let fixed = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 1, 0, 0, 0, 0];
        assert_eq!(Sense::parse(&fixed), Some(Sense { key: UNIT_ATTENTION, asc: 0x29, ascq: 1 }));
        assert_eq!(Sense::parse(&[0x72, 5, 0x20, 0]), Some(Sense { key: 5, asc: 0x20, ascq: 0 }));
        assert_eq!(Sense::parse(&[0x70, 0, 6]), None);
        assert_eq!(Sense::parse(&[]), None);
    }
}
