//! What a kind of device has to do itself.

use std::os::fd::BorrowedFd;

use paradisk_disk_formats::QueueStats;
use vm_memory::GuestAddressSpace;

use super::super::descriptors::DescriptorChain;
use super::super::pci::Transport;
use super::super::queue::Broken;
use super::Device;
use crate::device::HotPlug;
use crate::dma::{Dma, Footprint, Spans};
use crate::time::Time;

/// A chain whose answer is in guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub(in super::super) queue: usize,
    pub(in super::super) head: u16,
    /// Bytes surely written from the start of the writable part; `None`: the place of the answer is not memory.
    pub(in super::super) written: Option<u32>,
    /// It went well.
    pub(in super::super) good: bool,
}

/// What a kind of device is behind its transport.
pub trait Backend: Send {
    /// The first request queue. Queues before it have other uses: see [`serve`](Self::serve).
    const REQUEST_QUEUES: usize;

    /// The device-specific configuration as the guest reads it.
    fn config(&self) -> &[u8];

    /// The guest writes to it.
    fn write_config(&mut self, offset: u64, value: u64, len: usize);

    /// The driver has accepted these features.
    fn accept(&mut self, features: u64);

    /// A device reset (`None`) or that of a queue begins: what it has in flight goes no further than it is and is not answered.
    /// Never waits.
    fn begin_reset(&mut self, queue: Option<usize>);

    /// Find out whether the disks have done with everything that a reset has begun for. True: they have, and nothing of it is kept.
    fn finish_reset(&mut self, queue: Option<usize>) -> bool;

    /// Guest memory that requests in flight use.
    fn footprint<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Footprint;

    /// Requests that can be started.
    fn free_slots(&self) -> usize;

    /// Start what a chain of a request queue asks for. Only with [free slots](Self::free_slots).
    ///
    /// # Errors
    /// [`Broken`] where there is nothing to answer to.
    fn start<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queue: usize,
        chain: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken>;

    /// Serve the other queues, after all request queues were served. True: something was done that
    /// more may follow.
    ///
    /// # Errors
    /// [`Broken`] where there is nothing to answer to.
    fn serve<A: GuestAddressSpace, M: Spans>(
        &mut self,
        _transport: &mut Transport,
        _dma: &mut Dma<A>,
        _memory: &M,
    ) -> Result<bool, Broken> {
        Ok(false)
    }

    /// Start chains that were taken and could not be started, as far as they can be now. True: one was started.
    ///
    /// # Errors
    /// [`Broken`] where there is nothing to answer to.
    fn start_kept<A: GuestAddressSpace, M: Spans>(
        &mut self,
        _transport: &mut Transport,
        _dma: &mut Dma<A>,
        _memory: &M,
    ) -> Result<bool, Broken> {
        Ok(false)
    }

    /// Whether a chain that comes on one of the other queues could be taken at once.
    fn wants(&self, _queue: usize) -> bool {
        false
    }

    /// Hand the disks what was started.
    fn submit(&mut self);

    /// Find out what has ended. True: there is something to answer.
    fn reap(&mut self) -> bool;

    /// Fail requests that wait for what the disk's queue does not have ([`fault`](crate::fault)). True: there were some.
    fn end_lost(&mut self) -> bool;

    /// Answer the next request that has ended.
    fn answer<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Answered>;

    /// Wait until nothing is in flight.
    fn drain(&mut self);

    /// Descriptors that are readable while there may be something to reap.
    fn events(&self) -> Vec<BorrowedFd<'_>>;

    /// Whether all disks complete requests while these are started.
    fn completes_at_once(&self) -> bool;

    /// What the disks' queues did.
    fn queue_stats(&self) -> QueueStats;

    /// Disks may have another capacity: check, and report a change to the guest.
    fn refresh<A: GuestAddressSpace>(device: &mut Device<A, Self>, now: Time)
    where
        Self: Sized;

    /// The way to attach and detach disks, where there is one.
    fn hot_plug<A: GuestAddressSpace>(_device: &mut Device<A, Self>) -> Option<&mut dyn HotPlug>
    where
        Self: Sized,
    {
        None
    }
}
