//! Parses a packet that was copied out of the guest's ring.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::spec::{PacketHeader, VM_PKT_DATA_USING_GPA_DIRECT, VMBUS_DATA_PACKET_FLAG_COMPLETION_REQUESTED};
use crate::dma::PAGE_SIZE;

/// Bytes of a packet's header.
pub(super) const HEADER: usize = size_of::<PacketHeader>();
/// Maximum length of a packet in bytes, without its trailer. A request with the largest transfer that the controller reports to guests has
/// about 600.
pub(super) const MAX_PACKET: usize = 8192;

/// The first word of a packet: type, where the payload begins, length, flags ([`PacketHeader`]).
#[derive(Clone, Copy)]
pub(super) struct Head(u64);

/// A packet with a checked header: header, descriptor and payload lie inside the packet.
#[derive(Clone, Copy)]
pub(super) struct Packet<'a> {
    words: &'a [U64],
    head: Head,
    transaction: U64,
    /// Words before the payload.
    offset: usize,
}

/// The packet's header or content is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The guest memory of a packet: one range of pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages<'a> {
    /// Offset in the first page, below 4,096.
    pub(super) offset: u32,
    /// Bytes of the range; the pages cover it.
    pub(super) bytes: u32,
    /// Page numbers.
    pub(super) numbers: &'a [U64],
}

impl Head {
    pub(super) const fn new(word: U64) -> Self {
        Self(word.get())
    }

    const fn kind(self) -> u16 {
        self.0 as u16
    }

    /// Words before the payload.
    const fn offset(self) -> usize {
        (self.0 >> 16) as u16 as usize
    }

    /// Words without the trailer.
    const fn len(self) -> usize {
        (self.0 >> 32) as u16 as usize
    }

    const fn flags(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Length of the packet in words, if the packet and its trailer fit into `available` bytes of the ring.
    #[inline(always)]
    pub(super) const fn checked_len(self, available: u32) -> Result<usize, Malformed> {
        let (offset, len) = (self.offset(), self.len());
        // With the trailer.
        let fits = len <= MAX_PACKET / 8 && 8 * len + 8 <= available as usize;
        if offset >= HEADER / 8 && offset <= len && fits { Ok(len) } else { Err(Malformed) }
    }
}

impl<'a> Packet<'a> {
    /// Parse a packet's words, which are as many as its [length](Head::checked_len).
    #[inline(always)]
    pub(super) const fn new(words: &'a [U64]) -> Result<Self, Malformed> {
        let &[first, transaction, ..] = words else { return Err(Malformed) };
        let head = Head::new(first);
        let offset = head.offset();
        if offset < HEADER / 8 || offset > words.len() {
            return Err(Malformed);
        }
        Ok(Self { words, head, transaction, offset })
    }

    pub(super) const fn words(&self) -> &'a [U64] {
        self.words
    }

    pub(super) const fn kind(&self) -> u16 {
        self.head.kind()
    }

    /// The transaction ID, which the answer repeats.
    pub(super) const fn transaction(&self) -> U64 {
        self.transaction
    }

    pub(super) const fn wants_completion(&self) -> bool {
        self.head.flags() & VMBUS_DATA_PACKET_FLAG_COMPLETION_REQUESTED != 0
    }

    /// The structure at the start of the payload.
    #[inline(always)]
    pub(super) fn payload<T: FromBytes + Immutable + KnownLayout + Unaligned>(
        &self,
    ) -> Result<&'a T, Malformed> {
        let payload = self.words.get(self.offset..).unwrap_or_default().as_bytes();
        T::ref_from_prefix(payload).map(|(value, _)| value).map_err(|_| Malformed)
    }

    /// The guest memory of the packet; `None`: it has none.
    #[inline(always)]
    pub(super) fn pages(&self) -> Result<Option<Pages<'a>>, Malformed> {
        if self.kind() != VM_PKT_DATA_USING_GPA_DIRECT {
            return Ok(None);
        }
        let descriptor = self.words.get(HEADER / 8..self.offset).unwrap_or_default();
        // The first dword is reserved; its value is ignored.
        let (first, ranges) = descriptor.split_first().ok_or(Malformed)?;
        match (first.get() >> 32, ranges) {
            (0, _) => Ok(None),
            (1, [range, numbers @ ..]) => {
                let (bytes, offset) = (range.get() as u32, (range.get() >> 32) as u32);
                let end = u64::from(bytes) + u64::from(offset);
                let count = end.div_ceil(PAGE_SIZE) as usize;
                if u64::from(offset) >= PAGE_SIZE {
                    return Err(Malformed);
                }
                let numbers = numbers.get(..count).ok_or(Malformed)?;
                Ok(Some(Pages { offset, bytes, numbers }))
            }
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<U64> {
        words.iter().map(|word| U64::new(*word)).collect()
    }

    /// The first word of a header.
    const fn header(kind: u64, offset: u64, len: u64) -> u64 {
        kind | offset << 16 | len << 32 | 1 << 48
    }

    #[test]
    fn the_length_of_a_packet_lies_inside_the_ring() {
        let of = |offset, len, available| Head::new(U64::new(header(6, offset, len))).checked_len(available);
        assert_eq!(of(2, 10, 88), Ok(10));
        assert_eq!(of(2, 10, 87), Err(Malformed), "without its trailer");
        assert_eq!(of(2, 2, 24), Ok(2));
        assert_eq!(of(1, 10, 4096), Err(Malformed), "the payload begins in the header");
        assert_eq!(of(11, 10, 4096), Err(Malformed), "or behind the end");
        assert_eq!(of(2, 0, 4096), Err(Malformed));
        assert_eq!(of(2, 1024, u32::MAX), Ok(1024));
        assert_eq!(of(2, 1025, u32::MAX), Err(Malformed));
        assert_eq!(of(0xffff, 0xffff, u32::MAX), Err(Malformed));
    }

    #[test]
    fn memory_of_a_packet_is_one_range() {
        let garbage = 0xdead_beef;
        let pages = |descriptor: &[u64]| {
            let mut all = vec![header(9, 2 + descriptor.len() as u64, 2 + descriptor.len() as u64), 7];
            all.extend(descriptor);
            let all = words(&all);
            let packet = Packet::new(&all).unwrap();
            let found = packet.pages().map(|found| {
                found
                    .map(|pages| (pages.offset, pages.bytes, pages.numbers.iter().map(|n| n.get()).collect()))
            });
            assert_eq!((packet.transaction().get(), packet.wants_completion()), (7, true));
            found
        };
        let one = garbage | 1 << 32;
        assert_eq!(pages(&[garbage]), Ok(None::<(u32, u32, Vec<u64>)>));
        assert_eq!(pages(&[one, 4096, 5]), Ok(Some((0, 4096, vec![5]))));
        assert_eq!(pages(&[one, 4096 | 512 << 32, 5, 9]), Ok(Some((512, 4096, vec![5, 9]))));
        assert_eq!(pages(&[one, 4096, 5, 6, 7]), Ok(Some((0, 4096, vec![5]))), "too many are ignored");
        assert_eq!(pages(&[one, 0]), Ok(Some((0, 0, vec![]))));
        for bad in [
            &[][..],
            &[one],
            &[one, 4096],
            &[one, 4097, 5],
            &[one, 4096 | 1 << 32, 5],
            &[one, 4096 | 4096 << 32, 5, 6],
            &[one, u64::MAX, 5, 6],
            &[one, 0xffff_ffff, 5, 6],
            &[2 << 32, 512, 5, 512, 6],
            &[u64::MAX, 512, 5],
        ] {
            assert_eq!(pages(bad), Err(Malformed), "{bad:x?}");
        }
    }

    #[test]
    fn a_payload_has_all_of_its_structure() {
        let all = words(&[header(6, 2, 4), 7, 1, 2]);
        let packet = Packet::new(&all).unwrap();
        assert_eq!(packet.payload::<[U64; 2]>().unwrap().map(U64::get), [1, 2]);
        assert!(packet.payload::<[U64; 3]>().is_err());
        assert!(packet.pages().unwrap().is_none());
    }
}
