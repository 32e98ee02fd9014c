//! A virtqueue: its registers, its rings, and what the guest said about notifications and interrupts.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use virtio_queue::{AvailIter, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory};

use super::spec::{VIRTIO_MSI_NO_VECTOR, VIRTQ_AVAIL_F_NO_INTERRUPT, VIRTQ_AVAIL_RING};
use super::suppression::{Suppression, Wish};

/// The guest's rings or chains are such that there is no going on, and nobody to tell but by the device status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl From<Error> for Broken {
    fn from(_: Error) -> Self {
        Self
    }
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
    suppression: Suppression,
    /// The guest notifies for the next request.
    armed: bool,
}

impl Virtqueue {
    /// A queue of so many entries at the most; a power of two, or the guest sees none.
    pub(super) fn new(max_size: u16) -> Self {
        Self {
            ring: Queue::new(max_size).unwrap_or_default(),
            addresses: Addresses::default(),
            vector: VIRTIO_MSI_NO_VECTOR,
            in_flight: 0,
            suppression: Suppression::default(),
            armed: false,
        }
    }

    pub(super) fn reset(&mut self) {
        self.ring.reset();
        self.addresses = Addresses::default();
        self.vector = VIRTIO_MSI_NO_VECTOR;
        self.in_flight = 0;
        self.suppression = Suppression::default();
        self.armed = false;
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

    /// The chains that wait.
    pub(super) fn take<'a, M: GuestMemory>(&mut self, memory: &'a M) -> Result<AvailIter<'_, &'a M>, Broken> {
        if self.armed {
            self.armed = false;
            self.ring.disable_notification(memory)?;
        }
        Ok(self.ring.iter(memory)?)
    }

    /// How many wait, believed as far as it makes sense.
    pub(super) fn waiting<M: GuestMemory>(&self, memory: &M) -> u32 {
        let index = self.ring.avail_idx(memory, Relaxed).map_or(self.ring.next_avail(), |index| index.0);
        index.wrapping_sub(self.ring.next_avail()).min(self.ring.size()).into()
    }

    /// Have the guest notify for the next chain. True: one is there already.
    pub(super) fn arm<M: GuestMemory>(&mut self, memory: &M) -> Result<bool, Broken> {
        if self.armed {
            return Ok(false);
        }
        let waiting = self.ring.enable_notification(memory)?;
        self.armed = !waiting;
        Ok(waiting)
    }

    /// Show a completion: chain `head`, of which `len` bytes were written from the start of its writable part.
    pub(super) fn show<M: GuestMemory>(&mut self, memory: &M, head: u16, len: u32) -> Result<(), Broken> {
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
