//! A thread that makes all rings of the process, so that the threads that use rings need no system call that makes one.
//!
//! With a ring that it makes itself, a thread could have the kernel do what its own filter of system calls refuses. The maker restricts each
//! ring before any other thread has it.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};

use rustix::io::Errno;

use crate::host::threads::{ThreadKind, spawn};

type Order = Box<dyn FnOnce() + Send>;

static MAKER: OnceLock<Sender<Order>> = OnceLock::new();

/// Have a thread of its own ([`ThreadKind::RingMaker`]) run all that is passed to [`make_ring`] from now on, in the whole process.
///
/// # Errors
/// The host's, if it refuses the thread.
pub fn start_ring_maker() -> io::Result<()> {
    if MAKER.get().is_some() {
        return Ok(());
    }
    let (orders, received) = mpsc::channel::<Order>();
    spawn(ThreadKind::RingMaker, "ring-maker", move || received.into_iter().for_each(|order| order()))?;
    // If another thread was faster, the maker ends, because nobody has its channel.
    let _ = MAKER.set(orders);
    Ok(())
}

/// Make an io_uring by `make`: on the thread of [`start_ring_maker`] if there is one, else on this thread. All rings of this crate are made
/// so.
///
/// # Errors
/// The host's; ECANCELED if the thread has ended.
pub fn make_ring<T: Send + 'static>(
    make: impl FnOnce() -> Result<T, Errno> + Send + 'static,
) -> Result<T, Errno> {
    let Some(maker) = MAKER.get() else { return make() };
    let (sender, made) = mpsc::sync_channel(1);
    let order = move || {
        // The receiver waits.
        let _ = sender.send(make());
    };
    maker.send(Box::new(order)).map_err(|_| Errno::CANCELED)?;
    made.recv().unwrap_or(Err(Errno::CANCELED))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Other tests of this process then use the maker, too, which changes nothing for them.
    #[test]
    fn rings_are_made_on_one_thread_from_its_start_on() {
        let name = || Ok(thread::current().name().map(str::to_owned));
        start_ring_maker().unwrap();
        start_ring_maker().unwrap();
        let names = (0..3).map(|_| thread::spawn(move || make_ring(name).unwrap()).join().unwrap());
        assert!(names.flatten().all(|name| name == "ring-maker"));
        assert_eq!(make_ring(|| Err::<(), _>(Errno::NOMEM)), Err(Errno::NOMEM));
    }
}
