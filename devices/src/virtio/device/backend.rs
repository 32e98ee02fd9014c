//! What each kind of device implements.

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

/// A chain whose response is written to guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub(in super::super) queue: usize,
    pub(in super::super) head: u16,
    /// Bytes written from the start of the writable part, at least; `None`: the response's address is not in memory.
    pub(in super::super) written: Option<u32>,
    /// The request succeeded.
    pub(in super::super) good: bool,
}

/// The part of a device behind the transport.
pub trait Backend: Send {
    /// The first request queue. Queues before it have other uses: see [`serve`](Self::serve).
    const REQUEST_QUEUES: usize;

    /// The device-specific configuration as the guest reads it.
    fn config(&self) -> &[u8];

    /// The guest writes to the device-specific configuration.
    fn write_config(&mut self, offset: u64, value: u64, len: usize);

    /// The driver has accepted these features.
    fn accept(&mut self, features: u64);

    /// A reset of the device (`None`) or of a queue begins. Its requests in flight start no further steps and are not answered.
    /// Never waits.
    fn begin_reset(&mut self, queue: Option<usize>);

    /// Whether the disks have completed every request that the reset covers. True: they have, and the requests are forgotten.
    fn finish_reset(&mut self, queue: Option<usize>) -> bool;

    /// Guest memory that requests in flight use.
    fn footprint<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Footprint;

    /// Requests that can be started.
    fn free_slots(&self) -> usize;

    /// Start the request of a chain from a request queue. Only with [free slots](Self::free_slots).
    ///
    /// # Errors
    /// [`Broken`] if the chain has no place for a response.
    fn start<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queue: usize,
        chain: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken>;

    /// Serve the other queues, after all request queues were served. True: serve all queues again.
    ///
    /// # Errors
    /// [`Broken`] if the chain has no place for a response.
    fn serve<A: GuestAddressSpace, M: Spans>(
        &mut self,
        _transport: &mut Transport,
        _dma: &mut Dma<A>,
        _memory: &M,
    ) -> Result<bool, Broken> {
        Ok(false)
    }

    /// Start chains that were taken but had to wait, as far as possible. True: one was started.
    ///
    /// # Errors
    /// [`Broken`] if the chain has no place for a response.
    fn start_backlog<A: GuestAddressSpace, M: Spans>(
        &mut self,
        _transport: &mut Transport,
        _dma: &mut Dma<A>,
        _memory: &M,
    ) -> Result<bool, Broken> {
        Ok(false)
    }

    /// Whether a chain of one of the other queues could be taken at once.
    fn wants(&self, _queue: usize) -> bool {
        false
    }

    /// Submit the started requests to the disks.
    fn submit(&mut self);

    /// Reap completions of the disks. True: there are requests to answer.
    fn reap(&mut self) -> bool;

    /// After a wake-up that brought no completion: [`Bus::clear_late_events`](crate::scsi::Bus::clear_late_events), for
    /// a back-end whose `reap` leaves out disks without requests.
    fn clear_late_events(&mut self) {}

    /// Fail requests that a disk's queue has lost ([`fault`](crate::fault)). True: there were some.
    fn fail_lost(&mut self) -> bool;

    /// Write the response of the next completed request.
    fn answer<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Answered>;

    /// Wait until nothing is in flight.
    fn drain(&mut self);

    /// Descriptors that are readable while there may be something to reap.
    fn events(&self) -> Vec<BorrowedFd<'_>>;

    /// Statistics of the disks' queues.
    fn queue_stats(&self) -> QueueStats;

    /// Check whether disks have another capacity, and report a change to the guest.
    fn refresh<A: GuestAddressSpace>(device: &mut Device<A, Self>, now: Time)
    where
        Self: Sized;

    /// Attaching and detaching disks, for devices that can.
    fn hot_plug<A: GuestAddressSpace>(_device: &mut Device<A, Self>) -> Option<&mut dyn HotPlug>
    where
        Self: Sized,
    {
        None
    }
}
