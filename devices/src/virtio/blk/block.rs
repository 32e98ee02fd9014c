//! The disk behind the transport.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use disk_formats::{Disk, QueueStats};
use vm_memory::{GuestAddressSpace, GuestMemory};
use zerocopy::IntoBytes;

use super::super::descriptors::DescriptorChain;
use super::super::device::{Answered, Backend};
use super::super::queue::Broken;
use super::requests::Requests;
use super::spec::{BlkConfig, BlkFeatures, Status, WRITEBACK};
use crate::dma::Dma;

/// The disk behind the transport.
pub struct Block {
    /// First, so that it is dropped first: requests in flight are waited for while their memory is kept.
    pub(super) requests: Requests,
    config: BlkConfig,
    /// The writeback mode after reset.
    writeback: u8,
    /// Those that the driver has accepted.
    features: BlkFeatures,
    /// Keeps the disk open as long as its queue is.
    _disk: Arc<dyn Disk>,
}

impl Block {
    pub(super) fn new(disk: Arc<dyn Disk>, requests: Requests, config: BlkConfig) -> Self {
        let features = BlkFeatures::empty();
        Self { requests, writeback: config.writeback, config, features, _disk: disk }
    }

    /// Whether a write must be durable before it is completed (5.2.6.2).
    const fn write_through(&self) -> bool {
        if self.features.contains(BlkFeatures::CONFIG_WCE) {
            return self.config.writeback == 0;
        }
        !self.features.contains(BlkFeatures::FLUSH)
    }
}

impl Backend for Block {
    const REQUEST_QUEUES: usize = 0;

    fn config(&self) -> &[u8] {
        self.config.as_bytes()
    }

    fn write_config(&mut self, offset: u64, value: u64, len: usize) {
        if (offset, len) == (WRITEBACK, 1) && self.features.contains(BlkFeatures::CONFIG_WCE) {
            self.config.writeback = u8::from(value != 0);
        }
    }

    fn accept(&mut self, features: u64) {
        self.features = BlkFeatures::from_bits_truncate(features);
        // 5.2.5.2: without flushes, nothing is kept in a cache.
        if !self.features.contains(BlkFeatures::FLUSH) {
            self.config.writeback = 0;
        }
    }

    fn reset(&mut self, queue: Option<usize>) {
        self.requests.drain();
        self.requests.forget(queue);
        if queue.is_none() {
            self.features = BlkFeatures::empty();
            self.config.writeback = self.writeback;
        }
    }

    fn room(&self) -> usize {
        self.requests.room()
    }

    #[inline]
    fn start<A: GuestAddressSpace, M: GuestMemory>(
        &mut self,
        queue: usize,
        chain: DescriptorChain<&M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        self.requests.start(queue, chain, self.write_through(), dma)
    }

    fn submit(&mut self) {
        self.requests.submit();
    }

    fn reap(&mut self) -> bool {
        self.requests.reap();
        self.requests.has_ended()
    }

    #[inline]
    fn answer<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Answered> {
        let ended = self.requests.next_ended()?;
        let there = dma.write_bytes(ended.status_at, &[ended.status as u8]).is_ok();
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
}
