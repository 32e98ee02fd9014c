//! A virtqueue: its registers, its rings, and what the guest said about notifications and interrupts.

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory};

use super::depth::Depth;
use super::descriptors::DescriptorChain;
use super::spec::{VIRTIO_MSI_NO_VECTOR, VIRTQ_AVAIL_F_NO_INTERRUPT, VIRTQ_AVAIL_RING, VIRTQ_USED_RING};
use super::suppression::{Suppression, Wish};
use crate::Time;
use crate::dma::overlap;
use crate::patience::{Patience, Trust};

/// The guest's rings or chains are such that there is no going on, and nobody to tell but by the device status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl From<Error> for Broken {
    fn from(_: Error) -> Self {
        Self
    }
}

/// What happens when a device sleeps that has asked for notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Armed {
    /// Chains are there already: it had better not sleep.
    ChainsWait,
    /// The guest notifies of the next chain.
    Notifies,
    /// The guest notifies of a chain further on; the device is to look after this time.
    LookAfter(Duration),
}

/// Addresses as the registers hold them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Addresses {
    pub(super) desc: u64,
    pub(super) driver: u64,
    pub(super) device: u64,
}

/// A virtqueue.
pub(super) struct Virtqueue {
    ring: Queue,
    pub(super) addresses: Addresses,
    /// Vector, [`VIRTIO_MSI_NO_VECTOR`] for none.
    pub(super) vector: u16,
    /// Requests taken and not completed.
    pub(super) in_flight: u32,
    /// A reset of it waits for requests that the disks have. Nothing is taken from it and nothing is shown in it.
    pub(super) resetting: bool,
    suppression: Suppression,
    depth: Depth,
    trust: Trust,
    /// The request (counted by the available ring) of which the guest notifies.
    armed: Option<u16>,
    /// Since when.
    armed_at: Time,
}

impl Virtqueue {
    /// A queue of so many entries at the most; a power of two, or the guest sees none.
    pub(super) fn new(max_size: u16) -> Self {
        Self {
            ring: Queue::new(max_size).unwrap_or_default(),
            addresses: Addresses::default(),
            vector: VIRTIO_MSI_NO_VECTOR,
            in_flight: 0,
            resetting: false,
            suppression: Suppression::default(),
            depth: Depth::new(max_size),
            trust: Trust::new(),
            armed: None,
            armed_at: Time::default(),
        }
    }

    pub(super) fn reset(&mut self) {
        self.ring.reset();
        self.addresses = Addresses::default();
        self.vector = VIRTIO_MSI_NO_VECTOR;
        self.in_flight = 0;
        self.resetting = false;
        self.suppression = Suppression::default();
        self.depth.reset();
        self.trust = Trust::new();
        self.armed = None;
    }

    pub(super) fn size(&self) -> u16 {
        self.ring.size()
    }

    /// Sizes that cannot be are ignored.
    pub(super) fn set_size(&mut self, size: u16) {
        let _ = self.ring.try_set_size(size);
    }

    /// Whether the guest has enabled it.
    pub(super) fn ready(&self) -> bool {
        self.ring.ready()
    }

    /// Whether chains may be taken from it.
    pub(super) fn active(&self) -> bool {
        self.ready() && !self.resetting
    }

    /// Take the rings into use.
    pub(super) fn enable<M: GuestMemory>(&mut self, memory: &M, event_index: bool) -> Result<(), Broken> {
        let Addresses { desc, driver, device } = self.addresses;
        self.ring.try_set_desc_table_address(GuestAddress(desc))?;
        self.ring.try_set_avail_ring_address(GuestAddress(driver))?;
        self.ring.try_set_used_ring_address(GuestAddress(device))?;
        self.ring.set_event_idx(event_index);
        self.ring.set_ready(true);
        if driver == 0 || !self.ring.is_valid(memory) {
            self.ring.set_ready(false);
            return Err(Broken);
        }
        Ok(())
    }

    /// Whether a part of one of its rings is in a guest-physical range.
    pub(super) fn has_ring_in(&self, range: &Range<u64>) -> bool {
        let Addresses { desc, driver, device } = self.addresses;
        let size = u64::from(self.ring.size());
        // VIRTIO 1.2, 2.7: with the event index of either ring.
        let rings = [(desc, 16 * size), (driver, 6 + 2 * size), (device, 6 + 8 * size)];
        self.ready() && rings.into_iter().any(|(start, len)| overlap(range, start, len))
    }

    /// Rings that have been in use before go on: with the chain of index `next_avail`, and where the used index stands.
    /// To be called after [`enable`](Self::enable).
    pub(super) fn go_on<M: GuestMemory>(&mut self, memory: &M, next_avail: u16) -> Result<(), Broken> {
        let used = self.ring.used_idx(memory, Relaxed)?.0;
        self.ring.set_next_avail(next_avail);
        self.ring.set_next_used(used);
        self.settle();
        Ok(())
    }

    /// Index of the next chain to be taken.
    pub(super) fn next_avail(&self) -> u16 {
        self.ring.next_avail()
    }

    /// Index of the next completion to be shown.
    pub(super) fn next_used(&self) -> u16 {
        self.ring.next_used()
    }

    /// The chain that was taken last is as if it had not been.
    pub(super) fn put_back(&mut self) {
        self.ring.set_next_avail(self.ring.next_avail().wrapping_sub(1));
    }

    /// The chain with this head again, taken before.
    pub(super) fn chain<'a, M: GuestMemory>(&self, memory: &'a M, head: u16) -> DescriptorChain<&'a M> {
        DescriptorChain::new(memory, self.ring.desc_table(), self.ring.size(), head)
    }

    /// The chains that wait. Always inlined: the caller would load the returned iterator right after it was stored in smaller
    /// pieces, which stalls the processor.
    #[inline(always)]
    pub(super) fn take<'a, M: GuestMemory>(
        &'a mut self,
        memory: &'a M,
    ) -> Result<impl Iterator<Item = DescriptorChain<&'a M>>, Broken> {
        if self.armed.take().is_some() {
            self.ring.disable_notification(memory)?;
        }
        let (depth, trust, first) = (&mut self.depth, &mut self.trust, self.ring.next_avail());
        let (table, entries) = (self.ring.desc_table(), self.ring.size());
        Ok(self.ring.iter(memory)?.enumerate().map(move |(n, chain)| {
            depth.request(first.wrapping_add(n as u16), chain.head_index());
            trust.taken(chain.head_index().into());
            DescriptorChain::new(memory, table, entries, chain.head_index())
        }))
    }

    /// How many wait, believed as far as it makes sense.
    pub(super) fn waiting<M: GuestMemory>(&self, memory: &M) -> u32 {
        let index = self.ring.avail_idx(memory, Relaxed).map_or(self.ring.next_avail(), |index| index.0);
        index.wrapping_sub(self.ring.next_avail()).min(self.ring.size()).into()
    }

    /// Before the device sleeps, have the guest notify of the next chain, or of one further on. `late`: the device has
    /// waited for the guest, and for too long.
    pub(super) fn arm<M: GuestMemory>(&mut self, memory: &M, late: bool, now: Time) -> Result<Armed, Broken> {
        let next = self.ring.next_avail();
        if !self.ring.event_idx_enabled() {
            if self.armed.is_none() && self.ring.enable_notification(memory)? {
                self.ring.disable_notification(memory)?;
                return Ok(Armed::ChainsWait);
            }
            self.armed = Some(next);
            return Ok(Armed::Notifies);
        }
        let expected = self.depth.get().saturating_sub(self.in_flight);
        let Patience { ahead, wait } = self.trust.before_sleep(self.in_flight, expected, late);
        let event = next.wrapping_add(ahead as u16);
        if self.armed != Some(event) {
            let at = VIRTQ_USED_RING + 8 * u64::from(self.ring.size());
            let at = self.ring.used_ring().checked_add(at).ok_or(Broken)?;
            memory.store(event.to_le(), GuestAddress(at), Relaxed).map_err(|_| Broken)?;
            // The guest shows a chain and then looks at what is asked for; here it is the other way round.
            fence(SeqCst);
            let waiting = self.waiting(memory) > 0;
            self.armed = (!waiting).then_some(event);
            self.armed_at = now;
            if waiting {
                return Ok(Armed::ChainsWait);
            }
        }
        Ok(if ahead > 0 { Armed::LookAfter(wait) } else { Armed::Notifies })
    }

    /// The device looks, having slept or not.
    pub(super) fn look<M: GuestMemory>(&mut self, memory: &M, now: Time) {
        let Some(event) = self.armed else { return };
        let ahead = event.wrapping_sub(self.ring.next_avail());
        self.trust.look(self.waiting(memory), ahead.into(), now.since(self.armed_at), now);
    }

    /// Show a completion: chain `head`, of which `len` bytes were written from the start of its writable part.
    pub(super) fn show<M: GuestMemory>(
        &mut self,
        memory: &M,
        (head, len): (u16, u32),
        now: Time,
    ) -> Result<(), Broken> {
        self.trust.ended(head.into(), now);
        self.in_flight = self.in_flight.saturating_sub(1);
        Ok(self.ring.add_used(memory, head, len)?)
    }

    /// Whether something was shown that no decision to signal, or not to, covers.
    pub(super) fn open(&self) -> bool {
        self.suppression.open(self.ring.next_used())
    }

    /// What the guest wants to be told of. What it does not want is settled.
    pub(super) fn wish<M: GuestMemory>(&mut self, memory: &M) -> Wish {
        let used = self.ring.next_used();
        // The guest writes what it wants and then looks at the used index; here it is the other way round.
        fence(SeqCst);
        let load = |offset| {
            let address = self.ring.avail_ring().checked_add(offset)?;
            memory.load(GuestAddress(address), Relaxed).ok().map(u16::from_le)
        };
        if !self.ring.event_idx_enabled() {
            let unwanted = load(0).is_some_and(|flags| flags & VIRTQ_AVAIL_F_NO_INTERRUPT != 0);
            if unwanted {
                self.settle();
            }
            return if unwanted { Wish::Nothing } else { Wish::Next };
        }
        match load(VIRTQ_AVAIL_RING + 2 * u64::from(self.ring.size())) {
            Some(event) => self.suppression.look(used, event),
            None => Wish::Next,
        }
    }

    /// Everything shown is signalled, or need not be.
    pub(super) fn settle(&mut self) {
        self.suppression.settle(self.ring.next_used());
    }
}
