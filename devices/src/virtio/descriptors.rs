//! An iterator over the descriptors of a chain (VIRTIO 1.2, 2.7.5).
//!
//! It yields the same descriptors as `virtio_queue::DescriptorChain`, which the tests compare it with. A table is translated
//! once, and a descriptor is read by two loads. A read or write has at least three descriptors, so this is much of its cost.

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

use crate::dma::{Span, Spans};

/// Bytes of a descriptor.
pub(super) const SIZE: u64 = size_of::<Descriptor>() as u64;

/// Flags of a descriptor: there is a next one, the device writes to it, it is a table of descriptors.
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// A chain that the guest made available.
#[derive(Debug)]
pub struct DescriptorChain<'a, M> {
    memory: &'a M,
    head: u16,
    /// Guest-physical address of the table.
    table: u64,
    /// The table in host memory, if it is within one region.
    span: Option<Span<'a>>,
    entries: u16,
    next: u16,
    /// Maximum number of descriptors that may follow. More descriptors than entries mean a loop.
    left: u16,
    /// Sum of the descriptors' lengths so far.
    bytes: u32,
    indirect: bool,
}

impl<'a, M: Spans> DescriptorChain<'a, M> {
    /// The chain that begins with descriptor `head` of a queue's table.
    pub(super) fn new(memory: &'a M, table: u64, entries: u16, head: u16) -> Self {
        let span = memory.span(table, SIZE * u64::from(entries));
        Self::within(memory, (table, span), entries, head)
    }

    /// The same for a table that was translated already.
    #[inline(always)]
    pub(super) const fn within(
        memory: &'a M,
        (table, span): (u64, Option<Span<'a>>),
        entries: u16,
        head: u16,
    ) -> Self {
        Self { memory, head, table, span, entries, next: head, left: entries, bytes: 0, indirect: false }
    }

    /// The indirect table and the number of its descriptors, if the chain is an indirect table inside one region.
    #[inline(always)]
    pub(super) fn table(&self) -> Option<(Span<'a>, u16)> {
        let head = if self.head < self.entries { self.read(self.head)? } else { return None };
        let len = u64::from(head.len());
        if !head.refers_to_indirect_table() || !len.is_multiple_of(SIZE) {
            return None;
        }
        Some((self.memory.span(head.addr().0, len)?, u16::try_from(len / SIZE).ok()?))
    }

    /// Index of its first descriptor, which identifies the chain.
    #[inline(always)]
    pub(super) const fn head_index(&self) -> u16 {
        self.head
    }

    #[inline(always)]
    fn read(&self, index: u16) -> Option<Descriptor> {
        let offset = u64::from(index) * SIZE;
        match self.span.and_then(|span| span.load_u64s(offset as usize)) {
            Some([address, rest]) => {
                let (len, flags, next) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
                Some(Descriptor::new(address, len, flags, next))
            }
            None => self.read_slowly(offset),
        }
    }

    /// An indirect table that is not aligned (it need not be), or a table across regions.
    #[cold]
    fn read_slowly(&self, offset: u64) -> Option<Descriptor> {
        self.memory.read_obj(GuestAddress(self.table.checked_add(offset)?)).ok()
    }
}

impl<M: Spans> Iterator for DescriptorChain<'_, M> {
    type Item = Descriptor;

    #[inline(always)]
    fn next(&mut self) -> Option<Descriptor> {
        loop {
            if self.left == 0 || self.next >= self.entries {
                return None;
            }
            let descriptor = self.read(self.next)?;
            if descriptor.refers_to_indirect_table() {
                let (table, len) = (descriptor.addr().0, u64::from(descriptor.len()));
                if self.indirect || !len.is_multiple_of(SIZE) {
                    return None;
                }
                self.entries = u16::try_from(len / SIZE).ok()?;
                (self.table, self.span) = (table, self.memory.span(table, len));
                (self.next, self.left, self.indirect) = (0, self.entries, true);
                continue;
            }
            self.bytes = self.bytes.checked_add(descriptor.len())?;
            self.next = descriptor.next();
            self.left = if descriptor.has_next() { self.left - 1 } else { 0 };
            return Some(descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::{Queue, QueueT};
    use vm_memory::GuestMemoryMmap;

    use super::*;
    use crate::dma::View;
    use crate::testing::Random;

    const ENTRIES: u16 = 8;
    const RINGS: u64 = 0x4000;

    /// A number that is likely to be an index, flags, an address of a table, or any.
    fn word(random: &mut Random) -> u64 {
        match random.below(6) {
            0 => random.below(10),
            1 | 2 => random.below(8),
            3 => random.below(0x100),
            4 => 0x1000 - 0x40 + random.below(0x80),
            _ => random.next(),
        }
    }

    #[test]
    fn chains_are_as_virtio_queue_has_them() {
        let mut random = Random::new(0x51ed_270b);
        // Two regions that touch.
        let ranges = [(0, 0x1000), (0x1000, 0x8000)].map(|(at, len)| (GuestAddress(at), len));
        let memory = GuestMemoryMmap::<()>::from_ranges(&ranges).unwrap();
        let (mut descriptors, mut indirect) = (0, 0);
        for _ in 0..20_000 {
            for at in (0..0x1080).step_by(16) {
                if random.below(2) == 0 {
                    continue;
                }
                let flags = [0, 1, 1, 1, 3, 4, 5, random.below(8)][random.below(8) as usize] as u16;
                let address = if flags & 4 != 0 { random.below(0x1100) & !7 } else { word(&mut random) };
                let len = if flags & 4 != 0 { 16 * random.below(20) } else { word(&mut random) >> 8 };
                let next = word(&mut random);
                let descriptor = Descriptor::new(address, len as u32, flags, next as u16);
                memory.write_obj(RawDescriptor::from(descriptor), GuestAddress(at)).unwrap();
            }
            let table = 16 * random.below(0x110);
            let head = random.below(10) as u16;
            let mut queue = Queue::new(ENTRIES).unwrap();
            queue.set_desc_table_address(Some(table as u32), Some(0));
            queue.set_avail_ring_address(Some(RINGS as u32), Some(0));
            queue.set_used_ring_address(Some(RINGS as u32 + 0x1000), Some(0));
            queue.set_ready(true);
            memory.write_obj(1u16, GuestAddress(RINGS + 2)).unwrap();
            memory.write_obj(head, GuestAddress(RINGS + 4)).unwrap();
            let theirs: Vec<_> = queue.pop_descriptor_chain(&memory).unwrap().collect();
            let ours: Vec<_> = DescriptorChain::new(&View::new(&memory), table, ENTRIES, head).collect();
            let plain = |descriptors: &[Descriptor]| -> Vec<_> {
                descriptors.iter().map(|d| (d.addr(), d.len(), d.flags(), d.next())).collect()
            };
            assert_eq!(plain(&ours), plain(&theirs));
            descriptors += ours.len();
            indirect += usize::from(ours.len() > usize::from(ENTRIES));
        }
        assert!(descriptors > 20_000 && indirect > 20, "{descriptors} descriptors, {indirect} long tables");
    }
}
