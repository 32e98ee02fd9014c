//! A device, shared by the threads that may call it: its I/O thread and, while [`rule`](super::rule) allows it, the threads of virtual
//! CPUs.
//!
//! A thread holds the lock while it calls the device. The I/O thread holds the lock except while it waits for events, and while it
//! changes the registration of doorbells before that. A virtual CPU's thread only tries to lock. If that fails, or the rule does not allow
//! it, the doorbell goes to the I/O thread.
#![allow(clippy::disallowed_types, reason = "taken once for each wake-up of a thread, not for each request")]

use std::time::Duration;

use paradisk_devices::{Access, IoDevice, PciDevice, Sleep, Time};

use super::counters::Counters;
use super::rule::{LONGEST, Rule, Work};
use super::sync::atomic::{AtomicBool, Ordering};
use super::sync::{Arc, Mutex, MutexGuard, PoisonError};
use super::time::Instant;

/// Maximum number of further calls of a device that has more to do, on a virtual CPU's thread.
const ROUNDS: usize = 2;

/// A device, and the state that its threads share.
pub(crate) struct Shared<D: ?Sized> {
    held: Mutex<Held<D>>,
    /// [`Rule::on_vcpu`], for threads that do not hold the lock.
    on_vcpu: AtomicBool,
    origin: Instant,
    counters: Arc<Counters>,
}

/// The state that the lock protects.
pub(super) struct Held<D: ?Sized> {
    /// None once the I/O thread has ended.
    device: Option<Box<D>>,
    rule: Rule,
    /// When the I/O thread wakes without an event.
    wakes_at: Option<Time>,
    /// When a virtual CPU's thread last called the device, `before_sleep` returned `Sleep::No`: the I/O thread has to call
    /// `on_completions`.
    unfinished: bool,
}

/// A thread has panicked while it called the device.
#[derive(Debug)]
pub(super) struct Poisoned;

/// What a virtual CPU's thread has to do after a [`Notification`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Nothing.
    Done,
    /// Wake the I/O thread: the device has more to do, now or at a deadline, or KVM must signal doorbells again.
    More,
    /// The device was not called: pass the notification to the I/O thread.
    No,
}

/// A guest's write that gives the device work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// A write to the doorbell of this index.
    Doorbell(usize),
    /// A write that fast registers have accepted. They have reported that the I/O thread sleeps.
    FastRegisters,
}

impl<D: IoDevice + ?Sized> Shared<D> {
    pub(super) fn new(device: Box<D>, origin: Instant, counters: Arc<Counters>) -> Self {
        let held = Held { device: Some(device), rule: Rule::new(), wakes_at: None, unfinished: false };
        Self { held: Mutex::new(held), on_vcpu: AtomicBool::new(false), origin, counters }
    }

    pub(super) fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() as u64)
    }

    /// On the I/O thread.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Held<D>>, Poisoned> {
        self.held.lock().map_err(|_| Poisoned)
    }

    /// On the I/O thread, before it ends: from now on, no virtual CPU's thread serves doorbells.
    pub(super) fn stop_on_vcpu(&self, held: &mut Held<D>) {
        held.rule.stop();
        self.on_vcpu.store(false, Ordering::Relaxed);
    }

    /// On the I/O thread, when it ends: no thread calls the device afterwards.
    pub(super) fn take_device(&self) -> Option<Box<D>> {
        self.on_vcpu.store(false, Ordering::Relaxed);
        self.held.lock().unwrap_or_else(PoisonError::into_inner).device.take()
    }

    /// On the I/O thread, before it sleeps for `timeout`. Whether virtual CPUs' threads serve doorbells during the sleep.
    pub(super) fn io_thread_sleeps(&self, held: &mut Held<D>, now: Time, timeout: Option<Duration>) -> bool {
        let Held { device: Some(device), rule, wakes_at, .. } = held else { return false };
        *wakes_at = timeout.map(|timeout| now.after(timeout));
        if !rule.samples_this_sleep() {
            return false;
        }
        if device.completes_at_once() {
            rule.io_thread_sleeps(work(&**device));
        } else {
            rule.stop();
        }
        self.on_vcpu.store(rule.on_vcpu(), Ordering::Relaxed);
        rule.on_vcpu()
    }

    /// On a virtual CPU's thread, after the guest's write: call the device on this thread, if the rule allows it.
    #[inline]
    pub(crate) fn serve(&self, notification: Notification) -> Served {
        if self.on_vcpu.load(Ordering::Relaxed) { self.try_serve(notification) } else { Served::No }
    }

    fn try_serve(&self, notification: Notification) -> Served {
        // If poisoned, the I/O thread ends and reports it.
        let Ok(mut held) = self.held.try_lock() else { return Served::No };
        let Held { device: Some(device), rule, wakes_at, unfinished } = &mut *held else { return Served::No };
        // Hot-plug may have changed this since the I/O thread began to sleep.
        if !device.completes_at_once() {
            rule.stop();
        }
        if !rule.admits() {
            self.on_vcpu.store(rule.on_vcpu(), Ordering::Relaxed);
            return Served::No;
        }
        // Without a race: only a thread that holds the device's lock writes this counter.
        Counters::count(&self.counters.served);
        let start = self.now();
        match notification {
            Notification::Doorbell(index) => device.on_doorbell(index, start),
            Notification::FastRegisters => device.on_completions(start),
        }
        let mut now = self.now();
        let mut sleep = device.before_sleep(now);
        for _ in 0..ROUNDS {
            if sleep != Sleep::No || now.since(start) > LONGEST {
                break;
            }
            device.on_completions(now);
            now = self.now();
            sleep = device.before_sleep(now);
        }
        *unfinished = sleep == Sleep::No;
        rule.served(work(&**device), now.since(start));
        let on_vcpu = rule.on_vcpu();
        self.on_vcpu.store(on_vcpu, Ordering::Relaxed);
        let sleeps_on = match sleep {
            Sleep::No => false,
            Sleep::Until(time) => wakes_at.is_some_and(|wakes_at| wakes_at <= time),
            Sleep::Forever => true,
        };
        // If the rule has just ended this mode, wake the I/O thread, which registers the doorbells with KVM again before its next sleep.
        if sleeps_on && on_vcpu { Served::Done } else { Served::More }
    }
}

impl Shared<dyn PciDevice> {
    /// On a virtual CPU's thread: make an access that only changes registers. `None`: the access is for the I/O thread, or that thread is
    /// awake.
    pub(crate) fn access_registers<R>(
        &self,
        bar: u8,
        offset: u64,
        way: Access,
        access: impl FnOnce(&mut (dyn PciDevice + 'static), Time) -> R,
    ) -> Option<R> {
        // If poisoned, the I/O thread ends and reports it.
        let mut held = self.held.try_lock().ok()?;
        let device = held.device.as_deref_mut()?;
        device.is_register_access(bar, offset, way).then(|| access(device, self.now()))
    }
}

impl<D: ?Sized> Held<D> {
    /// The device. Only on the I/O thread, which takes it away when it ends.
    pub(super) fn device(&mut self) -> Result<&mut D, Poisoned> {
        self.device.as_deref_mut().ok_or(Poisoned)
    }

    /// Whether a virtual CPU's thread left the device with more to do; clears the mark.
    pub(super) const fn take_unfinished(&mut self) -> bool {
        std::mem::replace(&mut self.unfinished, false)
    }
}

fn work(device: &(impl IoDevice + ?Sized)) -> Work {
    let stats = device.stats();
    Work { requests: stats.requests, completions: stats.completions }
}
