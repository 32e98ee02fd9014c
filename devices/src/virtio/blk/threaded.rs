//! The block device with its own threads. The owner's thread calls the device, which handles register accesses on that thread. Each queue
//! is served by one of the device's threads.
//!
//! ```text
//! guest: registers -> owner's thread -> ThreadedBlk -> Transport (locked)
//! guest: ring, doorbell -> queue's thread -> Ring -> disk's queue
//! guest: used ring <- Ring (queue's thread) <- completions
//! guest: interrupt <- Transport (locked) <- queue's thread
//! ```
//!
//! - `queues`: the queues of one thread, and its loop.
//! - `shared`: what the threads share.
//!
//! Each queue of the device has its own queue of the disk, so one thread processes a request from start to end. The transport's lock is
//! taken for a register access and for an interrupt, not for a request. The owner's thread starts and stops rings by jobs that it sends to
//! their threads. It waits for the results without holding the lock.
//!
//! A reset by the guest does not block the owner's thread. The queue's thread waits until the disk has completed the requests in flight,
//! and then signals the device's completion event. Until then the registers show the reset as pending. Meanwhile the queue's thread serves
//! none of its queues and runs no other job.
#![expect(
    clippy::disallowed_types,
    reason = "taken for an interrupt, a register access or a wake-up of a thread, not for each request"
)]

mod queues;
mod shared;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};

use paradisk_disk_formats::{Disk, OpenError, QueueConfig, QueueStats};
use rustix::event::{EventfdFlags, eventfd};
use vm_memory::GuestAddressSpace;

use self::queues::Queues;
use self::shared::{Report, Shared};
use super::super::pci::{Event, Transport};
use super::super::queue::{Addresses, Virtqueue};
use super::super::spec::{DeviceStatus, Features};
use super::ring::{Ring, RingConfig, RingSetup};
use super::{Config, Configuration, device_kind};
use crate::device::{Bar, Doorbell, IoDevice, PciDevice, Sleep, Stats};
use crate::dma::Dma;
use crate::interrupt::InterruptSink;
use crate::moderation::{Coalescing, ModerationState};
use crate::pci::{BusMaster, LayoutError};
use crate::time::Time;
use crate::worker::{Gone, Worker};

/// Why a device could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThreadsError {
    /// The host refuses a queue of the disk.
    #[error(transparent)]
    Queue(#[from] OpenError),
    /// The host refuses a thread or a descriptor.
    #[error("threads of a virtio block device: {0}")]
    Os(#[from] std::io::Error),
    /// The function cannot be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// The state of a queue's rings.
enum State {
    /// Not in use.
    Idle,
    /// In use by the queue's thread.
    Running,
    /// Stopped by [`IoDevice::quiesce`], to be continued at this available index.
    Stopped(u16),
    /// A reset waits for the disk. The queue's thread sends a message when the disk has completed the requests, or drops the sender.
    Resetting(Receiver<()>),
}

/// A virtio block device whose queues are served by its own threads: queue `n` by thread `n % threads`.
///
/// The guest sees the same device as with [`VirtioBlk`](super::VirtioBlk).
pub struct ThreadedBlk<A: GuestAddressSpace> {
    /// The first field, so dropped first: the drop waits until the threads have ended and no request is in flight.
    workers: Vec<Worker<Queues<A>>>,
    shared: Arc<Shared>,
    states: Vec<State>,
    /// For each queue, the eventfd of its doorbell, on which the queue's thread sleeps.
    kicks: Vec<OwnedFd>,
    doorbells: Box<[Doorbell]>,
    disk: Arc<dyn Disk>,
    config: Configuration,
    dma: Dma<A>,
    /// Number of doorbells that came as calls or register writes, not by their eventfds.
    forwarded: u64,
}

impl<A> ThreadedBlk<A>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    /// A block device in front of `disk`. `threads` is limited to the range from 1 to [`Config::queues`]. The disk makes one queue for each
    /// queue of the device, as `queue` says, but with the rings' size as depth. So [`Config::tasks`] has no effect.
    ///
    /// # Errors
    /// [`ThreadsError`].
    pub fn new(
        memory: A,
        disk: Arc<dyn Disk>,
        queue: QueueConfig,
        interrupts: Box<dyn InterruptSink>,
        config: Config,
        threads: u16,
    ) -> Result<Self, ThreadsError> {
        let (kind, configuration) = device_kind(disk.info(), &config);
        let count = kind.queues;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let kick = |_| Ok(eventfd(0, flags)?);
        let kicks = (0..count).map(kick).collect::<Result<Vec<_>, std::io::Error>>()?;
        let delivers_after_calls = interrupts.delivers_after_calls();
        let transport = Transport::new(&kind, interrupts, config.coalescing)?;
        let doorbells = transport.doorbells().into();
        let shared = Arc::new(Shared {
            transport: Mutex::new(transport),
            reports: (0..count).map(|_| Mutex::default()).collect(),
            attention: eventfd(0, flags).map_err(std::io::Error::from)?,
            delivers_after_calls,
        });
        let ring =
            RingConfig { max_size: kind.queue_size, serial: config.serial, coalescing: config.coalescing };
        let depth = QueueConfig { depth: kind.queue_size.into(), ..queue };
        let threads = threads.clamp(1, count);
        let worker = |thread: u16| {
            let mine = (thread..count).step_by(threads.into());
            let rings = mine.map(|index| {
                let ring = Ring::new(memory.clone(), disk.queue(&depth)?, disk.info().clone(), ring);
                Ok((usize::from(index), ring, kicks[usize::from(index)].as_fd()))
            });
            let rings = rings.collect::<Result<Vec<_>, OpenError>>()?;
            Ok(queues::start(thread, rings, Arc::clone(&shared))?)
        };
        let workers = (0..threads).map(worker).collect::<Result<Vec<_>, ThreadsError>>()?;
        Ok(Self {
            workers,
            shared,
            states: (0..count).map(|_| State::Idle).collect(),
            kicks,
            doorbells,
            disk,
            config: configuration,
            dma: Dma::new(memory),
            forwarded: 0,
        })
    }

    /// Send a job to the thread of a queue, and wait for its result.
    fn ask<R: Send + 'static>(
        &self,
        queue: usize,
        job: impl FnOnce(&mut Queues<A>) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        self.workers[queue % self.workers.len()].ask(job).inspect_err(|Gone| self.shared.broken())
    }

    /// The queues in use.
    fn running(&self) -> Vec<usize> {
        let running = |(index, state): (usize, &State)| matches!(state, State::Running).then_some(index);
        self.states.iter().enumerate().filter_map(running).collect()
    }

    /// The rings that the guest has enabled, while the device may use them.
    fn setups(&self) -> Vec<(usize, RingSetup)> {
        let mut transport = self.shared.transport();
        if !transport.live() {
            return Vec::new();
        }
        let event_index = transport.negotiated(Features::RING_EVENT_IDX.bits());
        let active = transport.queues().iter().enumerate().filter(|(_, queue)| queue.active());
        let setup = |(index, queue): (usize, &Virtqueue)| {
            let Addresses { desc, driver, device } = queue.addresses;
            let size = queue.size();
            let setup = RingSetup {
                size,
                descriptors: desc,
                available: driver,
                used: device,
                next_avail: 0,
                event_index,
            };
            (index, setup)
        };
        active.map(setup).collect()
    }

    /// Start the rings that the guest has enabled, and those that [`quiesce`](IoDevice::quiesce) has stopped.
    fn start_rings(&mut self) {
        if !self.states.iter().any(|state| matches!(state, State::Idle | State::Stopped(_))) {
            return;
        }
        let setups = self.setups();
        let (write_through, capacity) = (self.config.write_through(), self.disk.info().capacity);
        for (index, setup) in setups {
            let next_avail = match self.states.get(index) {
                Some(State::Idle) => 0,
                Some(State::Stopped(next)) => *next,
                _ => continue,
            };
            let setup = RingSetup { next_avail, ..setup };
            self.states[index] = State::Running;
            let started = self.ask(index, move |queues| queues.start(index, &setup, write_through, capacity));
            if started != Ok(Ok(())) {
                self.shared.broken();
            }
        }
    }

    /// Begin a reset of these queues. Does not wait.
    fn begin_reset(&mut self, queues: impl IntoIterator<Item = usize>) {
        for index in queues {
            let Some(state) = self.states.get_mut(index) else { continue };
            *state = match state {
                State::Resetting(_) => continue,
                State::Idle | State::Stopped(_) => State::Idle,
                State::Running => {
                    let (ended, end) = sync_channel(1);
                    let shared = Arc::clone(&self.shared);
                    // If the thread has ended, `ended` is dropped, and `finish_resets` finds the channel disconnected.
                    let _ = self.workers[index % self.workers.len()].tell(move |queues| {
                        queues.abandon(index);
                        let _ = ended.send(());
                        shared.wake_owner();
                    });
                    State::Resetting(end)
                }
            };
        }
    }

    /// Complete the resets whose requests the disk has completed.
    fn finish_resets(&mut self) {
        if !self.shared.transport().any_resetting() {
            return;
        }
        for state in &mut self.states {
            if let State::Resetting(end) = state
                && end.try_recv() != Err(TryRecvError::Empty)
            {
                *state = State::Idle;
            }
        }
        let pending = |state: &State| matches!(state, State::Resetting(_));
        let mut transport = self.shared.transport();
        if transport.resetting() {
            if !self.states.iter().any(pending) {
                self.config.reset();
                transport.reset();
            }
            return;
        }
        for queue in transport.resetting_queues() {
            if !self.states.get(queue).is_some_and(pending) {
                transport.reset_queue(queue);
            }
        }
    }

    /// Wait until the disk has completed the requests of pending resets, and complete these resets.
    fn wait_for_resets(&mut self) {
        for state in &mut self.states {
            if let State::Resetting(end) = state {
                let _ = end.recv();
                *state = State::Idle;
            }
        }
        self.finish_resets();
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::None | Event::BusMaster(BusMaster::Same) => {}
            // No access to memory from here on: completions are posted when bus mastering is enabled again.
            Event::BusMaster(BusMaster::Off) => {
                self.pause();
                self.wait_for_resets();
            }
            Event::BusMaster(BusMaster::On) => {
                self.send_each(|queues| queues.pause(false));
                self.start_rings();
            }
            Event::Reset => {
                tracing::debug!("virtio device reset");
                self.shared.transport().begin_reset();
                self.begin_reset(0..self.states.len());
                self.finish_resets();
            }
            Event::Status(added) => {
                if added.contains(DeviceStatus::FEATURES_OK) {
                    let features = self.shared.transport().accepted();
                    tracing::debug!(features = format_args!("{features:#x}"), "virtio features accepted");
                    self.config.accept(features);
                }
                self.start_rings();
            }
            Event::ResetQueue(queue) => {
                self.shared.transport().begin_queue_reset(queue);
                self.begin_reset([queue]);
                self.finish_resets();
            }
            Event::Notify(queue) => self.kick(queue),
            Event::Config { offset, value, len } => {
                let before = self.config.write_through();
                self.config.write(offset, value, len);
                let write_through = self.config.write_through();
                if write_through != before {
                    self.ask_each(move |queues| queues.set_write_through(write_through));
                }
            }
        }
    }

    /// Stop accessing memory. Waits for the requests in flight.
    fn pause(&self) {
        // Pause all threads before waiting for any: a thread that waits for its disk must not delay the pause of another.
        self.send_each(|queues| queues.pause(true));
        self.ask_each(Queues::drain);
    }

    /// Send a job to each thread. Does not wait.
    fn send_each(&self, job: impl Fn(&mut Queues<A>) + Clone + Send + 'static) {
        for worker in &self.workers {
            // A thread that has ended accesses no memory. The next job with a result detects that the thread has ended.
            let _ = worker.tell(job.clone());
        }
    }

    /// Run a job on each thread, one thread after the other, and wait for each.
    fn ask_each(&self, job: impl Fn(&mut Queues<A>) + Clone + Send + 'static) {
        for thread in 0..self.workers.len() {
            let _ = self.ask(thread, job.clone());
        }
    }

    /// Wake the thread of a queue. This does not write the doorbell's eventfd: the owner may have shared the eventfd with another
    /// process. That process could make the eventfd blocking and fill its counter, so that the write would block.
    fn kick(&mut self, queue: usize) {
        self.forwarded += 1;
        self.workers[queue % self.workers.len()].wake();
    }
}

impl<A> PciDevice for ThreadedBlk<A>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.shared.transport().config_read(offset, data, self.config.bytes());
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        let event = self.shared.transport().config_write(offset, data, &self.dma.view());
        self.on_event(event);
    }

    fn bars(&self) -> Vec<Bar> {
        self.shared.transport().bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], _now: Time) {
        // A driver polls the status until the reset is complete.
        self.finish_resets();
        self.shared.transport().bar_read(bar, offset, data, self.config.bytes());
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], _now: Time) {
        let event = self.shared.transport().bar_write(bar, offset, data, &self.dma.view());
        self.on_event(event);
    }

    fn doorbells(&self) -> &[Doorbell] {
        &self.doorbells
    }

    fn doorbell_event(&self, index: usize) -> Option<BorrowedFd<'_>> {
        Some(self.kicks.get(index)?.as_fd())
    }
}

impl<A> IoDevice for ThreadedBlk<A>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    fn on_doorbell(&mut self, index: usize, _now: Time) {
        self.kick(index);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.shared.attention.as_fd()]
    }

    fn on_completions(&mut self, _now: Time) {
        // Reading fails with EAGAIN if the event was not signalled.
        let _ = rustix::io::read(&self.shared.attention, &mut [0; 8]);
        self.finish_resets();
    }

    fn before_sleep(&mut self, _now: Time) -> Sleep {
        self.finish_resets();
        self.start_rings();
        Sleep::Forever
    }

    fn reset(&mut self, _now: Time) {
        self.on_event(Event::Reset);
        self.wait_for_resets();
        self.shared.transport().power_on();
    }

    fn quiesce(&mut self, _now: Time) {
        self.wait_for_resets();
        let bus_master = self.shared.transport().bus_master();
        for queue in self.running() {
            // Without bus mastering nothing is in flight, and completions wait until it is enabled.
            if bus_master && let Ok(Some(next)) = self.ask(queue, move |queues| queues.stop(queue)) {
                self.states[queue] = State::Stopped(next);
            }
        }
        self.ask_each(Queues::release_memory);
        self.dma.release();
    }

    fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.ask_each(move |queues| queues.set_coalescing(coalescing));
    }

    fn moderation(&self) -> Vec<ModerationState> {
        let reports = (0..self.states.len()).filter_map(|queue| self.shared.report(queue)?.moderation);
        reports.collect()
    }

    fn refresh(&mut self, _now: Time) {
        let capacity = self.disk.info().capacity;
        self.ask_each(move |queues| queues.set_capacity(capacity));
        if self.config.set_capacity(capacity) {
            self.shared.transport().config_changed();
        }
    }

    fn stats(&self) -> Stats {
        let interrupts = self.shared.transport().interrupts();
        let mut sum = Stats { interrupts, doorbells: self.forwarded, ..Stats::default() };
        let mut disk = QueueStats::default();
        for queue in 0..self.states.len() {
            let Some(Report { stats, .. }) = self.shared.report(queue).map(|report| *report) else {
                continue;
            };
            sum.requests += stats.requests;
            sum.completions += stats.completions;
            sum.errors += stats.errors;
            sum.doorbells += stats.doorbells;
            disk.submits += stats.submits;
            disk.submit_ticks += stats.submit_ticks;
        }
        sum.with(&disk)
    }
}

#[cfg(test)]
mod tests;
