//! A descriptor chain as a list of segments to read and a list of segments to write. Devices must not depend on how a request is
//! divided into descriptors (VIRTIO 1.2, 2.7.4).

use std::slice;

use paradisk_disk_formats::IoBuf;
use virtio_queue::desc::split::Descriptor;
use vm_memory::GuestAddressSpace;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::descriptors::{self, DescriptorChain, INDIRECT, NEXT, WRITE};
use super::queue::Broken;
use crate::dma::{Access, Dma, DmaError, Span, Spans};

/// Maximum number of descriptors of a chain. Drivers stay below the queue's size.
const MAX_DESCRIPTORS: usize = 1024;

/// A run of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) len: u64,
}

/// Translate segments to host memory: the number of bytes, and the buffers. A single buffer is stored in `one` instead of `list`:
/// an element of the list would be loaded right after it was stored in smaller pieces, which stalls the processor.
#[inline(always)]
pub(super) fn map<'a, A: GuestAddressSpace>(
    segments: impl Iterator<Item = Segment> + Clone,
    access: Access,
    dma: &mut Dma<A>,
    one: &'a mut IoBuf,
    list: &'a mut Vec<IoBuf>,
) -> Result<(u64, &'a [IoBuf]), DmaError> {
    let mut rest = segments.clone();
    if let (Some(segment), None) = (rest.next(), rest.next())
        && let Some(piece) = dma.piece(segment.address, segment.len)
    {
        *one = piece;
        return Ok((segment.len, slice::from_ref(one)));
    }
    map_list(segments, access, dma, list)
}

#[inline(never)]
fn map_list<'a, A: GuestAddressSpace>(
    segments: impl Iterator<Item = Segment>,
    access: Access,
    dma: &mut Dma<A>,
    list: &'a mut Vec<IoBuf>,
) -> Result<(u64, &'a [IoBuf]), DmaError> {
    let mut len = 0;
    list.clear();
    for segment in segments {
        dma.translate(segment.address, segment.len, access, list)?;
        len += segment.len;
    }
    Ok((len, list))
}

/// A chain. Reused for each request, to reuse its allocations.
#[derive(Debug, Default)]
pub(super) struct Chain {
    readable: Vec<Segment>,
    /// Number of segments of `readable` that were consumed.
    taken: usize,
    pub(super) writable: Vec<Segment>,
    /// The chain has an end, but also an empty descriptor, or a readable one after a writable one.
    pub(super) malformed: bool,
}

impl Chain {
    /// Collect a chain. Always inlined: this is much of a request's cost.
    ///
    /// # Errors
    /// [`Broken`] if it has no end: it loops, leaves its table, or is too long.
    #[inline(always)]
    pub(super) fn collect<M: Spans>(&mut self, descriptors: DescriptorChain<'_, M>) -> Result<(), Broken> {
        if let Some((table, count)) = descriptors.table()
            && self.collect_table(table, count)
        {
            return Ok(());
        }
        self.walk(descriptors)
    }

    /// Collect an indirect table whose descriptors follow each other in order, as drivers write them. False: they do not, or the
    /// table is not valid; [`walk`](Self::walk) decides.
    #[inline(always)]
    fn collect_table(&mut self, table: Span<'_>, count: u16) -> bool {
        self.clear();
        let mut bytes = 0;
        for index in 0..count.min(MAX_DESCRIPTORS as u16) {
            let Some([address, rest]) = table.load_u64s(descriptors::SIZE as usize * usize::from(index))
            else {
                return false;
            };
            let (len, flags, next) = (rest & 0xffff_ffff, (rest >> 32) as u16, (rest >> 48) as u16);
            let is_writable = flags & WRITE != 0;
            if flags & INDIRECT != 0 {
                return false;
            }
            bytes += len;
            self.add(Segment { address, len }, is_writable);
            if flags & NEXT == 0 {
                self.end(is_writable);
                return u32::try_from(bytes).is_ok();
            }
            if next != index + 1 {
                return false;
            }
        }
        false
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
        self.taken = 0;
        self.malformed = false;
    }

    #[inline(always)]
    fn add(&mut self, segment: Segment, is_writable: bool) {
        self.malformed |= segment.len == 0;
        if is_writable {
            self.writable.push(segment);
        } else {
            self.malformed |= !self.writable.is_empty();
            self.readable.push(segment);
        }
    }

    #[inline(always)]
    fn end(&mut self, ends_writable: bool) {
        if !ends_writable {
            // The last descriptor is readable: there is no place for a status byte.
            self.writable.clear();
        }
    }

    /// Walk a chain, from one descriptor to the next.
    #[inline(always)]
    fn walk(&mut self, descriptors: impl Iterator<Item = Descriptor>) -> Result<(), Broken> {
        self.clear();
        let (mut complete, mut ends_writable) = (false, false);
        let mut count = 0;
        #[expect(clippy::explicit_counter_loop, reason = "the `next` of an adapter would not be inlined")]
        for descriptor in descriptors {
            if count >= MAX_DESCRIPTORS {
                return Err(Broken);
            }
            count += 1;
            // The iterator also ends at an error. The chain is complete if its last descriptor has no successor.
            complete = !descriptor.has_next();
            ends_writable = descriptor.is_write_only();
            self.add(Segment { address: descriptor.addr().0, len: descriptor.len().into() }, ends_writable);
        }
        self.end(ends_writable);
        if complete { Ok(()) } else { Err(Broken) }
    }

    /// The segments that remain to be read.
    #[inline]
    pub(super) fn readable(&self) -> &[Segment] {
        self.readable.get(self.taken..).unwrap_or_default()
    }

    /// Take a structure from the start of the readable segments. `None`: they are too short.
    #[inline(never)]
    pub(super) fn take_header<T, A>(&mut self, dma: &mut Dma<A>) -> Option<T>
    where
        T: FromBytes + IntoBytes,
        A: GuestAddressSpace,
    {
        let mut header = T::new_zeroed();
        self.take_bytes(header.as_mut_bytes(), dma)?;
        Some(header)
    }

    /// Take little-endian qwords from the start of the readable segments. `None`: they are too short.
    #[inline(always)]
    pub(super) fn take_qwords<const N: usize, A: GuestAddressSpace>(
        &mut self,
        dma: &mut Dma<A>,
    ) -> Option<[u64; N]> {
        let len = 8 * N as u64;
        let segment = self.readable.get(self.taken)?;
        if segment.len < len {
            let qwords: [U64; N] = self.take_header(dma)?;
            return Some(qwords.map(U64::get));
        }
        let qwords = dma.read_qwords(segment.address).ok()?;
        self.take_from_segment(len);
        Some(qwords)
    }

    /// Take bytes from the start of the readable segments, by one copy if they are in the first segment. `None`: the segments are too
    /// short.
    #[inline(always)]
    pub(super) fn take_array<const N: usize, A: GuestAddressSpace>(
        &mut self,
        bytes: &mut [u8; N],
        dma: &mut Dma<A>,
    ) -> Option<()> {
        let segment = self.readable.get(self.taken)?;
        if segment.len < N as u64 {
            return self.take_bytes(bytes, dma);
        }
        dma.read_bytes(segment.address, bytes).ok()?;
        self.take_from_segment(N as u64);
        Some(())
    }

    /// Consume bytes of the first readable segment, which has at least as many. Most headers fill their segment. Such a segment is skipped
    /// and not changed: a change would load the segment whole right after its halves were stored, which stalls the processor.
    #[inline(always)]
    fn take_from_segment(&mut self, len: u64) {
        let Some(segment) = self.readable.get_mut(self.taken) else { return };
        if segment.len == len {
            self.taken += 1;
        } else {
            segment.len -= len;
            segment.address = segment.address.wrapping_add(len);
        }
    }

    /// Take bytes from the start of the readable segments. `None`: they are too short.
    #[inline(never)]
    pub(super) fn take_bytes<A: GuestAddressSpace>(
        &mut self,
        bytes: &mut [u8],
        dma: &mut Dma<A>,
    ) -> Option<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let segment = self.readable.get_mut(self.taken)?;
            let len = segment.len.min(rest.len() as u64);
            let (piece, after) = rest.split_at_mut(len as usize);
            dma.read_bytes(segment.address, piece).ok()?;
            rest = after;
            segment.len -= len;
            segment.address = segment.address.wrapping_add(len);
            if segment.len == 0 {
                self.taken += 1;
            }
        }
        Some(())
    }

    /// Take the last writable byte: its guest-physical address. `None`: there is none.
    #[inline]
    pub(super) fn take_last_byte(&mut self) -> Option<u64> {
        let segment = self.writable.last_mut()?;
        let left = segment.len.checked_sub(1)?;
        let address = segment.address.checked_add(left);
        if left == 0 {
            self.writable.pop();
        } else {
            segment.len = left;
        }
        address
    }
}

#[cfg(test)]
mod tests {
    use virtio_queue::desc::RawDescriptor;
    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

    use super::*;
    use crate::dma::View;
    use crate::testing::Random;

    const TABLE: u64 = 0x1000;
    /// Where the indirect table is: at the end of memory, so that long ones leave it.
    const INDIRECT_TABLE: u64 = 0x2000 - 16 * 6;

    #[test]
    fn a_table_in_order_is_the_chain_that_a_walk_finds() {
        let mut random = Random::new(0x7ab1_e0de);
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x2000)]).unwrap();
        let write = |at: u64, descriptor: Descriptor| {
            memory.write_obj(RawDescriptor::from(descriptor), GuestAddress(at)).unwrap();
        };
        let (mut fast, mut in_order) = (Chain::default(), 0);
        for _ in 0..20_000 {
            for index in 0..6 {
                let flags =
                    [NEXT, NEXT, NEXT | WRITE, WRITE, 0, random.below(8) as u16][random.below(6) as usize];
                let next = if random.below(8) == 0 { random.below(8) } else { index + 1 };
                let len = if random.below(16) == 0 { u64::from(u32::MAX) } else { random.below(100) };
                write(
                    INDIRECT_TABLE + 16 * index,
                    Descriptor::new(random.next(), len as u32, flags, next as u16),
                );
            }
            let entries = random.below(8);
            let flags = random.pick(&[INDIRECT, INDIRECT, INDIRECT | NEXT, WRITE]);
            let address = INDIRECT_TABLE + 8 * (random.below(16) / 15);
            write(TABLE, Descriptor::new(address, (16 * entries + random.below(16) / 15) as u32, flags, 0));
            let view = View::new(&memory);
            let head = random.below(5) as u16 / 4 * 4;
            let chain = || DescriptorChain::new(&view, TABLE, 4, head);
            let mut slow = Chain::default();
            let walked = slow.walk(chain());
            assert_eq!(fast.collect(chain()), walked);
            if walked.is_ok() {
                assert_eq!(format!("{fast:?}"), format!("{slow:?}"));
                in_order +=
                    u32::from(chain().table().is_some_and(|(table, count)| fast.collect_table(table, count)));
            }
        }
        assert!(in_order > 2000, "{in_order} tables in order");
    }
}
