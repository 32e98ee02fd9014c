#![expect(clippy::disallowed_types, reason = "a test may lock")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;

use paradisk_devices::{Bar, Doorbell, IoDevice, PciDevice, Sleep};

use super::shared::{Notification, Served};
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
    stats: Stats,
}

/// The requests of a doorbell.
#[derive(Default)]
struct FakeDisk {
    /// The device completes its requests at once.
    at_once: AtomicBool,
    /// The result of `completes_at_once`.
    says_so: AtomicBool,
    /// `before_sleep` then returns a time.
    wants_time: AtomicBool,
    /// This many times, `before_sleep` returns that there is more work.
    more: AtomicU32,
    panics: AtomicBool,
    /// The calling thread of each doorbell.
    threads: Mutex<Vec<ThreadId>>,
}

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

    fn bar_write(&mut self, _: u8, offset: u64, _: &[u8], now: Time) {
        match offset {
            0 => self.later = EventFd::new(EFD_NONBLOCK).ok().map(Arc::new),
            1 => self.deadline = Some(now.after(Duration::from_millis(5))),
            _ => panic!("asked to"),
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        &[Doorbell { bar: 0, offset: 0, len: 4 }, Doorbell { bar: 0, offset: 4, len: 4 }]
    }
}

impl IoDevice for Fake {
    fn on_doorbell(&mut self, index: usize, now: Time) {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        assert!(!is_set(&self.disk.panics), "asked to");
        self.disk.threads.lock().unwrap().push(thread::current().id());
        self.stats.requests += 1;
        self.stats.completions += u64::from(is_set(&self.disk.at_once));
        if is_set(&self.disk.wants_time) {
            self.deadline = Some(now.after(Duration::from_millis(5)));
        }
        self.called.send(Called::Doorbell(index)).unwrap();
    }

    fn completes_at_once(&self) -> bool {
        self.disk.says_so.load(Ordering::Relaxed)
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        [Some(&self.event), self.later.as_ref()].into_iter().flatten().map(|event| fd(event)).collect()
    }

    fn on_completions(&mut self, now: Time) {
        self.deadline = self.deadline.filter(|deadline| *deadline > now);
        let _ = self.event.read();
        let _ = self.later.as_ref().map(|event| event.read());
        self.called.send(Called::Completions).unwrap();
    }

    fn before_sleep(&mut self, _: Time) -> Sleep {
        let more = |more: u32| more.checked_sub(1);
        if self.disk.more.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
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
        self.stats
    }
}

struct Rig {
    thread: IoThread,
    reach: DeviceHandle<dyn PciDevice>,
    calls: Receiver<Called>,
    event: Arc<EventFd>,
    ended: Receiver<String>,
    disk: Arc<FakeDisk>,
}

fn rig() -> Rig {
    let (called, calls) = channel();
    let event = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
    let idle = Arc::default();
    let disk = Arc::<FakeDisk>::default();
    let stats = Stats::default();
    let fake = Fake {
        called,
        event: Arc::clone(&event),
        later: None,
        deadline: None,
        idle,
        disk: Arc::clone(&disk),
        stats,
    };
    let (ends, ended) = channel();
    let tell = move |why| ends.send(why).unwrap();
    let fake: Box<dyn PciDevice> = Box::new(fake);
    let (thread, reach) =
        IoThread::start("io".to_owned(), fake, Options::default(), None, Instant::now(), tell).unwrap();
    Rig { thread, reach, calls, event, ended, disk }
}

fn write(rig: &Rig, offset: u64) -> Result<(), DeviceGone> {
    rig.reach.mailbox.call(move |device, now| device.bar_write(0, offset, &[0], now))
}

#[test]
fn events_reach_the_device() {
    let rig = rig();
    for round in 0..3 {
        for index in [1, 0] {
            rig.reach.doorbells.ring(index);
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
    write(&rig, 1).unwrap();
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions));
    assert_eq!(
        rig.calls.recv_timeout(Duration::from_millis(50)),
        Err(mpsc::RecvTimeoutError::Timeout),
        "once"
    );
}

#[test]
fn descriptors_that_come_later_are_heard() {
    let rig = rig();
    write(&rig, 0).unwrap();
    rig.event.write(1).unwrap();
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions));
    rig.reach.doorbells.ring(0);
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(0)));
}

#[test]
fn a_panic_is_told_and_callers_do_not_hang() {
    let rig = rig();
    assert_eq!(write(&rig, 9), Err(DeviceGone));
    assert_eq!(rig.ended.recv_timeout(SOON).as_deref(), Ok("panicked"));
    assert_eq!(write(&rig, 0), Err(DeviceGone));
}

/// A rig whose guest has had one request at a time, until this thread (a virtual CPU's) serves its doorbells.
fn served_here() -> Rig {
    let rig = rig();
    rig.disk.at_once.store(true, Ordering::Relaxed);
    rig.disk.says_so.store(true, Ordering::Relaxed);
    for _ in 0..10_000 {
        match rig.reach.shared.serve(Notification::Doorbell(0)) {
            Served::Done => {
                assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(0)));
                return rig;
            }
            // It took long because this machine is busy, so the rule has stopped.
            Served::More => rig.thread.mailbox.nudge(),
            Served::No => rig.reach.doorbells.ring(0),
        }
        assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(0)));
        asleep(&rig);
    }
    panic!("never served here");
}

/// Wait until the thread has finished its work: it answers before it sleeps.
fn asleep(rig: &Rig) {
    rig.thread.mailbox.call(|_, _| ()).unwrap();
}

#[test]
fn a_single_request_at_a_time_is_served_where_it_comes_from() {
    let rig = served_here();
    let here = thread::current().id();
    {
        let threads = rig.disk.threads.lock().unwrap();
        let (last, others) = threads.split_last().unwrap();
        assert!(*last == here && others.len() >= 64, "{}", others.len());
        assert!(others.iter().take(64).all(|other| *other != here));
    }
    // The thread still serves events and calls.
    rig.event.write(1).unwrap();
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions));
    rig.reach.doorbells.ring(1);
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(1)));
    assert_ne!(rig.disk.threads.lock().unwrap().last(), Some(&here));
    let counters = Arc::clone(&rig.thread.counters);
    assert_ne!(counters.served.load(Ordering::Relaxed), 0);
    let Rig { thread, reach, calls, .. } = rig;
    drop(thread);
    assert_eq!(calls.recv_timeout(SOON), Ok(Called::Reset));
    assert_eq!(calls.recv_timeout(SOON), Ok(Called::Dropped), "though it can still be named");
    assert_eq!(reach.shared.serve(Notification::Doorbell(0)), Served::No);
}

#[test]
fn a_time_that_a_device_asks_for_on_a_virtual_cpu_comes() {
    let rig = served_here();
    rig.disk.wants_time.store(true, Ordering::Relaxed);
    assert_eq!(rig.reach.shared.serve(Notification::Doorbell(0)), Served::More);
    rig.thread.mailbox.nudge();
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(0)));
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions));
}

/// Also if the device reports it for the last time on the virtual CPU's thread.
#[test]
fn a_device_with_more_to_do_is_called_again() {
    let rig = served_here();
    rig.disk.more.store(3, Ordering::Relaxed);
    if rig.reach.shared.serve(Notification::Doorbell(0)) == Served::More {
        rig.thread.mailbox.nudge();
    }
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(0)));
    for time in 0..3 {
        assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions), "{time}");
    }
}

#[test]
fn what_does_not_complete_at_once_is_served_by_the_io_thread() {
    let rig = served_here();
    rig.disk.at_once.store(false, Ordering::Relaxed);
    assert_eq!(
        rig.reach.shared.serve(Notification::Doorbell(0)),
        Served::More,
        "for KVM to signal doorbells again"
    );
    assert_eq!(rig.reach.shared.serve(Notification::Doorbell(0)), Served::No);
    // A device that does not report it is not tried.
    let rig = served_here();
    rig.disk.says_so.store(false, Ordering::Relaxed);
    assert_eq!(rig.reach.shared.serve(Notification::Doorbell(0)), Served::No);
}

#[test]
fn while_the_io_thread_has_the_device_nobody_else_calls_it() {
    let rig = served_here();
    let (begun, wait) = channel();
    let (end, ended) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| {
            rig.thread.mailbox.call(move |_, _| {
                begun.send(()).unwrap();
                ended.recv().unwrap();
            })
        });
        wait.recv_timeout(SOON).unwrap();
        assert_eq!(rig.reach.shared.serve(Notification::Doorbell(0)), Served::No);
        end.send(()).unwrap();
    });
}

#[test]
fn a_panic_on_a_virtual_cpu_ends_the_io_thread_too() {
    let rig = served_here();
    rig.disk.panics.store(true, Ordering::Relaxed);
    let serve = || rig.reach.shared.serve(Notification::Doorbell(0));
    assert!(thread::scope(|scope| scope.spawn(serve).join()).is_err());
    assert_eq!(rig.reach.shared.serve(Notification::Doorbell(0)), Served::No);
    assert_eq!(write(&rig, 5), Err(DeviceGone));
    let why = rig.ended.recv_timeout(SOON).unwrap();
    assert!(why.contains("a virtual CPU's thread panicked"), "{why}");
}
