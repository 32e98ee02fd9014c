//! The two rings of a channel in guest memory: one that the guest writes, one that the host writes.
//!
//! Each ring is a control page ([`RingControl`]) and data pages. The guest can change all of them at any time. So each use of a guest index
//! is one load and a check, a packet is copied out before it is parsed, and the device's own indices are never read back from guest memory.
//! An index outside the data, or not a multiple of 8, breaks the channel ([`Broken`]).
//!
//! Both directions use the same rule for signals. The writer stores its index, then loads the reader's mask and index: it signals if the
//! mask is clear and the ring was empty. The reader stores its index, clears the mask, and loads the writer's index again. Each side has a
//! full fence between its store and its load, so at least one side sees the other's store.

use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use vm_memory::GuestAddressSpace;
use zerocopy::little_endian::U64;

use super::packet::{Head, MAX_PACKET, Packet};
use super::spec::{FEAT_PENDING_SEND_SZ, RingControl};
use crate::dma::{Dma, GuestPage, PAGE_SIZE};

const WRITE: usize = offset_of!(RingControl, write_index);
const READ: usize = offset_of!(RingControl, read_index);
const MASK: usize = offset_of!(RingControl, interrupt_mask);
const PENDING: usize = offset_of!(RingControl, pending_send_sz);
const FEATURES: usize = offset_of!(RingControl, feature_bits);

/// Bytes behind each packet: a zero dword, and the packet's offset.
const TRAILER: u32 = 8;

/// The guest has broken the rules of a ring. The ring cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("the ring's {0} index is {1:#x}")]
    Index(&'static str, u32),
    #[error("a packet at {0:#x} does not fit what the ring holds")]
    Packet(u32),
}

struct Ring<M> {
    control: GuestPage<M>,
    data: Vec<GuestPage<M>>,
    /// Bytes of the data.
    size: u32,
}

impl<M> Ring<M> {
    /// `None`: there are too few pages, or one is outside memory.
    fn new<A: GuestAddressSpace<T = M>>(dma: &mut Dma<A>, pages: &[u64]) -> Option<Self> {
        let (control, data) = pages.split_first().filter(|(_, data)| !data.is_empty())?;
        let size = u32::try_from(data.len() as u64 * PAGE_SIZE).ok()?;
        let control = dma.page(*control).ok()?;
        let data = data.iter().map(|number| dma.page(*number)).collect::<Result<_, _>>().ok()?;
        Some(Self { control, data, size })
    }

    fn index(&self, name: &'static str, offset: usize) -> Result<u32, Broken> {
        let index = self.control.load(offset, Acquire);
        if index < self.size && index.is_multiple_of(8) { Ok(index) } else { Err(Broken::Index(name, index)) }
    }

    #[inline]
    fn write_index(&self) -> Result<u32, Broken> {
        self.index("write", WRITE)
    }

    #[inline]
    fn read_index(&self) -> Result<u32, Broken> {
        self.index("read", READ)
    }

    /// The index `bytes` after another. `bytes` is below the size.
    #[inline]
    const fn advance(&self, index: u32, bytes: u32) -> u32 {
        let left = self.size - index;
        if bytes < left { index + bytes } else { bytes - left }
    }

    /// Bytes from one index to another.
    #[inline]
    const fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.size - (from - to) }
    }

    /// Call `each` with the page, the offset in it and the number of words for each piece of `words` words at an index.
    #[inline(always)]
    fn pieces(&self, mut index: u32, mut words: usize, mut each: impl FnMut(&GuestPage<M>, usize, usize)) {
        while words > 0 {
            let (number, offset) = (index / PAGE_SIZE as u32, (index % PAGE_SIZE as u32) as usize);
            let count = words.min((PAGE_SIZE as usize - offset) / 8);
            // In bounds: an index is below the size.
            each(&self.data[number as usize], offset, count);
            index = self.advance(index, count as u32 * 8);
            words -= count;
        }
    }

    /// The page and offset of `bytes` bytes at an index, if they lie in one page, as most packets do.
    #[inline(always)]
    fn whole(&self, index: u32, bytes: u32) -> Option<(&GuestPage<M>, usize)> {
        let (number, offset) = (index / PAGE_SIZE as u32, index % PAGE_SIZE as u32);
        let page = self.data.get(number as usize)?;
        (bytes <= PAGE_SIZE as u32 - offset).then_some((page, offset as usize))
    }

    #[cold]
    fn copy_out(&self, index: u32, mut to: &mut [U64]) {
        self.pieces(index, to.len(), |page, offset, count| {
            let (now, later) = std::mem::take(&mut to).split_at_mut(count);
            page.read_qwords(offset, now);
            to = later;
        });
    }

    #[cold]
    fn copy_in(&self, index: u32, mut from: &[U64]) {
        self.pieces(index, from.len(), |page, offset, count| {
            let (now, later) = from.split_at(count);
            page.write_qwords(offset, now);
            from = later;
        });
    }
}

/// Memory for one packet.
pub(super) struct PacketBuffer(Box<[U64; MAX_PACKET / 8]>);

impl Default for PacketBuffer {
    fn default() -> Self {
        Self(Box::new([U64::ZERO; MAX_PACKET / 8]))
    }
}

/// The ring that the guest writes.
pub(super) struct Incoming<M> {
    ring: Ring<M>,
    /// Where the next packet begins.
    read: u32,
    /// The read index in guest memory.
    published: u32,
    /// The guest's write index when it was last read.
    write: u32,
    masked: bool,
}

impl<M> Incoming<M> {
    fn new(ring: Ring<M>) -> Result<Self, Broken> {
        let read = ring.read_index()?;
        ring.write_index()?;
        ring.control.store(MASK, 1, Relaxed);
        Ok(Self { ring, read, published: read, write: read, masked: true })
    }

    /// Copy the next packet out. `None`: there is none.
    #[inline]
    pub(super) fn take<'a>(&mut self, buffer: &'a mut PacketBuffer) -> Result<Option<Packet<'a>>, Broken> {
        if !self.waits()? {
            return Ok(None);
        }
        let at = self.read;
        let broken = Broken::Packet(at);
        let available = self.ring.distance(at, self.write);
        // One load: the length that is checked is the length that is copied.
        let mut first = [U64::ZERO];
        let (page, offset) = self.ring.whole(at, 8).ok_or(broken)?;
        page.read_qwords(offset, &mut first);
        let len = Head::new(first[0]).checked_len(available).map_err(|_| broken)?;
        let words = buffer.0.get_mut(..len).ok_or(broken)?;
        let (head, tail) = words.split_first_mut().ok_or(broken)?;
        *head = first[0];
        if self.ring.whole(at, len as u32 * 8).is_some() {
            page.read_qwords(offset + 8, tail);
        } else {
            self.ring.copy_out(self.ring.advance(at, 8), tail);
        }
        self.read = self.ring.advance(at, len as u32 * 8 + TRAILER);
        Packet::new(words).map(Some).map_err(|_| broken)
    }

    /// Whether the ring holds a packet.
    #[inline]
    pub(super) fn waits(&mut self) -> Result<bool, Broken> {
        if self.read == self.write {
            self.write = self.ring.write_index()?;
        }
        Ok(self.read != self.write)
    }

    /// Bytes of packets in the ring; 0 if the guest's index is out of range.
    pub(super) fn waiting(&self) -> u32 {
        self.ring.write_index().map_or(0, |write| self.ring.distance(self.read, write))
    }

    /// Free the space of the packets that were taken. True: the guest waits for a signal that there is space.
    ///
    /// Packets that the guest wrote before it saw the new read index came without a signal. Call [`waits`](Self::waits) afterwards to find
    /// them.
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.read {
            return false;
        }
        let freed = self.ring.distance(self.published, self.read);
        self.published = self.read;
        self.ring.control.store(READ, self.read, Release);
        fence(SeqCst);
        let pending = self.ring.control.load(PENDING, Relaxed);
        if pending == 0 {
            return false;
        }
        let free = self.ring.size - self.waiting();
        free > pending && free.saturating_sub(freed) <= pending
    }

    /// Mask the guest's signals: the device polls the ring.
    #[inline]
    pub(super) fn mask(&mut self) {
        if !self.masked {
            self.masked = true;
            self.ring.control.store(MASK, 1, Relaxed);
        }
    }

    /// Unmask the guest's signals. [Publish](Self::publish) before, and call [`waits`](Self::waits) after: packets may have come without a
    /// signal.
    pub(super) fn unmask(&mut self) {
        if self.masked {
            self.masked = false;
            self.ring.control.store(MASK, 0, Relaxed);
            fence(SeqCst);
        }
    }
}

/// The ring that the host writes.
pub(super) struct Outgoing<M> {
    ring: Ring<M>,
    /// Where the next packet begins.
    write: u32,
    /// The write index in guest memory.
    published: u32,
    /// The guest's read index when it was last read.
    read: u32,
    /// A signal to the guest is pending. It is dropped if the guest reads the ring before.
    owed: bool,
}

impl<M> Outgoing<M> {
    fn new(ring: Ring<M>) -> Result<Self, Broken> {
        let (write, read) = (ring.write_index()?, ring.read_index()?);
        ring.control.store(PENDING, 0, Relaxed);
        let features = ring.control.load(FEATURES, Relaxed);
        ring.control.store(FEATURES, features | FEAT_PENDING_SEND_SZ, Release);
        Ok(Self { ring, write, published: write, read, owed: false })
    }

    /// Whether a packet and its trailer fit. A ring is never filled completely.
    const fn fits(&self, bytes: u32) -> bool {
        self.ring.size - self.ring.distance(self.read, self.write) > bytes
    }

    /// Put a packet in. False: there is no free space.
    #[inline(always)]
    pub(super) fn put<const WORDS: usize>(&mut self, packet: &[U64; WORDS]) -> Result<bool, Broken> {
        let bytes = size_of_val(packet) as u32 + TRAILER;
        if !self.fits(bytes) {
            self.read = self.ring.read_index()?;
            if !self.fits(bytes) {
                return Ok(false);
            }
        }
        let trailer = [U64::new(u64::from(self.write) << 32)];
        if let Some((page, offset)) = self.ring.whole(self.write, bytes) {
            page.write_qwords(offset, packet);
            page.write_qwords(offset + 8 * WORDS, &trailer);
        } else {
            self.ring.copy_in(self.write, packet);
            self.ring.copy_in(self.ring.advance(self.write, bytes - TRAILER), &trailer);
        }
        self.write = self.ring.advance(self.write, bytes);
        Ok(true)
    }

    /// Request a signal from the guest when there is space for this packet. True: there already is.
    pub(super) fn await_space(&mut self, packet: &[U64]) -> Result<bool, Broken> {
        let bytes = size_of_val(packet) as u32 + TRAILER;
        self.ring.control.store(PENDING, bytes, Relaxed);
        fence(SeqCst);
        self.read = self.ring.read_index()?;
        Ok(self.fits(bytes))
    }

    /// Cancel the request of [`await_space`](Self::await_space).
    pub(super) fn forget_space(&self) {
        self.ring.control.store(PENDING, 0, Relaxed);
    }

    /// Publish the packets that were put in. Afterwards a signal may be owed.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.published == self.write {
            return;
        }
        let before = std::mem::replace(&mut self.published, self.write);
        self.ring.control.store(WRITE, self.write, Release);
        fence(SeqCst);
        let wanted = self.ring.control.load(MASK, Acquire) == 0;
        self.owed |= wanted && self.ring.control.load(READ, Acquire) == before;
    }

    pub(super) const fn signal_owed(&self) -> bool {
        self.owed
    }

    /// Clear the owed signal. True: send it. False: none is owed, or it is not needed: the guest has masked signals or read the whole ring.
    ///
    /// A masked ring needs no signal: the mask was set after the fence in [`publish`](Self::publish), so the guest polls the ring again
    /// after it has unmasked.
    #[inline]
    pub(super) fn take_signal(&mut self) -> bool {
        std::mem::take(&mut self.owed)
            && self.ring.control.load(MASK, Acquire) == 0
            && self.ring.control.load(READ, Acquire) != self.write
    }
}

/// The rings of a channel.
pub(super) type Pair<M> = (Incoming<M>, Outgoing<M>);

/// Both rings in these pages: the guest's ring first, the host's ring from page `split` on. `None`: too few pages, pages outside memory, or
/// invalid indices.
pub(super) fn pair<A: GuestAddressSpace>(dma: &mut Dma<A>, pages: &[u64], split: u32) -> Option<Pair<A::T>> {
    let (incoming, outgoing) = pages.split_at_checked(usize::try_from(split).ok()?)?;
    let (incoming, outgoing) = (Ring::new(dma, incoming)?, Ring::new(dma, outgoing)?);
    Some((Incoming::new(incoming).ok()?, Outgoing::new(outgoing).ok()?))
}
