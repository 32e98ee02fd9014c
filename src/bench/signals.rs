//! Defers SIGINT, SIGTERM and SIGHUP while temporary disks are made, because a process that ends before they are unlinked would
//! leave them behind.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;
use crate::ignored::Ignored;

/// Run `make` with signals deferred. A signal that arrives during the call takes effect afterwards; a second one ends
/// the process at once.
pub(crate) fn held<T, E: Display>(make: impl FnOnce() -> Result<T, E>) -> Result<T, Failure> {
    held_until(|_| make())
}

/// As [`held`], for long calls: the flag that `make` gets is set when a signal arrives.
pub(crate) fn held_until<T, E: Display>(
    make: impl FnOnce(&AtomicBool) -> Result<T, E>,
) -> Result<T, Failure> {
    let held = Held::new().map_err(|error| Failure::Failed(format!("cannot block signals: {error}")))?;
    let made = make(&held.let_through).map_err(|error| Failure::Failed(error.to_string()));
    held.deliver();
    made
}

/// Signals are held back until [`deliver`](Self::deliver).
struct Held {
    let_through: Arc<AtomicBool>,
    pending: Arc<AtomicUsize>,
}

impl Held {
    fn new() -> io::Result<Self> {
        let held = Self { let_through: Arc::default(), pending: Arc::default() };
        for signal in Ignored::read().others([SIGINT, SIGTERM, SIGHUP]) {
            // In this order: the first signal finds `let_through` unset and sets it, the second one finds it set.
            flag::register_conditional_default(signal, Arc::clone(&held.let_through))?;
            flag::register(signal, Arc::clone(&held.let_through))?;
            flag::register_usize(signal, Arc::clone(&held.pending), signal as usize)?;
        }
        Ok(held)
    }

    /// Defer signals no longer. A signal that has arrived takes effect now.
    fn deliver(self) {
        self.let_through.store(true, Ordering::SeqCst);
        let pending = self.pending.swap(0, Ordering::SeqCst);
        if pending != 0 {
            // Cannot fail for these signals. If it did, the process would continue without the signal.
            let _ = signal_hook::low_level::emulate_default_handler(pending as i32);
        }
    }
}
