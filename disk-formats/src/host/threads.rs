//! The start of the threads of disks, machines and servers. A program can prepare each thread before it does anything, for
//! example install a filter of its system calls. The workers of image tools are started elsewhere.

use std::io;
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ThreadKind {
    /// Transfers data for a queue: a thread of the pool of [`EngineKind::Threads`](crate::EngineKind::Threads).
    DiskTransfer,
    /// Does the work of a queue that may block: allocation, discard, zeroing, flushes.
    DiskHelper,
    /// Makes all rings ([`start_ring_maker`](crate::start_ring_maker)).
    RingMaker,
    /// Runs an adapter of a machine.
    Adapter,
    /// Runs queues of an adapter that has threads of its own.
    AdapterQueue,
    /// Runs a virtual CPU.
    Vcpu,
    /// Writes the output of a machine's serial console.
    Console,
    /// Reads what the user types.
    Terminal,
    /// Waits for signals.
    Signals,
    /// Accepts clients of the control socket.
    ControlListener,
    /// Executes the commands of a client of the control socket.
    ControlClient,
    /// Serves metrics to clients.
    Metrics,
    /// Accepts NBD clients.
    NbdListener,
    /// Serves an NBD client.
    NbdClient,
    /// Receives the messages of a vhost-user client.
    VhostUserSession,
    /// Runs a queue of a vhost-user client.
    VhostUserQueue,
    /// Serves the clients of a vfio-user server.
    VfioUserSession,
    /// Signals an eventfd of a client where io_uring cannot.
    Notifier,
    /// Waits for descriptors that clients have passed, to have them closed.
    Closer,
    /// Closes one of them.
    Close,
    /// Ends the process when its end takes too long, after it has flushed the disks.
    Deadline,
    /// Writes the messages of the program to standard error.
    Messages,
}

static HOOK: OnceLock<fn(ThreadKind)> = OnceLock::new();

/// Set the function that each thread calls before anything else. Only the first call has an effect, for the life of the process, and only
/// on threads that are started after it.
pub fn on_thread_start(hook: fn(ThreadKind)) {
    let _ = HOOK.set(hook);
}

/// Start a thread.
///
/// # Errors
/// The host's, if it refuses the thread.
pub fn spawn<T: Send + 'static>(
    kind: ThreadKind,
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(prepared(kind, run))
}

/// Start a thread in a scope.
///
/// # Errors
/// The host's, if it refuses the thread.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    kind: ThreadKind,
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().name(name.into()).spawn_scoped(scope, prepared(kind, run))
}

fn prepared<T>(kind: ThreadKind, run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        if let Some(hook) = HOOK.get() {
            hook(kind);
        }
        run()
    }
}
