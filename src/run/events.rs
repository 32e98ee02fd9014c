//! Events for the main thread of a machine: its end, and commands of the control socket.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, SyncSender};

use paradisk_disk_formats::{ThreadKind, spawn};
use paradisk_vmm::{EventSink, StopReason};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::control::server::PendingCommand;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::ignored::Ignored;
use crate::metrics::Snapshot;

/// Exit status when the guest resets the machine.
const RESET: u8 = 3;

/// Exit status when the guest halts for good.
const HALTED: u8 = 4;

/// Something for the main thread.
pub(super) enum Event {
    /// The machine ends.
    End(End),
    /// A command from the control socket.
    Command(PendingCommand),
    /// A client requests the metrics.
    Metrics(SyncSender<Snapshot>),
}

/// How a machine ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The guest powered off.
    PowerOff,
    /// The guest reset the machine.
    Reset,
    /// The guest halted all virtual CPUs with interrupts off.
    Halted,
    /// The user ended it.
    Stopped,
    /// A signal ended it.
    Signal(usize),
    /// It failed.
    Failed(String),
}

impl End {
    /// The result of the process.
    pub(super) fn into_result(self) -> Result<(), Failure> {
        match self {
            Self::PowerOff | Self::Stopped => Ok(()),
            Self::Reset => {
                Err(Failure::Ended { status: RESET, text: "the guest reset the machine".to_owned() })
            }
            Self::Halted => {
                let text = "the guest halted for good: all virtual CPUs wait with interrupts off".to_owned();
                Err(Failure::Ended { status: HALTED, text })
            }
            // The exit status that shells give to a signal.
            Self::Signal(number) => {
                Err(Failure::Ended { status: 128 + number as u8, text: format!("ended by signal {number}") })
            }
            Self::Failed(why) => Err(Failure::Failed(why)),
        }
    }
}

/// Forwards the machine's events to the main thread.
pub(super) fn of_machine(sender: Sender<Event>) -> EventSink {
    // Shared by all threads of the machine.
    let sender = Arc::new(sender);
    Arc::new(move |event| {
        let end = match event {
            paradisk_vmm::Event::Vcpu { outcome: Ok(StopReason::PowerOff), .. } => End::PowerOff,
            paradisk_vmm::Event::Vcpu { outcome: Ok(StopReason::Reset), .. } => End::Reset,
            paradisk_vmm::Event::Vcpu { outcome: Err(error), .. } if error.is_triple_fault() => {
                tell!("{error}");
                End::Reset
            }
            event => End::Failed(event.to_string()),
        };
        // Fails where the main thread has ended.
        let _ = sender.send(Event::End(end));
    })
}

/// Handle signals that would kill the process by ending the machine, so that its disks are closed and the terminal is restored.
/// Signals that were ignored when the process started, as `nohup` has it, stay ignored.
/// The end begins with the signal, even if the main thread waits for something else.
pub(super) fn take_signals(
    ignored: Ignored,
    sender: &Sender<Event>,
    deadline: &Deadline,
) -> Result<(), Failure> {
    let failed = |error| Failure::Failed(format!("signal handler: {error}"));
    let (mut wake, woken) = UnixStream::pair().map_err(failed)?;
    let last = Arc::new(AtomicUsize::new(0));
    for signal in ignored.others([SIGHUP, SIGINT, SIGTERM]) {
        // Handlers run in this order: the number is there when the thread wakes.
        flag::register_usize(signal, Arc::clone(&last), signal as usize).map_err(failed)?;
        low_level::pipe::register(signal, woken.try_clone().map_err(failed)?).map_err(failed)?;
    }
    let (sender, deadline) = (sender.clone(), deadline.clone());
    let wait = move || {
        if wake.read(&mut [0]).is_ok() {
            deadline.announce();
            let _ = sender.send(Event::End(End::Signal(last.load(Ordering::Relaxed))));
        }
    };
    spawn(ThreadKind::Signals, "signals", wait).map(drop).map_err(failed)
}
