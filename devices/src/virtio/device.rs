//! What all kinds of device do alike: the way of a batch through the rings, and the contract with the owner.

use std::os::fd::BorrowedFd;

use disk_formats::QueueStats;
use vm_memory::{GuestAddressSpace, GuestMemory};

use super::descriptors::DescriptorChain;
use super::pci::{Event, Transport};
use super::queue::Broken;
use super::spec::DeviceStatus;
use crate::dma::{Dma, View};
use crate::{Bar, Coalescing, Doorbell, HotPlug, PciDevice, Sleep, Stats, Time};

/// Requests taken from a queue before it is another's turn.
const BATCH: usize = 128;

/// Rounds over all queues before the owner gets its thread back.
const MAX_ROUNDS: usize = 16;

/// A chain whose answer is in guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    pub(super) queue: usize,
    pub(super) head: u16,
    /// Bytes surely written from the start of the writable part; `None`: the place of the answer is not memory.
    pub(super) written: Option<u32>,
    /// It went well.
    pub(super) good: bool,
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

    /// Device reset, or (`None`: all) that of a queue: wait for the disks, and keep nothing that would still be
    /// answered but what other queues have.
    fn reset(&mut self, queue: Option<usize>);

    /// Requests that can be started.
    fn room(&self) -> usize;

    /// Start what a chain of a request queue asks for. Only with [`room`](Self::room).
    ///
    /// # Errors
    /// [`Broken`] where there is nothing to answer to.
    fn start<A: GuestAddressSpace, M: GuestMemory>(
        &mut self,
        queue: usize,
        chain: DescriptorChain<&M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken>;

    /// Do what there is to do on the other queues, with all request queues looked at. True: something was done that
    /// more may follow.
    ///
    /// # Errors
    /// [`Broken`] where there is nothing to answer to.
    fn serve<A: GuestAddressSpace, M: GuestMemory>(
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

    /// Answer the next request that has ended.
    fn answer<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Answered>;

    /// Wait until nothing is in flight.
    fn drain(&mut self);

    /// Descriptors that are readable while there may be something to reap.
    fn events(&self) -> Vec<BorrowedFd<'_>>;

    /// What the disks' queues did.
    fn queue_stats(&self) -> QueueStats;

    /// The way to attach and detach disks, where there is one.
    fn hot_plug<A: GuestAddressSpace>(_device: &mut Device<A, Self>) -> Option<&mut dyn HotPlug>
    where
        Self: Sized,
    {
        None
    }
}

/// A virtio device.
///
/// Its base address register 0 is memory; MSI-X has one vector more than there are queues, without it everything
/// goes through INTx.
pub struct Device<A: GuestAddressSpace, B> {
    /// First, so that it is dropped first: requests in flight are waited for while `dma` still keeps their memory.
    pub(super) backend: B,
    pub(super) dma: Dma<A>,
    pub(super) transport: Transport,
    /// The request queue that is served first, counted from the first of them.
    first_queue: usize,
    /// There may be more to do than an event said.
    pub(super) more: bool,
    stats: Stats,
}

impl<A: GuestAddressSpace, B: Backend> Device<A, B> {
    pub(super) fn with(memory: A, transport: Transport, backend: B) -> Self {
        let dma = Dma::new(memory);
        Self { backend, dma, transport, first_queue: 0, more: false, stats: Stats::default() }
    }

    /// Do all that there is to do: end what has ended, take what waits.
    pub(super) fn service(&mut self, now: Time) {
        self.more = false;
        let memory = self.dma.view();
        self.transport.look(&memory, now);
        self.complete(&memory, now);
        for _ in 0..MAX_ROUNDS {
            let fetched = self.fetch(&memory);
            let served = self.serve(&memory);
            if !fetched && !served {
                return;
            }
            self.backend.submit();
            self.complete(&memory, now);
        }
        self.more = true;
    }

    /// Take a batch from each request queue. False: nothing was taken.
    fn fetch(&mut self, memory: &View<A::T>) -> bool {
        let count = self.transport.queues().len() - B::REQUEST_QUEUES;
        let mut any = false;
        let first = self.first_queue;
        for index in (0..count).map(|n| B::REQUEST_QUEUES + (first + n) % count) {
            any |= self.fetch_queue(index, memory);
        }
        // Where there is not room for all, each queue is first at some time.
        self.first_queue = (self.first_queue + 1) % count;
        any
    }

    fn fetch_queue(&mut self, index: usize, memory: &View<A::T>) -> bool {
        let room = self.backend.room().min(BATCH);
        if room == 0 || !self.transport.live() {
            return false;
        }
        let Some(queue) = self.transport.queues().get_mut(index).filter(|queue| queue.ready()) else {
            return false;
        };
        let mut count = 0;
        let taken = queue.take(memory).and_then(|mut chains| {
            while count < room as u32
                && let Some(chain) = chains.next()
            {
                self.backend.start(index, chain, &mut self.dma)?;
                count += 1;
            }
            Ok(())
        });
        self.stats.requests += u64::from(count);
        self.transport.taken(index, count);
        if taken.is_err() {
            self.transport.needs_reset();
        }
        count > 0
    }

    /// See to the other queues. False: nothing was done.
    fn serve(&mut self, memory: &View<A::T>) -> bool {
        if B::REQUEST_QUEUES == 0 || !self.transport.live() {
            return false;
        }
        let served = self.backend.serve(&mut self.transport, &mut self.dma, memory);
        served.unwrap_or_else(|Broken| {
            self.transport.needs_reset();
            false
        })
    }

    /// Show the guest what has ended, and decide whether to interrupt.
    pub(super) fn complete(&mut self, memory: &View<A::T>, now: Time) {
        let ended = self.backend.reap();
        if !self.transport.bus_master() {
            return;
        }
        if ended {
            // Requests that wait are outstanding, too: more completions will come.
            let queues = self.transport.queues().iter().skip(B::REQUEST_QUEUES);
            let waiting = queues.filter(|queue| queue.ready()).map(|queue| queue.waiting(memory)).sum();
            while let Some(answered) = self.backend.answer(&mut self.dma) {
                self.show(&answered, waiting, memory, now);
            }
        }
        self.transport.end_batch(memory, now);
    }

    #[inline]
    fn show(&mut self, answered: &Answered, waiting: u32, memory: &View<A::T>, now: Time) {
        let Answered { queue, head, written, good } = *answered;
        let Some(written) = written else { return self.transport.needs_reset() };
        if queue >= B::REQUEST_QUEUES {
            self.stats.completions += 1;
            self.stats.errors += u64::from(!good);
        } else {
            // Rare, and waited for.
            self.transport.hasten(queue);
        }
        self.transport.complete(queue, (head, written), waiting, memory, now);
    }

    /// Wait for everything in flight, and forget what `queue` had, or all.
    fn forget(&mut self, queue: Option<usize>, now: Time) {
        self.backend.reset(queue);
        let memory = self.dma.view();
        if queue.is_some() && self.transport.bus_master() {
            self.complete(&memory, now);
        }
    }

    fn on_event(&mut self, event: Event, now: Time) {
        match event {
            Event::None => {}
            Event::Reset => {
                self.forget(None, now);
                self.transport.reset();
                self.dma.release();
                self.more = false;
            }
            Event::Status(added) => {
                if added.contains(DeviceStatus::FEATURES_OK) {
                    self.backend.accept(self.transport.accepted());
                }
                self.more |= added.contains(DeviceStatus::DRIVER_OK);
            }
            Event::ResetQueue(queue) => {
                self.forget(Some(queue), now);
                self.transport.reset_queue(queue);
                self.more = true;
            }
            Event::Notify(_) => {
                self.stats.doorbells += 1;
                self.more = true;
            }
            Event::Config { offset, value, len } => self.backend.write_config(offset, value, len),
        }
    }

    /// Whether a chain that comes on a queue could be taken. Where it could not, an end of a request makes us look.
    fn wants(&self, queue: usize) -> bool {
        if queue < B::REQUEST_QUEUES { self.backend.wants(queue) } else { self.backend.room() > 0 }
    }
}

impl<A, B> PciDevice for Device<A, B>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
    B: Backend,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.transport.config_read(offset, data, self.backend.config());
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        let before = self.transport.bus_master();
        let event = self.transport.config_write(offset, data, &self.dma.view());
        // Nothing of this has a time of its own: what it starts is done before the thread sleeps.
        self.on_event(event, Time::default());
        match (before, self.transport.bus_master()) {
            // No access to memory from here on: wait for the disk, and show what ended when bus mastering is back.
            (true, false) => self.backend.drain(),
            (false, true) => self.more = true,
            _ => {}
        }
    }

    fn bars(&self) -> Vec<Bar> {
        self.transport.bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], _now: Time) {
        self.transport.bar_read(bar, offset, data, self.backend.config());
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time) {
        let event = self.transport.bar_write(bar, offset, data, &self.dma.view());
        self.on_event(event, now);
        if self.more {
            self.service(now);
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        self.transport.doorbells()
    }

    fn on_doorbell(&mut self, _index: usize, now: Time) {
        self.stats.doorbells += 1;
        self.service(now);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        self.backend.events()
    }

    fn on_completions(&mut self, now: Time) {
        self.service(now);
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        if self.more {
            return Sleep::No;
        }
        if self.transport.live() {
            let memory = self.dma.view();
            for index in 0..self.transport.queues().len() {
                if self.wants(index) && self.transport.arm(index, &memory, now) {
                    self.more = true;
                    return Sleep::No;
                }
            }
        }
        self.transport.deadline().map_or(Sleep::Forever, Sleep::Until)
    }

    fn reset(&mut self, now: Time) {
        self.on_event(Event::Reset, now);
        self.transport.power_on();
    }

    fn quiesce(&mut self, now: Time) {
        self.backend.drain();
        let memory = self.dma.view();
        self.transport.flush();
        self.complete(&memory, now);
        self.dma.release();
    }

    fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.transport.set_coalescing(coalescing);
        let memory = self.dma.view();
        if self.transport.bus_master() {
            self.transport.end_batch(&memory, Time::default());
        }
    }

    fn hot_plug(&mut self) -> Option<&mut dyn HotPlug> {
        B::hot_plug(self)
    }

    fn stats(&self) -> Stats {
        let queues = self.backend.queue_stats();
        Stats {
            interrupts: self.transport.interrupts(),
            submits: queues.submits,
            submit_ticks: queues.submit_ticks,
            ..self.stats
        }
    }
}
