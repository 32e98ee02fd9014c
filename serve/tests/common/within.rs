//! A time limit for what a blocked server would block.

use std::sync::mpsc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// Run `work` on a thread. If it takes too long, abort the process: a server that is blocked cannot be joined, and neither can `work`.
pub(crate) fn within<R: Send + 'static>(what: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(SOON).unwrap_or_else(|error| {
        eprintln!("{what}: {error}");
        std::process::abort()
    })
}
