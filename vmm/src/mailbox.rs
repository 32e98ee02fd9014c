//! Calls from other threads to a device, made on the thread that owns the device.

use std::sync::Arc;
use std::time::Duration;

use paradisk_devices::{IoDevice, Time};

use super::eventfd::EventFd;
use super::sync::mpsc::{self, Receiver};
use super::thread;

/// The device's thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's thread has ended")]
pub struct DeviceGone;

pub(crate) type Call<D> = Box<dyn FnOnce(&mut D, Time) + Send>;

/// A message to a device's thread.
pub(crate) enum Message<D: ?Sized> {
    /// Make this call.
    Call(Call<D>),
    /// End the thread.
    Stop,
}

/// Sends a message to the thread.
type Post<D> = dyn Fn(Message<D>) -> Result<(), DeviceGone> + Send + Sync;

/// Calls a device on its thread: as a device of its bus, or as any [`IoDevice`].
pub struct Mailbox<D: ?Sized = dyn IoDevice> {
    post: Arc<Post<D>>,
    wake: Arc<EventFd>,
}

impl<D: ?Sized> Clone for Mailbox<D> {
    fn clone(&self) -> Self {
        Self { post: Arc::clone(&self.post), wake: Arc::clone(&self.wake) }
    }
}

impl<D: ?Sized + 'static> Mailbox<D> {
    /// A mailbox that wakes its thread by `wake`, and the receiver for that thread.
    pub(crate) fn new(wake: Arc<EventFd>) -> (Self, Receiver<Message<D>>) {
        let (messages, inbox) = mpsc::channel();
        let post = move |message| messages.send(message).map_err(|_| DeviceGone);
        (Self { post: Arc::new(post), wake }, inbox)
    }

    /// A mailbox of the same thread for the view of the device.
    pub(crate) fn view<V: ?Sized + 'static>(&self, view: fn(&mut D) -> &mut V) -> Mailbox<V> {
        let post = Arc::clone(&self.post);
        let post = move |message: Message<V>| {
            post(match message {
                Message::Call(call) => Message::Call(Box::new(move |device, now| call(view(device), now))),
                Message::Stop => Message::Stop,
            })
        };
        Mailbox { post: Arc::new(post), wake: Arc::clone(&self.wake) }
    }

    /// Run `call` on the device's thread and wait for its result. A slow path: two thread switches.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn call<R, F>(&self, call: F) -> Result<R, DeviceGone>
    where
        R: Send + 'static,
        F: FnOnce(&mut D, Time) -> R + Send + 'static,
    {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(Message::Call(Box::new(move |device, now| {
            // Fails only if the caller no longer waits.
            let _ = answer.send(call(device, now));
        })))?;
        answered.recv().map_err(|_| {
            self.await_end();
            DeviceGone
        })
    }

    /// The thread is ending and has dropped a call. Wait until the end of the thread has been reported: the thread drops its inbox after
    /// the report.
    fn await_end(&self) {
        while (self.post)(Message::Call(Box::new(|_, _| ()))).is_ok() {
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Let the device's thread look for work, without waiting.
    pub(crate) fn nudge(&self) {
        // Fails only after 2^64 calls that the thread has not noticed.
        let _ = self.wake.write(1);
    }

    pub(crate) fn send(&self, message: Message<D>) -> Result<(), DeviceGone> {
        (self.post)(message)?;
        self.wake.write(1).map_err(|_| DeviceGone)
    }
}
