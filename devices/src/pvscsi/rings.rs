//! The rings in guest memory, at host addresses cached when they are set up.
//!
//! The device loads a guest index once for each use. An index by which a ring would hold more than its entries is invalid. The device reads
//! its own indices from guest memory only when the rings are set up.

use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use vm_memory::GuestAddressSpace;
use zerocopy::little_endian::U64;

use super::request::Request;
use super::spec::{
    CmdDescSetupMsgRing, CmdDescSetupRings, RingCmpDesc, RingMsgDesc, RingReqDesc, RingsState,
};
use crate::dma::{Dma, GuestPage, PAGE_SIZE};

/// Pages of a ring with entries of `T`.
struct Ring<M, T> {
    pages: Vec<GuestPage<M>>,
    mask: u32,
    entry: std::marker::PhantomData<fn() -> T>,
}

impl<M, T> Ring<M, T> {
    const PER_PAGE: u32 = PAGE_SIZE as u32 / size_of::<T>() as u32;

    /// Refuses sizes that are not a power of two up to `ppns.len()`, and pages outside memory.
    fn new<A: GuestAddressSpace<T = M>>(dma: &mut Dma<A>, pages: u32, ppns: &[U64]) -> Option<Self> {
        let ppns = ppns.get(..usize::try_from(pages).ok()?).filter(|_| pages.is_power_of_two())?;
        let pages = ppns.iter().map(|ppn| dma.page(ppn.get())).collect::<Result<Vec<_>, _>>().ok()?;
        let entries = pages.len() as u32 * Self::PER_PAGE;
        Some(Self { pages, mask: entries - 1, entry: std::marker::PhantomData })
    }

    const fn entries(&self) -> u32 {
        self.mask + 1
    }

    #[inline]
    fn slot(&self, index: u32) -> (&GuestPage<M>, usize) {
        let slot = index & self.mask;
        // In bounds: the mask is that of all entries in these pages.
        (&self.pages[(slot / Self::PER_PAGE) as usize], (slot % Self::PER_PAGE) as usize * size_of::<T>())
    }
}

/// Request and completion ring and their state.
pub(super) struct Rings<M> {
    state: GuestPage<M>,
    requests: Ring<M, RingReqDesc>,
    completions: Ring<M, RingCmpDesc>,
    /// Index of the next request to take.
    req_cons: u32,
    /// Index of the next completion to put in.
    cmp_prod: u32,
    /// The index in guest memory: completions before it are published.
    cmp_published: u32,
    /// The guest's index of the completion ring when the device last read it.
    cmp_cons: u32,
    /// The request-call threshold in guest memory.
    threshold: u32,
}

impl<M> Rings<M> {
    /// The rings that the guest's command describes. `None`: a ring's size is not a power of two or exceeds its list of pages, or a page is
    /// not memory.
    ///
    /// The indices start from the page's content: a driver zeroes the page.
    pub(super) fn new<A: GuestAddressSpace<T = M>>(
        dma: &mut Dma<A>,
        setup: &CmdDescSetupRings,
    ) -> Option<Self> {
        let requests = Ring::new(dma, setup.req_ring_num_pages.get(), &setup.req_ring_ppns)?;
        let completions = Ring::new(dma, setup.cmp_ring_num_pages.get(), &setup.cmp_ring_ppns)?;
        let state = dma.page(setup.rings_state_ppn.get()).ok()?;
        let cmp_prod = state.load(offset_of!(RingsState, cmp_prod_idx), Relaxed);
        let rings = Self {
            requests,
            completions,
            req_cons: state.load(offset_of!(RingsState, req_cons_idx), Relaxed),
            cmp_prod,
            cmp_published: cmp_prod,
            cmp_cons: state.load(offset_of!(RingsState, cmp_cons_idx), Relaxed),
            threshold: 0,
            state,
        };
        let log2 = |offset, entries: u32| rings.state.store(offset, entries.ilog2(), Relaxed);
        log2(offset_of!(RingsState, req_num_entries_log2), rings.requests.entries());
        log2(offset_of!(RingsState, cmp_num_entries_log2), rings.completions.entries());
        rings.state.store(offset_of!(RingsState, req_call_threshold), 0, Release);
        Some(rings)
    }

    /// Requests that wait; 0 if the guest's index is invalid.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        let waiting =
            self.state.load(offset_of!(RingsState, req_prod_idx), Acquire).wrapping_sub(self.req_cons);
        if waiting > self.requests.entries() { 0 } else { waiting }
    }

    /// Requests that the ring holds at the most.
    pub(super) const fn request_entries(&self) -> usize {
        self.requests.entries() as usize
    }

    /// Take out the next request. Call this only for requests that [`waiting`](Self::waiting) has counted.
    #[inline]
    pub(super) fn take(&mut self) -> Request {
        let (page, offset) = self.requests.slot(self.req_cons);
        self.req_cons = self.req_cons.wrapping_add(1);
        page.read(offset)
    }

    /// Publish the slots of the requests that were taken as free.
    #[inline]
    pub(super) fn publish_taken(&self) {
        self.state.store(offset_of!(RingsState, req_cons_idx), self.req_cons, Release);
    }

    /// Whether a completion can be put in without overwriting one that the guest has not read. With an invalid index of the guest, the ring
    /// counts as full.
    #[inline]
    pub(super) fn has_free_slot(&mut self) -> bool {
        let entries = self.completions.entries();
        if self.cmp_prod.wrapping_sub(self.cmp_cons) < entries {
            return true;
        }
        self.cmp_cons = self.state.load(offset_of!(RingsState, cmp_cons_idx), Acquire);
        self.cmp_prod.wrapping_sub(self.cmp_cons) < entries
    }

    /// Posted completions that the guest has not read; 0 if the guest's index is invalid.
    pub(super) fn unread(&self) -> u32 {
        let read = self.state.load(offset_of!(RingsState, cmp_cons_idx), Acquire);
        let unread = self.cmp_published.wrapping_sub(read);
        if unread > self.completions.entries() { 0 } else { unread }
    }

    /// Put a completion in. Call this only after [`has_free_slot`](Self::has_free_slot) has returned true. The guest does not see the
    /// completion before [`publish_completions`](Self::publish_completions).
    #[inline]
    pub(super) fn put(&mut self, completion: RingCmpDesc) {
        let (page, offset) = self.completions.slot(self.cmp_prod);
        page.write(offset, completion);
        self.cmp_prod = self.cmp_prod.wrapping_add(1);
    }

    /// Publish the completions that were put in: store the index of the completion ring.
    #[inline]
    pub(super) fn publish_completions(&mut self) {
        if self.cmp_published != self.cmp_prod {
            self.cmp_published = self.cmp_prod;
            self.state.store(offset_of!(RingsState, cmp_prod_idx), self.cmp_prod, Release);
        }
    }

    /// The request-call threshold in guest memory.
    pub(super) const fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Number of requests that the guest puts in without a kick; it kicks for the next one. `None`: the device is awake and suppresses all
    /// kicks.
    pub(super) fn suppressed(&self) -> Option<u32> {
        (self.threshold != u32::MAX).then(|| self.threshold.saturating_sub(1))
    }

    /// Set the number of waiting requests from which on the guest kicks; with 0 and 1 it kicks for each request. True: the threshold was
    /// lowered, so the caller must poll the ring: requests may have come without a kick.
    pub(super) fn set_threshold(&mut self, threshold: u32) -> bool {
        if threshold == self.threshold {
            return false;
        }
        let lowered = threshold < self.threshold;
        self.threshold = threshold;
        self.state.store(offset_of!(RingsState, req_call_threshold), threshold, Relaxed);
        if lowered {
            // The guest stores its index, then loads the threshold. The device stores the threshold, then loads the index.
            fence(SeqCst);
        }
        lowered
    }
}

/// The message ring. Its indices are in the rings' state.
pub(super) struct Messages<M> {
    ring: Ring<M, RingMsgDesc>,
    prod: u32,
}

impl<M> Messages<M> {
    /// The ring that the guest's command describes. `None` as for [`Rings::new`].
    pub(super) fn new<A: GuestAddressSpace<T = M>>(
        dma: &mut Dma<A>,
        setup: &CmdDescSetupMsgRing,
        rings: &Rings<M>,
    ) -> Option<Self> {
        let ring = Ring::new(dma, setup.num_pages.get(), &setup.ring_ppns)?;
        let prod = rings.state.load(offset_of!(RingsState, msg_prod_idx), Relaxed);
        rings.state.store(offset_of!(RingsState, msg_num_entries_log2), ring.entries().ilog2(), Release);
        Some(Self { ring, prod })
    }

    /// Post a message. False: the ring is full.
    pub(super) fn put(&mut self, rings: &Rings<M>, message: RingMsgDesc) -> bool {
        let read = rings.state.load(offset_of!(RingsState, msg_cons_idx), Acquire);
        if self.prod.wrapping_sub(read) >= self.ring.entries() {
            return false;
        }
        let (page, offset) = self.ring.slot(self.prod);
        page.write(offset, message);
        self.prod = self.prod.wrapping_add(1);
        rings.state.store(offset_of!(RingsState, msg_prod_idx), self.prod, Release);
        true
    }
}
