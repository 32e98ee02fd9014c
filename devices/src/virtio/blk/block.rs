//! The back-end of the block device.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use paradisk_disk_formats::{Disk, QueueStats};
use vm_memory::GuestAddressSpace;

use super::super::descriptors::DescriptorChain;
use super::super::device::Device;
use super::super::device::backend::{Answered, Backend};
use super::super::queue::Broken;
use super::config::Configuration;
use super::requests::Requests;
use super::spec::Status;
use crate::dma::{Dma, Footprint, Spans};
use crate::time::Time;

/// The back-end of the block device: its disk, its configuration, and the requests in flight.
pub struct Block {
    /// First, so that it is dropped first: requests in flight are waited for while their memory is kept.
    pub(super) requests: Requests,
    config: Configuration,
    disk: Arc<dyn Disk>,
}

impl Block {
    pub(super) fn new(disk: Arc<dyn Disk>, requests: Requests, config: Configuration) -> Self {
        Self { requests, config, disk }
    }
}

impl Backend for Block {
    const REQUEST_QUEUES: usize = 0;

    fn config(&self) -> &[u8] {
        self.config.bytes()
    }

    fn write_config(&mut self, offset: u64, value: u64, len: usize) {
        self.config.write(offset, value, len);
    }

    fn accept(&mut self, features: u64) {
        self.config.accept(features);
    }

    fn begin_reset(&mut self, queue: Option<usize>) {
        self.requests.disown(queue);
    }

    fn finish_reset(&mut self, queue: Option<usize>) -> bool {
        self.requests.reap();
        let over = self.requests.forget(queue);
        if over && queue.is_none() {
            self.config.reset();
        }
        over
    }

    fn footprint<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Footprint {
        self.requests.footprint(dma)
    }

    fn free_slots(&self) -> usize {
        self.requests.free_slots()
    }

    #[inline(always)]
    fn start<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queue: usize,
        chain: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        self.requests.start(queue, chain, self.config.write_through(), dma)
    }

    fn submit(&mut self) {
        self.requests.submit();
    }

    fn reap(&mut self) -> bool {
        self.requests.reap();
        self.requests.has_ended()
    }

    fn fail_lost(&mut self) -> bool {
        self.requests.fail_lost()
    }

    #[inline(always)]
    fn answer<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Answered> {
        let ended = self.requests.next_ended()?;
        let there = dma.write_byte(ended.status_at, ended.status as u8).is_ok();
        Some(Answered {
            queue: ended.queue,
            head: ended.head,
            written: there.then_some(ended.written),
            good: ended.status == Status::Ok,
        })
    }

    fn drain(&mut self) {
        self.requests.drain();
    }

    fn events(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.requests.disk().event()]
    }

    fn queue_stats(&self) -> QueueStats {
        self.requests.disk().stats()
    }

    fn refresh<A: GuestAddressSpace>(device: &mut Device<A, Self>, _now: Time) {
        let Self { requests, config, disk } = &mut device.backend;
        let capacity = disk.info().capacity;
        requests.set_capacity(capacity);
        if config.set_capacity(capacity) {
            device.transport.config_changed();
        }
    }
}
