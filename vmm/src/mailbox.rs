//! How other threads reach the one that owns a device: calls, answered there.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use paradisk_devices::{PciDevice, Time};
use vmm_sys_util::eventfd::EventFd;

/// The device's thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's thread has ended")]
pub struct DeviceGone;

pub(crate) type Call = Box<dyn FnOnce(&mut dyn PciDevice, Time) + Send>;

/// What comes to a device's thread.
pub(crate) enum Message {
    /// To be made.
    Call(Call),
    /// The end.
    Stop,
}

/// Calls a device on its thread.
#[derive(Clone)]
pub struct Mailbox {
    messages: Sender<Message>,
    wake: Arc<EventFd>,
}

impl Mailbox {
    /// One that wakes its thread so, and where the thread finds what was sent.
    pub(crate) fn new(wake: Arc<EventFd>) -> (Self, Receiver<Message>) {
        let (messages, inbox) = mpsc::channel();
        (Self { messages, wake }, inbox)
    }

    /// Run `call` on the device's thread and wait for its answer. A slow path: two thread switches.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn call<R, F>(&self, call: F) -> Result<R, DeviceGone>
    where
        R: Send + 'static,
        F: FnOnce(&mut dyn PciDevice, Time) -> R + Send + 'static,
    {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(Message::Call(Box::new(move |device, now| {
            // Nobody waits any more: nobody minds.
            let _ = answer.send(call(device, now));
        })))?;
        answered.recv().map_err(|_| {
            self.await_end();
            DeviceGone
        })
    }

    /// The thread ends and has dropped a call: wait until its end was reported, so that no caller goes on as if the device
    /// had merely not answered. Its inbox goes last.
    fn await_end(&self) {
        while self.messages.send(Message::Call(Box::new(|_, _| ()))).is_ok() {
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Have the device's thread look for work, without waiting for it.
    pub(crate) fn nudge(&self) {
        // Fails only when nudged 2^64 times before the thread reads it.
        let _ = self.wake.write(1);
    }

    pub(crate) fn send(&self, message: Message) -> Result<(), DeviceGone> {
        self.messages.send(message).map_err(|_| DeviceGone)?;
        self.wake.write(1).map_err(|_| DeviceGone)
    }
}
