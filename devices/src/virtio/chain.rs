//! A descriptor chain as the guest meant it: bytes to read, then bytes to write, however they are cut into descriptors
//! (VIRTIO 1.2, 2.7.4).

use std::slice;

use paradisk_disk_formats::IoBuf;
use virtio_queue::desc::split::Descriptor;
use vm_memory::GuestAddressSpace;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::descriptors::{self, DescriptorChain, INDIRECT, NEXT, WRITE};
use super::queue::Broken;
use crate::dma::{Access, Dma, DmaError, Span, Spans};

/// Descriptors of a chain at the most. Drivers stay below the queue's size.
const MAX_DESCRIPTORS: usize = 1024;

/// A run of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) len: u64,
}

/// Host memory of segments: their bytes, and the buffers. Where it is one buffer it is not put into a list, but into `one`: to
/// hand a list on would load it right after it was stored in smaller pieces, which stalls the processor.
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

/// A chain. Kept, so that its memory is.
#[derive(Debug, Default)]
pub(super) struct Chain {
    readable: Vec<Segment>,
    /// Segments of `readable` that are used up.
    taken: usize,
    pub(super) writable: Vec<Segment>,
    /// It can be walked to its end, but is not as a chain is to be: it has a descriptor without bytes, or one to
    /// read after one to write.
    pub(super) malformed: bool,
}

impl Chain {
    /// Collect a chain. Always inlined: this is much of what a request costs.
    ///
    /// # Errors
    /// [`Broken`] where it has no end: it loops, leaves its table, or is longer than a chain may be.
    #[inline(always)]
    pub(super) fn collect<M: Spans>(&mut self, descriptors: DescriptorChain<'_, M>) -> Result<(), Broken> {
        if let Some((table, count)) = descriptors.table()
            && self.collect_table(table, count)
        {
            return Ok(());
        }
        self.walk(descriptors)
    }

    /// Collect an indirect table whose descriptors are in the order of the chain, as drivers write it: no index is checked then. False: it is
    /// another, or is not as it has to be; [`walk`](Self::walk) tells.
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
            // Out of order, or nothing to write anyway: the last byte is not one to write.
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
            // The iterator just ends where it cannot go on. It has come to the end where no next one was promised.
            complete = !descriptor.has_next();
            ends_writable = descriptor.is_write_only();
            self.add(Segment { address: descriptor.addr().0, len: descriptor.len().into() }, ends_writable);
        }
        self.end(ends_writable);
        if complete { Ok(()) } else { Err(Broken) }
    }

    /// What is left to read.
    #[inline]
    pub(super) fn readable(&self) -> &[Segment] {
        self.readable.get(self.taken..).unwrap_or_default()
    }

    /// Take a structure from the start of what is to be read, however it is cut. `None`: it is not all there.
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

    /// Take little-endian qwords from the start of what is to be read. `None`: they are not all there.
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

    /// Take bytes from the start of what is to be read, in one copy where they lie in the first segment. `None`: they are not all
    /// there.
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

    /// So many bytes of the first segment to be read are taken; it has as many. Most headers are all of their segment: that is only
    /// compared, for to change it would load it whole right after its halves were stored, which stalls the processor.
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

    /// Take bytes from the start of what is to be read. `None`: they are not all there.
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

    /// Take the last byte to write. `None`: there is nothing to write.
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
        let mut random = Random(0x7ab1_e0de);
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
            let flags = [INDIRECT, INDIRECT, INDIRECT | NEXT, WRITE][random.below(4) as usize];
            let address = INDIRECT_TABLE + 8 * (random.below(16) / 15);
            write(TABLE, Descriptor::new(address, (16 * entries + random.below(16) / 15) as u32, flags, 0));
            let view = View::new(&memory);
            let chain = || DescriptorChain::new(&view, TABLE, 4, (random.0 % 5) as u16 / 4 * 4);
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
