use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};

use devices::{Bar, Doorbell};

use super::*;
use crate::DeviceGone;

const SOON: Duration = Duration::from_secs(10);

/// What the thread called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    Doorbell(usize),
    Completions,
    Reset,
}

struct Fake {
    called: Sender<Called>,
    event: Arc<EventFd>,
    /// A second descriptor, once it is there.
    later: Option<Arc<EventFd>>,
    /// What `before_sleep` says until it has come.
    deadline: Option<Time>,
    idle: Arc<AtomicBool>,
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
        self.called.send(Called::Completions).unwrap();
    }
    fn before_sleep(&mut self, _: Time) -> Sleep {
        self.idle.store(true, Ordering::Relaxed);
        self.deadline.map_or(Sleep::Forever, Sleep::Until)
    }
    fn reset(&mut self, _: Time) {
        self.called.send(Called::Reset).unwrap();
    }
    fn quiesce(&mut self, _: Time) {}
    fn set_coalescing(&mut self, _: devices::Coalescing) {}

    fn stats(&self) -> devices::Stats {
        devices::Stats::default()
    }
}

struct Rig {
    thread: IoThread,
    calls: Receiver<Called>,
    event: Arc<EventFd>,
    ended: Receiver<String>,
}

fn rig() -> Rig {
    let (called, calls) = channel();
    let event = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
    let idle = Arc::default();
    let fake = Fake { called, event: Arc::clone(&event), later: None, deadline: None, idle };
    let (ends, ended) = channel();
    let tell = move |why| ends.send(why).unwrap();
    let thread =
        IoThread::start("io".to_owned(), Box::new(fake), Options::default(), None, Instant::now(), tell)
            .unwrap();
    Rig { thread, calls, event, ended }
}

fn write(rig: &Rig, offset: u64) -> Result<(), DeviceGone> {
    rig.thread.mailbox.call(move |device, now| device.bar_write(0, offset, &[0], now))
}

#[test]
fn events_reach_the_device() {
    let rig = rig();
    for round in 0..3 {
        for index in [1, 0] {
            rig.thread.doorbells.ring(index);
            assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(index)), "round {round}");
        }
        rig.event.write(1).unwrap();
        assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Completions), "round {round}");
    }
    assert!(rig.thread.counters.wakeups.load(Ordering::Relaxed) >= 9);
    let Rig { thread, calls, ended, .. } = rig;
    drop(thread);
    assert_eq!(calls.recv_timeout(SOON), Ok(Called::Reset));
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
    rig.thread.doorbells.ring(0);
    assert_eq!(rig.calls.recv_timeout(SOON), Ok(Called::Doorbell(0)));
}

#[test]
fn a_panic_is_told_and_callers_do_not_hang() {
    let rig = rig();
    assert_eq!(write(&rig, 9), Err(DeviceGone));
    assert_eq!(rig.ended.recv_timeout(SOON).as_deref(), Ok("panicked"));
    assert_eq!(write(&rig, 0), Err(DeviceGone));
}
