//! A virtio device as a PCI function: its transport and configuration, and the rings of its queues.
//!
//! ```text
//! guest: registers -> owner's thread -> VirtioDevice -> Transport (locked)
//! guest: rings, doorbell -> Rings -> Requests -> disks
//! guest: used rings <- Rings <- completions
//! guest: interrupt <- Transport (locked) <- Rings
//! ```
//!
//! Without threads, the thread that calls the device serves all queues, as one set of [`Rings`]. With `N` threads, queue `n` is served by
//! thread `n % N`, each thread with a set of rings and [`Requests`] behind it, so that one thread processes a request from start to end. The
//! transport's lock is taken for a register access and for an interrupt, not for a request. The owner's thread changes the rings by calls or,
//! with threads, by jobs that it sends to their thread. It waits for the results without holding the lock.
//!
//! A reset by the guest does not wait. When the disks have completed the requests in flight, the rings' thread signals the device's
//! completion event. Until then the registers show the reset as pending.
#![expect(
    clippy::disallowed_types,
    reason = "taken for an interrupt, a register access or a wake-up of a thread, not for each request"
)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paradisk_disk_formats::{OpenError, ThreadKind};
use rustix::event::{EventfdFlags, eventfd};
use vm_memory::GuestAddressSpace;

use super::pci::{DeviceKind, Event, Transport};
use super::queue::RingSetup;
use super::ring_thread::RingThread;
use super::rings::{Front, Requests, Rings};
use super::spec::DeviceStatus;
use crate::device::{AccessKind, Bar, Doorbell, HotPlug, IoDevice, PciDevice, Sleep, Stats};
use crate::dma::View;
use crate::event_loop::{self, Interest};
use crate::interrupt::InterruptSink;
use crate::moderation::{Coalescing, ModerationState};
use crate::pci::{BusMaster, LayoutError};
use crate::time::Time;
use crate::worker::{Gone, Worker};

/// Why a device could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host refuses a queue of the disk.
    #[error(transparent)]
    Queue(#[from] OpenError),
    /// The host refuses a thread or a descriptor.
    #[error("threads of a virtio device: {0}")]
    Threads(#[from] io::Error),
    /// The function cannot be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// What the threads share.
struct Shared {
    transport: Mutex<Transport>,
    /// With threads: the completion event of the device. It wakes the owner's thread, to finish a reset or to deliver interrupts.
    attention: Option<OwnedFd>,
    /// [`InterruptSink::delivers_after_calls`].
    delivers_after_calls: bool,
}

impl Shared {
    fn transport(&self) -> MutexGuard<'_, Transport> {
        // A poisoned lock is no error: the registers are valid after every statement.
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue's rings cannot be processed, or its thread has ended: set DEVICE_NEEDS_RESET.
    fn broken(&self) {
        let mut transport = self.transport();
        // A pending reset repairs the queue, and until it completes the device must not signal.
        if !transport.resetting() {
            transport.needs_reset();
        }
        drop(transport);
        self.wake_owner();
    }

    fn wake_owner(&self) {
        if let Some(attention) = &self.attention {
            // Fails only if the counter is full, and then the event is readable already.
            let _ = rustix::io::write(attention, &1u64.to_ne_bytes());
        }
    }
}

/// Set `set` of `sets`: queue `n` of the device is queue `n / sets` of set `n % sets`.
pub(super) struct Port {
    shared: Arc<Shared>,
    set: usize,
    sets: usize,
}

impl Front for Port {
    fn signal(&mut self, queue: usize) {
        self.shared.transport().signal_queue(queue * self.sets + self.set);
        if self.shared.delivers_after_calls {
            self.shared.wake_owner();
        }
    }

    fn broken(&mut self, _queue: usize) {
        self.shared.broken();
    }

    fn reset_ended(&mut self) {
        self.shared.wake_owner();
    }
}

/// The rings of a set of the device's queues.
pub(super) type PortRings<A, T> = Rings<A, Port, <T as DeviceType>::Requests>;

/// What a device type has of its own: its features and its configuration space.
pub trait DeviceType: Clone + Send + 'static {
    /// The requests behind its queues.
    type Requests: Requests + 'static;

    /// The device-specific configuration as the guest reads it.
    fn config(&self) -> &[u8];

    /// The guest writes to the device-specific configuration.
    fn write_config(&mut self, offset: u64, value: u64, len: usize);

    /// The driver has accepted these features.
    fn accept(&mut self, features: u64);

    /// Reset to the state before a driver accepted features.
    fn reset(&mut self);

    /// Tell the requests what they need to know of it.
    fn configure(&self, requests: &mut Self::Requests);

    /// Check whether the disk has another capacity. True: the configuration has changed.
    fn refresh(&mut self) -> bool {
        false
    }

    /// [`IoDevice::hot_plug`].
    fn hot_plug<A>(_device: &mut VirtioDevice<A, Self>) -> Option<&mut dyn HotPlug>
    where
        A: GuestAddressSpace<T: Send> + Send + 'static,
    {
        None
    }
}

/// The requests of each set of queues, by who serves them.
pub(super) enum Sets<R> {
    /// One set: the thread that calls the device.
    Here(R),
    /// At most one set for each queue: each by a thread of the device.
    Threads(Vec<R>),
}

/// Who serves the queues.
pub(super) enum Served<A: GuestAddressSpace, T: DeviceType> {
    /// The thread that calls the device.
    Here(Box<PortRings<A, T>>),
    /// Threads of the device.
    Threads(Vec<Worker<RingThread<A, Port, T::Requests>>>),
}

impl<A, T> Served<A, T>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
    T: DeviceType,
{
    fn sets(&self) -> usize {
        match self {
            Self::Here(_) => 1,
            Self::Threads(workers) => workers.len(),
        }
    }

    /// Call a function with a set of rings, on their thread.
    fn ask<R: Send + 'static>(
        &mut self,
        set: usize,
        job: impl FnOnce(&mut PortRings<A, T>) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        match self {
            Self::Here(rings) => Ok(job(rings)),
            Self::Threads(workers) => workers[set].ask(|thread| job(&mut thread.rings)),
        }
    }

    /// The same for each set, where nothing changes. `None` for a thread that has ended.
    fn read<R: Send + 'static>(&self, job: fn(&PortRings<A, T>) -> R) -> Vec<Option<R>> {
        match self {
            Self::Here(rings) => vec![Some(job(rings))],
            Self::Threads(workers) => {
                workers.iter().map(|worker| worker.ask(move |thread| job(&thread.rings)).ok()).collect()
            }
        }
    }
}

/// A virtio device as a PCI function.
///
/// BAR 0 is memory. MSI-X has one vector more than there are queues. Without MSI-X, the device interrupts by INTx.
pub struct VirtioDevice<A: GuestAddressSpace, T: DeviceType> {
    /// The first field, so dropped first: the drop waits until the threads have ended and no request is in flight.
    pub(super) served: Served<A, T>,
    shared: Arc<Shared>,
    memory: A,
    own: T,
    doorbells: Box<[Doorbell]>,
    /// With threads: for each queue, the eventfd of its doorbell, on which the queue's thread sleeps.
    kicks: Vec<OwnedFd>,
    /// The queues whose rings were started.
    running: Box<[bool]>,
    /// Whether the rings may take requests, as they were told last.
    live: bool,
    /// A reset is pending.
    resetting: bool,
    /// [`IoDevice::quiesce`] has paused the threads until the owner's thread sleeps.
    quiesced: bool,
    /// Number of doorbells that came as calls or register writes, not by their eventfds.
    forwarded: u64,
}

impl<A, T> VirtioDevice<A, T>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
    T: DeviceType,
{
    /// A device of this type.
    ///
    /// # Errors
    /// [`Error`]: the host refuses a thread or a descriptor.
    pub(super) fn over(
        (kind, own): (&DeviceKind, T),
        memory: A,
        interrupts: Box<dyn InterruptSink>,
        coalescing: Coalescing,
        requests: Sets<T::Requests>,
    ) -> Result<Self, Error> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        let delivers_after_calls = interrupts.delivers_after_calls();
        let transport = Transport::new(kind, interrupts)?;
        let doorbells = transport.doorbells().into();
        let threads = matches!(requests, Sets::Threads(_));
        let shared = Arc::new(Shared {
            transport: Mutex::new(transport),
            attention: threads.then(event).transpose()?,
            delivers_after_calls,
        });
        let kicks =
            (0..if threads { kind.queues } else { 0 }).map(|_| event()).collect::<Result<Vec<_>, _>>()?;
        let rings = |requests, set, sets| {
            let queues = (set..kind.queues.into()).step_by(sets).count() as u16;
            let port = Port { shared: Arc::clone(&shared), set, sets };
            Rings::over(requests, memory.clone(), queues, kind.queue_size, coalescing, port)
        };
        let served = match requests {
            Sets::Here(requests) => Served::Here(Box::new(rings(requests, 0, 1))),
            Sets::Threads(requests) => {
                let sets = requests.len();
                let worker = |(set, requests)| -> io::Result<_> {
                    let thread = RingThread::new(rings(requests, set, sets), Duration::ZERO)?;
                    for (index, kick) in (0..).zip(kicks.iter().skip(set).step_by(sets)) {
                        thread.events.add(kick, event_loop::Event::Doorbell(index), Interest::Edge)?;
                    }
                    Worker::start(ThreadKind::AdapterQueue, format!("blk-queues-{set}"), thread)
                };
                Served::Threads(requests.into_iter().enumerate().map(worker).collect::<Result<_, _>>()?)
            }
        };
        Ok(Self {
            served,
            shared,
            memory,
            own,
            doorbells,
            kicks,
            running: (0..kind.queues).map(|_| false).collect(),
            live: false,
            resetting: false,
            quiesced: false,
            forwarded: 0,
        })
    }

    fn view(&self) -> View<A::T> {
        View::new(self.memory.memory())
    }

    /// Call a function with the set of rings that has a queue, and the queue's number in the set, on their thread.
    fn ask<R: Send + 'static>(
        &mut self,
        queue: usize,
        job: impl FnOnce(&mut PortRings<A, T>, usize) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        let sets = self.served.sets();
        let answer = self.served.ask(queue % sets, move |rings| job(rings, queue / sets));
        answer.inspect_err(|Gone| self.shared.broken())
    }

    /// Call a function with each set of rings, on their thread.
    fn each(&mut self, job: impl Fn(&mut PortRings<A, T>) + Clone + Send + 'static) {
        for set in 0..self.served.sets() {
            let job = job.clone();
            // A thread that has ended accesses no memory.
            let _ = self.ask(set, move |rings, _| job(rings));
        }
    }

    /// The configuration or the accepted features have changed: tell the requests.
    fn configure(&mut self) {
        let own = self.own.clone();
        self.each(move |rings| own.configure(&mut rings.requests));
    }

    /// Let the rings follow the registers: start those that the guest has enabled, and complete pending resets.
    fn follow_registers(&mut self) {
        self.finish_resets();
        let transport = self.shared.transport();
        let live = transport.live();
        let enabled = transport.enabled_queues().filter(|(index, _)| live && !self.running[*index]);
        let setups: Vec<(usize, RingSetup)> = enabled.collect();
        drop(transport);
        if self.live != live {
            self.live = live;
            self.each(move |rings| rings.set_taking(live));
        }
        for (index, setup) in setups {
            self.running[index] = true;
            let started = self.ask(index, move |rings, queue| rings.start(queue, &setup));
            if started != Ok(Ok(())) {
                self.shared.broken();
            }
        }
    }

    /// The rings of a device without threads.
    pub(super) const fn rings(&mut self) -> Option<&mut PortRings<A, T>> {
        match &mut self.served {
            Served::Here(rings) => Some(rings),
            Served::Threads(_) => None,
        }
    }

    /// Without threads: serve the queues if there may be work. That may end the requests for which a reset waits.
    pub(super) fn service(&mut self, now: Time) {
        if let Served::Here(rings) = &mut self.served
            && rings.has_work
        {
            rings.service(now);
            self.finish_resets();
        }
    }

    /// Complete the resets whose requests the disks have completed.
    fn finish_resets(&mut self) {
        if self.resetting {
            self.poll_resets();
        }
    }

    #[cold]
    fn poll_resets(&mut self) {
        let sets = self.served.sets();
        let mut pending = vec![false; self.running.len()];
        for set in 0..sets {
            for queue in self.served.ask(set, Rings::resetting).unwrap_or_default() {
                pending[queue * sets + set] = true;
            }
        }
        let mut transport = self.shared.transport();
        if transport.resetting() && !pending.contains(&true) {
            transport.reset();
            self.running.fill(false);
        } else if !transport.resetting() {
            for queue in transport.resetting_queues() {
                if !pending[queue] {
                    transport.reset_queue(queue);
                    self.running[queue] = false;
                }
            }
        }
        self.resetting = transport.any_resetting();
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::None | Event::BusMaster(BusMaster::Same) => {}
            // No access to memory from here on: completions are posted when bus mastering is enabled again.
            Event::BusMaster(BusMaster::Off) => {
                self.each(|rings| rings.pause(true));
                self.each(Rings::drain);
            }
            Event::BusMaster(BusMaster::On) => self.each(|rings| rings.pause(false)),
            Event::Reset => {
                tracing::debug!("virtio device reset");
                self.resetting = true;
                self.shared.transport().begin_reset();
                self.own.reset();
                self.configure();
                self.each(|rings| rings.begin_reset(None));
            }
            Event::Status(added) => {
                if added.contains(DeviceStatus::FEATURES_OK) {
                    let features = self.shared.transport().accepted();
                    tracing::debug!(features = format_args!("{features:#x}"), "virtio features accepted");
                    self.own.accept(features);
                    self.configure();
                }
            }
            Event::ResetQueue(queue) => {
                self.resetting = true;
                self.shared.transport().begin_queue_reset(queue);
                let _ = self.ask(queue, |rings, queue| rings.begin_reset(Some(queue)));
            }
            Event::Notify(queue) => return self.kick(queue),
            Event::Config { offset, value, len } => {
                self.own.write_config(offset, value, len);
                return self.configure();
            }
        }
        self.follow_registers();
    }

    /// Have a queue served. This does not write the doorbell's eventfd: the owner may have shared the eventfd with another process. That
    /// process could make the eventfd blocking and fill its counter, so that the write would block.
    fn kick(&mut self, queue: usize) {
        self.forwarded += 1;
        match &mut self.served {
            Served::Here(rings) => rings.has_work = true,
            Served::Threads(workers) => workers[queue % workers.len()].wake(),
        }
    }
}

impl<A, T> PciDevice for VirtioDevice<A, T>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
    T: DeviceType,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.shared.transport().config_read(offset, data, self.own.config());
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        let event = self.shared.transport().config_write(offset, data, &self.view());
        self.on_event(event);
    }

    fn bars(&self) -> Vec<Bar> {
        self.shared.transport().bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], _now: Time) {
        // A driver polls the status until the reset is complete.
        self.finish_resets();
        self.shared.transport().bar_read(bar, offset, data, self.own.config());
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time) {
        let event = self.shared.transport().bar_write(bar, offset, data, &self.view());
        self.on_event(event);
        self.service(now);
    }

    /// A read of the status completes a reset that waits for the disks.
    fn access_kind(&self, _bar: u8, _offset: u64, write: Option<&[u8]>) -> AccessKind {
        match write {
            None if !self.resetting => AccessKind::Register,
            _ => AccessKind::Command,
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        &self.doorbells
    }

    fn doorbell_event(&self, index: usize) -> Option<BorrowedFd<'_>> {
        Some(self.kicks.get(index)?.as_fd())
    }
}

impl<A, T> IoDevice for VirtioDevice<A, T>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
    T: DeviceType,
{
    fn on_doorbell(&mut self, index: usize, now: Time) {
        self.kick(index);
        self.service(now);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        match &self.served {
            Served::Here(rings) => rings.events(),
            Served::Threads(_) => self.shared.attention.iter().map(AsFd::as_fd).collect(),
        }
    }

    fn on_completions(&mut self, now: Time) {
        match &mut self.served {
            Served::Here(rings) => rings.on_completions(now),
            Served::Threads(_) => {
                let attention = self.shared.attention.as_ref();
                // Reading fails with EAGAIN if the event was not signalled.
                let _ = attention.map(|attention| rustix::io::read(attention, &mut [0; 8]));
            }
        }
        self.finish_resets();
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        if let Served::Here(rings) = &mut self.served {
            return rings.before_sleep(now);
        }
        if std::mem::take(&mut self.quiesced) {
            let paused = !self.shared.transport().bus_master();
            self.each(move |rings| rings.pause(paused));
        }
        self.follow_registers();
        Sleep::Forever
    }

    fn reset(&mut self, _now: Time) {
        self.on_event(Event::Reset);
        self.each(Rings::drain);
        self.finish_resets();
        self.shared.transport().power_on();
    }

    fn quiesce(&mut self, _now: Time) {
        // Threads of the device continue when the owner's thread sleeps.
        self.quiesced = matches!(self.served, Served::Threads(_));
        let pause = self.quiesced;
        self.each(move |rings| rings.quiesce(pause));
        self.finish_resets();
    }

    /// Of threads, all requests are waited for.
    fn uses_memory(&mut self, ranges: &[Range<u64>], now: Time) -> bool {
        self.finish_resets();
        if let Served::Here(rings) = &mut self.served {
            return rings.uses_memory(ranges);
        }
        self.quiesce(now);
        false
    }

    fn refuse_memory(&mut self, ranges: &[Range<u64>]) {
        if let Served::Here(rings) = &mut self.served {
            rings.refuse_memory(ranges);
        }
    }

    fn memory_replaced(&mut self, now: Time) {
        match &mut self.served {
            Served::Here(rings) => rings.memory_replaced(),
            Served::Threads(_) => self.quiesce(now),
        }
    }

    fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.each(move |rings| rings.set_coalescing(coalescing));
        self.finish_resets();
    }

    fn moderation(&self) -> Vec<ModerationState> {
        let sets = self.served.read(Rings::moderation);
        let queue = |queue: usize| sets[queue % sets.len()].as_ref()?.get(queue / sets.len()).copied();
        (0..self.running.len()).filter_map(queue).collect()
    }

    fn hot_plug(&mut self) -> Option<&mut dyn HotPlug> {
        T::hot_plug(self)
    }

    fn refresh(&mut self, now: Time) {
        // The rings know the new capacity before the guest does.
        let changed = self.own.refresh();
        self.configure();
        self.each(Rings::refresh);
        if changed {
            self.shared.transport().config_changed();
        }
        self.service(now);
    }

    fn stats(&self) -> Stats {
        let interrupts = self.shared.transport().interrupts();
        let mut sum = Stats { interrupts, doorbells: self.forwarded, ..Stats::default() };
        for stats in self.served.read(Rings::stats).into_iter().flatten() {
            sum.requests += stats.requests;
            sum.completions += stats.completions;
            sum.errors += stats.errors;
            sum.doorbells += stats.doorbells;
            sum.submits += stats.submits;
            sum.submit_ticks += stats.submit_ticks;
        }
        sum
    }
}

#[cfg(test)]
impl<A: GuestAddressSpace, T: DeviceType> VirtioDevice<A, T> {
    /// The threads of the device.
    pub(super) fn threads(&self) -> usize {
        match &self.served {
            Served::Here(_) => 0,
            Served::Threads(workers) => workers.len(),
        }
    }

    /// The requests of a device without threads.
    pub(super) fn requests(&self) -> Option<&T::Requests> {
        match &self.served {
            Served::Here(rings) => Some(&rings.requests),
            Served::Threads(_) => None,
        }
    }
}
