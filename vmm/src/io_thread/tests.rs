#![expect(clippy::disallowed_types, reason = "a test may lock")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;

use paradisk_devices::{AccessKind, Bar, Doorbell, IoDevice, PciDevice, Sleep, Stats};

use super::shared::Accessed;
use super::*;
use crate::mailbox::DeviceGone;

const SOON: Duration = Duration::from_secs(60);

/// A call by the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    Doorbell(usize),
    Completions,
    Reset,
    Dropped,
}

struct Fake {
    called: Sender<Called>,
    event: Arc<EventFd>,
    /// A second descriptor, added later.
    later: Option<Arc<EventFd>>,
    /// The result of `before_sleep` until this time.
    deadline: Option<Time>,
    idle: Arc<AtomicBool>,
    disk: Arc<FakeDisk>,
}

/// What a test changes.
#[derive(Default)]
struct FakeDisk {
    /// Requests that virtual CPUs have put in by a register. A call takes one.
    waiting: AtomicU32,
    panics: AtomicBool,
    /// The calling thread of each access to a register.
    threads: Mutex<Vec<ThreadId>>,
}

/// Registers of the fake.
const GROW: u64 = 0;
const TIME: u64 = 1;
const PLAIN: u64 = 8;
const SUBMIT: u64 = 9;

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.called.send(Called::Dropped);
    }
}

impl PciDevice for Fake {
    fn config_read(&mut self, _: u16, _: &mut [u8]) {}

    fn config_write(&mut self, _: u16, _: &[u8]) {}

    fn bars(&self) -> Vec<Bar> {
        Vec::new()
    }

    fn bar_read(&mut self, _: u8, _: u64, _: &mut [u8], _: Time) {}

    fn access_kind(&self, _: u8, offset: u64, _: Option<&[u8]>) -> AccessKind {
        match offset {
            PLAIN => AccessKind::Register,
            SUBMIT => AccessKind::Submission,
            _ => AccessKind::Command,
        }
    }

    fn bar_write(&mut self, _: u8, offset: u64, _: &[u8], now: Time) {
        assert!(!self.disk.panics.load(Ordering::Relaxed), "asked to");
        self.disk.threads.lock().unwrap().push(thread::current().id());
        match offset {
            GROW => self.later = EventFd::new(EFD_NONBLOCK).ok().map(Arc::new),
            TIME => self.deadline = Some(now.after(Duration::from_millis(5))),
            PLAIN => {}
            SUBMIT => drop(self.disk.waiting.fetch_add(1, Ordering::Relaxed)),
            _ => panic!("asked to"),
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        &[Doorbell { bar: 0, offset: 0, len: 4 }, Doorbell { bar: 0, offset: 4, len: 4 }]
    }
}

impl IoDevice for Fake {
    fn on_doorbell(&mut self, index: usize, _: Time) {
        self.called.send(Called::Doorbell(index)).unwrap();
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        [Some(&self.event), self.later.as_ref()].into_iter().flatten().map(|event| fd(event)).collect()
    }

    fn on_completions(&mut self, now: Time) {
        self.deadline = self.deadline.filter(|deadline| *deadline > now);
        let _ = self.event.read();
        let _ = self.later.as_ref().map(|event| event.read());
        let one = |waiting: u32| waiting.checked_sub(1);
        let _ = self.disk.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one);
        self.called.send(Called::Completions).unwrap();
    }

    fn before_sleep(&mut self, _: Time) -> Sleep {
        if self.disk.waiting.load(Ordering::Relaxed) > 0 {
            return Sleep::No;
        }
        self.idle.store(true, Ordering::Relaxed);
        self.deadline.map_or(Sleep::Forever, Sleep::Until)
    }

    fn reset(&mut self, _: Time) {
        self.called.send(Called::Reset).unwrap();
    }

    fn quiesce(&mut self, _: Time) {}

    fn set_coalescing(&mut self, _: paradisk_devices::Coalescing) {}

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

struct Rig {
    thread: IoThread,
    handle: DeviceHandle<dyn PciDevice>,
    calls: Receiver<Called>,
    event: Arc<EventFd>,
    ended: Receiver<String>,
    disk: Arc<FakeDisk>,
}

fn rig() -> Rig {
    rig_with(Options::default())
}

fn rig_with(options: Options) -> Rig {
    let (called, calls) = channel();
    let event = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
    let idle = Arc::default();
    let disk = Arc::<FakeDisk>::default();
    let fake = Fake {
        called,
        event: Arc::clone(&event),
        later: None,
        deadline: None,
        idle,
        disk: Arc::clone(&disk),
    };
    let (ends, ended) = channel();
    let tell = move |why| ends.send(why).unwrap();
    let fake: Box<dyn PciDevice> = Box::new(fake);
    let (thread, handle) = IoThread::start("io".to_owned(), fake, options, Instant::now(), tell).unwrap();
    Rig { thread, handle, calls, event, ended, disk }
}

fn write(rig: &Rig, offset: u64) -> Result<(), DeviceGone> {
    rig.handle.mailbox.call(move |device, now| device.bar_write(0, offset, &[0], now))
}

#[test]
fn events_reach_the_device() {
    let rig = rig();
    for round in 0..3 {
        for index in [1, 0] {
            rig.handle.doorbells.ring(index);
            assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(index)), "round {round}");
        }
        rig.event.write(1).unwrap();
        assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions), "round {round}");
    }
    assert!(rig.thread.counters.wakeups.load(Ordering::Relaxed) >= 9);
    let Rig { thread, calls, ended, .. } = rig;
    drop(thread);
    assert_eq!(calls.recv_timeout(SOON), Ok(Called::Reset));
    assert_eq!(calls.recv_timeout(SOON), Ok(Called::Dropped), "with its thread");
    assert!(ended.recv_timeout(SOON).is_err(), "it was told to stop");
}

#[test]
fn the_time_that_a_device_asked_for_comes() {
    let rig = rig();
    write(&rig, TIME).unwrap();
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions));
    assert_eq!(
        rig.calls.recv_timeout(Duration::from_millis(50)),
        Err(mpsc::RecvTimeoutError::Timeout),
        "once"
    );
}

#[test]
fn a_thread_polls_after_a_short_wait() {
    let calls = |rig: &Rig| -> Vec<_> {
        std::iter::from_fn(|| rig.calls.recv_timeout(Duration::from_millis(100)).ok()).collect()
    };
    let poll = Duration::from_millis(400);
    for options in [Options::default(), Options { poll }] {
        let polls = !options.poll.is_zero();
        let rig = rig_with(options);
        for _ in 0..2 {
            rig.event.write(1).unwrap();
            assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions));
        }
        // Doorbells reach the device meanwhile, and it is called although no event says so.
        rig.handle.doorbells.ring(1);
        let first = calls(&rig);
        assert!(first.contains(&Called::Doorbell(1)) && (first.len() > 100) == polls, "{}", first.len());
        // It sleeps now. After a long wait it does not poll.
        thread::sleep(poll);
        rig.event.write(1).unwrap();
        assert_eq!(calls(&rig), [Called::Completions]);
    }
}

#[test]
fn descriptors_that_come_later_are_heard() {
    let rig = rig();
    write(&rig, GROW).unwrap();
    rig.event.write(1).unwrap();
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions));
    rig.handle.doorbells.ring(0);
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(0)));
}

#[test]
fn a_panic_is_told_and_callers_do_not_hang() {
    let rig = rig();
    assert_eq!(write(&rig, 77), Err(DeviceGone));
    assert_eq!(rig.ended.recv_timeout(SOON).as_deref(), Ok("panicked"));
    assert_eq!(write(&rig, GROW), Err(DeviceGone));
}

/// An access on this thread, as a virtual CPU's; wakes the I/O thread if that is needed. False: it is for the I/O thread.
fn access(handle: &DeviceHandle<dyn PciDevice>, offset: u64) -> bool {
    match handle.shared.access((0, offset), Some(&[0]), |device, now| device.bar_write(0, offset, &[0], now))
    {
        Accessed::Done(()) => true,
        Accessed::Wake(()) => {
            handle.mailbox.nudge();
            true
        }
        Accessed::No => false,
    }
}

#[test]
fn registers_are_accessed_where_the_access_comes_from() {
    let rig = rig();
    assert!(access(&rig.handle, PLAIN) && !access(&rig.handle, TIME));
    assert_eq!(rig.disk.threads.lock().unwrap()[..], [thread::current().id()]);
    write(&rig, TIME).unwrap();
    assert_ne!(rig.disk.threads.lock().unwrap().last(), Some(&thread::current().id()));
    let Rig { thread, handle, calls, .. } = rig;
    drop(thread);
    assert!(calls.iter().any(|called| called == Called::Dropped), "though it can still be named");
    let gone = handle.shared.access((0, PLAIN), None, |_, _| ());
    assert_eq!(gone, Accessed::No);
}

/// Whether the thread sleeps at that time or not.
#[test]
fn every_submission_is_taken() {
    let rig = rig();
    for round in 0..2000 {
        (0..round % 5).for_each(|_| assert!(access(&rig.handle, SUBMIT)));
        for _ in 0..round % 5 {
            assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions), "round {round}");
        }
    }
}

/// Virtual CPUs get the lock although the thread has work without end.
#[test]
fn a_busy_device_does_not_keep_virtual_cpus_from_its_registers() {
    let rig = rig();
    rig.disk.waiting.store(u32::MAX, Ordering::Relaxed);
    rig.thread.mailbox.nudge();
    let handle = &rig.handle;
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| assert!(access(handle, PLAIN))));
        }
    });
    rig.disk.waiting.store(0, Ordering::Relaxed);
}

/// A message that is in the mailbox again before it has ended, as if virtual CPUs wrote registers all the time.
fn endless(mailbox: Mailbox<dyn PciDevice>, ends: Arc<AtomicBool>) -> Message<dyn PciDevice> {
    Message::Call(Box::new(move |_, _| {
        if !ends.load(Ordering::Relaxed) {
            let next = endless(mailbox.clone(), ends);
            mailbox.send(next).unwrap();
        }
    }))
}

#[test]
fn messages_without_end_do_not_keep_a_doorbell_from_the_device() {
    let rig = rig();
    let ends = Arc::<AtomicBool>::default();
    let mailbox = &rig.handle.mailbox;
    mailbox.send(endless(mailbox.clone(), Arc::clone(&ends))).unwrap();
    // The answer comes from among them: the thread executes messages now.
    mailbox.call(|_, _| ()).unwrap();
    rig.handle.doorbells.ring(0);
    while rig.calls.recv_timeout(SOON).unwrap() != Called::Doorbell(0) {}
    ends.store(true, Ordering::Relaxed);
}

#[test]
fn a_panic_on_a_virtual_cpu_ends_the_io_thread_too() {
    let rig = rig();
    rig.disk.panics.store(true, Ordering::Relaxed);
    let handle = &rig.handle;
    assert!(thread::scope(|scope| scope.spawn(|| access(handle, PLAIN)).join()).is_err());
    assert!(!access(&rig.handle, PLAIN));
    assert_eq!(write(&rig, PLAIN), Err(DeviceGone));
    let why = rig.ended.recv_timeout(SOON).unwrap();
    assert!(why.contains("a virtual CPU's thread panicked"), "{why}");
}
