//! No call through a mailbox is lost, and a call that the thread drops returns after the end of the thread was reported.

use std::sync::Arc;

use interleave::shuttle;
use interleave::shuttle::sync::atomic::{AtomicBool, Ordering};
use interleave::{Fault, sample, sample_finds};
use paradisk_devices::Time;

use eventfd::EventFd;
use mailbox::{DeviceGone, Mailbox, Message};
use sync::mpsc::Receiver;

#[allow(dead_code, unreachable_pub, reason = "the model does not use everything")]
#[path = "mailbox.rs"]
mod mailbox;

mod thread {
    pub(super) use interleave::shuttle::thread::sleep;
}

mod sync {
    pub(super) mod mpsc {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};

        use interleave::shuttle::sync::{Mutex, mpsc};
        use interleave::{Fault, seeded};

        pub(in super::super) use mpsc::{SendError, TryRecvError, sync_channel};

        pub(in super::super) fn channel<T>() -> (Sender<T>, Receiver<T>) {
            let (sender, receiver) = mpsc::channel();
            let gone = Arc::new(Mutex::new(false));
            let sender = Sender { sender, gone: Arc::clone(&gone), sent: AtomicU32::new(0) };
            (sender, Receiver { receiver, gone })
        }

        /// With [`Fault::Own`], the second message and all later ones fail, although the thread has its inbox: a call that was dropped
        /// does not wait for the end.
        pub(in super::super) struct Sender<T> {
            sender: mpsc::Sender<T>,
            gone: Arc<Mutex<bool>>,
            sent: AtomicU32,
        }

        impl<T> Sender<T> {
            pub(in super::super) fn send(&self, message: T) -> Result<(), SendError<T>> {
                let gone = self.gone.lock().unwrap();
                if *gone || self.sent.fetch_add(1, Ordering::Relaxed) >= 1 && seeded(Fault::Own) {
                    return Err(SendError(message));
                }
                self.sender.send(message)
            }
        }

        pub(in super::super) struct Receiver<T> {
            receiver: mpsc::Receiver<T>,
            gone: Arc<Mutex<bool>>,
        }

        impl<T> Receiver<T> {
            pub(in super::super) fn try_recv(&self) -> Result<T, TryRecvError> {
                self.receiver.try_recv()
            }
        }

        impl<T> Drop for Receiver<T> {
            /// Drops the messages, as the channel of `std` does.
            fn drop(&mut self) {
                let mut gone = self.gone.lock().unwrap();
                *gone = true;
                while self.receiver.try_recv().is_ok() {}
            }
        }
    }
}

mod eventfd {
    use interleave::shuttle::sync::{Condvar, Mutex};

    /// An eventfd whose edges a thread waits for.
    #[derive(Default)]
    pub(super) struct EventFd {
        edge: Mutex<bool>,
        written: Condvar,
    }

    impl EventFd {
        pub(super) fn write(&self, _: u64) -> std::io::Result<()> {
            *self.edge.lock().unwrap() = true;
            self.written.notify_one();
            Ok(())
        }

        pub(super) fn wait(&self) {
            let mut edge = self.edge.lock().unwrap();
            while !std::mem::take(&mut *edge) {
                edge = self.written.wait(edge).unwrap();
            }
        }
    }
}

/// The device's thread, as the I/O thread: it takes all messages after each wake-up, and reports its end before it drops the inbox. If the
/// device `fails`, a call unwinds: it is dropped before the report.
fn run(wake: &EventFd, inbox: &Receiver<Message<u32>>, fails: bool, reported: &AtomicBool) -> u32 {
    let mut device = 40;
    loop {
        wake.wait();
        while let Ok(message) = inbox.try_recv() {
            match message {
                Message::Call(call) if !fails => {
                    call(&mut device, Time(0));
                    continue;
                }
                Message::Call(call) => drop(call),
                Message::Stop => {}
            }
            reported.store(true, Ordering::SeqCst);
            return device;
        }
    }
}

/// A thread makes a call, and another stops the device's thread, unless the call makes it fail.
fn call(fails: bool) {
    let wake = Arc::new(EventFd::default());
    let (mailbox, inbox) = Mailbox::<u32>::new(Arc::clone(&wake));
    let reported = Arc::new(AtomicBool::new(false));
    let report = Arc::clone(&reported);
    let device = shuttle::thread::spawn(move || run(&wake, &inbox, fails, &report));
    let caller = mailbox.clone();
    let caller = shuttle::thread::spawn(move || {
        let add = |device: &mut u32, _| {
            *device += 2;
            *device
        };
        let called = caller.call(add);
        assert!(called.is_ok() || reported.load(Ordering::SeqCst), "the end is not reported yet");
        called
    });
    if !fails {
        mailbox.send(Message::Stop).unwrap();
    }
    let called = caller.join().unwrap();
    assert!(called == Err(DeviceGone) || called == Ok(42) && !fails);
    assert_eq!(device.join().unwrap(), called.unwrap_or(40));
}

/// The protection: `Mailbox::send` wakes the thread after it has posted.
#[test]
fn a_call_is_executed_unless_the_thread_ends() {
    sample(2_000, || call(false));
}

/// The protection: `Mailbox::call` waits in `await_end`.
#[test]
fn a_call_that_is_dropped_returns_after_the_end_was_reported() {
    sample(2_000, || call(true));
    sample_finds(Fault::Own, 2_000, || call(true));
}
